"""Automatic clipping (Bu et al. 2023, Automatic Clipping: DP Deep Learning Made Easier
and Stronger).

Each contribution g becomes g / (|g| + gamma), whose norm is below 1, so that C = 1 cuts
nothing and noise of deviation z is what it is for. Contributions much longer than gamma
all count alike, and there is no threshold to choose; that the paper's R may be any
number is the server's learning rate here.
"""

from typing import Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.transforms.transform import Transform
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run
from dpsum.clipping import ClippingRule


class Automatic(Transform):
    """Contributions of norm below 1; `clipping` has to be the constant threshold 1."""

    kind: Literal["automatic"] = "automatic"
    gamma: float = setting(
        0.01, gt=0, le=1e6, doc="added to a contribution's norm", paper="0.01"
    )

    def check(self, run: Run) -> None:
        rule = run.part(ClippingRule)
        if rule.moves or rule.finds_threshold or rule.threshold != 1:
            raise BenchError(
                "transform.kind is automatic, which gives contributions of norm below"
                " 1: another threshold would shorten them or add noise for nothing; set"
                " clipping to {kind: constant, threshold: 1}"
            )

    def factor(self, norm: float) -> float:
        return 1 / (norm + self.gamma)
