"""Automatic clipping (Bu et al. 2023, Automatic Clipping: DP Deep Learning Made Easier
and Stronger).

Each contribution g becomes g / (|g| + gamma), whose norm is below 1. So clipping to C =
1 changes nothing, and noise of standard deviation z fits that sensitivity. All
contributions much longer than gamma have nearly the same norm, and there is no
threshold to choose. The paper's free factor R is the server's learning rate here.
"""

from typing import ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.parts.transforms.transform import Transform


class Automatic(Transform):
    """Scaling of contributions to norms below 1; `clipping` has to be the constant
    threshold 1.
    """

    kind: Literal["automatic"] = "automatic"
    gamma: float = setting(
        0.01, gt=0, le=1e6, doc="constant added to a contribution's norm", paper="0.01"
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda transform, run: (
                run.clipping.moves
                or run.clipping.finds_threshold
                or run.clipping.threshold != 1
            ),
            "transform.kind is automatic, which gives contributions of norm"
            " below 1, so another threshold would clip them or add needless"
            " noise: set clipping to {{kind: constant, threshold: 1}}",
        ),
    )

    def factor(self, norm: float) -> float:
        return 1 / (norm + self.gamma)
