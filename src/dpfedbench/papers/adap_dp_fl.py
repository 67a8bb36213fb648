"""Adap DP-FL (Fu, Chen and Han 2022): record-level privacy with a threshold and noise
that adapt.

Algorithm 1. In each round, each client

1. takes a Poisson lot of its records (line 7) and their gradients (line 8);
2. clips each gradient to its C in L2 norm over all weights (line 11), adds them up and
   adds N(0, z^2 C^2 I) (line 12);
3. takes a step of its own optimiser along the sum / L (line 14; Section V: Adam);
4. sets its next C to alpha times a mean norm (eq. 6 to 8).

The server averages the models (line 23), and multiplies z by beta after three falls in
a row of a public validation loss (line 24). A client stops before its budget is
exceeded (line 17 stops after); all clients are alike, so all stop.

Step 4 can be read in three ways, which are three clipping rules:

| rule | mean norm of | privacy |
|---|---|---|
| `NoisedMeanNorm` | the clipped gradients, noised | one more release a lot, which the paper does not count |
| `NormOfRelease` | the released vector | post-processing |
| `MeanOfRawNorms` | the gradients before clipping | none |

The local steps are `parts.client_updates.local_steps`.
"""

from typing import ClassVar, Literal

from dpfedbench.errors import BenchError
from dpfedbench.papers.shared import LocalRecordMethod
from dpfedbench.parts.clipping.rule import Constant, LotRule
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run
from dpsum import clipping
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.clipping import LARGEST_THRESHOLD, SMALLEST_THRESHOLD
from dpsum.noise import Gaussian, Noise


class AdapDpFl(LocalRecordMethod):
    """Each client takes the private sums, over its records, with a threshold of its
    own.
    """

    name = "adap-dp-fl"
    title = "Adap DP-FL"
    paper = "adap-dp-fl"
    version = "2"
    claims = {"poisson-lots": WHOLE_ORDERS}


class DpFl(LocalRecordMethod):
    """The paper's baseline (Zheng et al. 2021, in Section V): one threshold and one
    noise scale for all clients and rounds.

    It is local DP-FedAvg in the sense that nobody but the client itself is trusted.
    """

    name = "dp-fl"
    title = "DP-FL, constant clipping and noise"
    paper = "adap-dp-fl"
    version = "2"
    claims = {"poisson-lots": WHOLE_ORDERS}
    defaults = {"clipping": {"kind": "constant"}, "noise": {"kind": "fixed"}}

    clipping: Constant = Constant()
    noise: Gaussian = Gaussian()


class MeanNormRule(LotRule):
    """Settings of the rules whose C is `factor` times a mean norm."""

    finds_threshold: ClassVar[bool] = True

    threshold: float | None = setting(
        None,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc=(
            "C of the first round; null: the mean gradient norm of the initial model on"
            " random data"
        ),
    )
    factor: float = setting(
        1.0,
        ge=1e-6,
        le=1e6,
        doc="alpha, times the mean norm",
        paper="1 (MNIST), 0.01 (Fashion-MNIST)",
    )


class NormOfRelease(MeanNormRule, clipping.NormOfRelease):
    """C is `factor` times the norm of the last released mean: eq. 6, read as the norm
    of the released vector.
    """

    kind: Literal["norm-of-release"] = "norm-of-release"


class NoisedMeanNorm(MeanNormRule, clipping.NoisedMeanNorm):
    """C is `factor` times the noised mean of the clipped norms: eq. 6, read as a scalar
    query, a release of its own.
    """

    kind: Literal["noised-mean-norm"] = "noised-mean-norm"

    def check(self, run: Run) -> None:
        super().check(run)
        if run.part(Noise).multiplier is None:
            raise BenchError(
                "noise.multiplier is null, but noised-mean-norm is a release more a"
                " lot: give a multiplier"
            )


class MeanOfRawNorms(MeanNormRule, clipping.MeanOfRawNorms):
    """C is `factor` times the mean of the last lot's own norms, neither clipped nor
    noised. Not private.

    With this reading the paper's published factors keep the threshold up.
    """

    kind: Literal["mean-of-raw-norms"] = "mean-of-raw-norms"
    notice: ClassVar[str] = "the clipping threshold reads raw norms: not private"
