"""DP-FL with one threshold and one noise scale for all clients and rounds: the baseline
of Adap DP-FL.

Each client clips each record's gradient to C and adds N(0, z^2 C^2 I) to their sum
(Zheng et al. 2021, in Section V of Adap DP-FL): record-level privacy against the
server. Local DP-FedAvg in the sense that no one else is trusted.
"""

from dpfedbench.methods.over_lots import OverLots
from dpfedbench.parts.clipping.rule import Constant
from dpfedbench.parts.noise.noise import Fixed
from dpsum.accounting.claims import WHOLE_ORDERS


class DpFl(OverLots):
    """Each client's local steps along noisy sums of clipped gradients, and the models'
    average.
    """

    name = "dp-fl"
    title = "DP-FL, constant clipping and noise"
    paper = "adap-dp-fl"
    version = "2"
    claims = {"poisson-lots": WHOLE_ORDERS}
    defaults = {"clipping": {"kind": "constant"}, "noise": {"kind": "fixed"}}

    clipping: Constant = Constant()
    noise: Fixed = Fixed()
