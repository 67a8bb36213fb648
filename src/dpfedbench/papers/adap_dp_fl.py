"""Adap DP-FL (Fu, Chen and Han 2022): record-level privacy with an adaptive threshold
and adaptive noise.

Algorithm 1. In each round, each client

1. takes a Poisson lot of its records (line 7) and their gradients (line 8);
2. clips each gradient to its C in L2 norm over all weights (line 11), adds them up and
   adds N(0, z^2 C^2 I) (line 12);
3. takes a step of its own optimiser along the sum / L (line 14; Section V: Adam);
4. sets its next C to alpha times a mean norm (eq. 6 to 8).

The server averages the models (line 23), and multiplies z by beta after three
consecutive decreases of a public validation loss (line 24). A client stops before its
budget is exceeded (line 17 stops after). All clients have the same account, so that all
stop in the same round.

Step 4 can be read in three ways, which are three clipping rules of `dpsum.clipping`:

| rule | mean norm of | privacy |
|---|---|---|
| `NoisedMeanNorm` | the clipped gradients, noised | one more release a lot, which the paper does not count |
| `NormOfRelease` | the released vector | post-processing |
| `MeanOfRawNorms` | the gradients before clipping | none |

`training.client_updates.local_steps` has the local steps.
"""

from dpfedbench.papers.shared import LocalRecordMethod
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.clipping import Constant
from dpsum.noise import Gaussian


class AdapDpFl(LocalRecordMethod):
    """Adap DP-FL: each client takes private sums over its records, with a threshold of
    its own.
    """

    name = "adap-dp-fl"
    title = "Adap DP-FL"
    paper = "adap-dp-fl"
    version = "3"
    claims = {"poisson-lots": WHOLE_ORDERS}


class DpFl(LocalRecordMethod):
    """Baseline of the paper (Zheng et al. 2021, in Section V): one threshold and one
    noise scale for all clients and rounds.

    It is local DP-FedAvg: each client trusts only itself.
    """

    name = "dp-fl"
    title = "DP-FL, constant clipping and noise"
    paper = "adap-dp-fl"
    version = "2"
    claims = {"poisson-lots": WHOLE_ORDERS}
    defaults = {"clipping": {"kind": "constant"}, "noise": {"kind": "fixed"}}

    clipping: Constant = Constant()
    noise: Gaussian = Gaussian()
