"""DP-FL with one threshold and one noise scale for all clients and rounds: the baseline of Adap DP-FL.

Each client clips each record's gradient to C and adds N(0, z^2 C^2 I) to their sum (Zheng et al. 2021, in Section V
of Adap DP-FL): record-level privacy against the server. Local DP-FedAvg in the sense that no one else is trusted.
"""

from dpfedbench.config import RunConfig
from dpfedbench.federation.composition import Composition

NAME = "dp-fl"
TITLE = "DP-FL, constant clipping and noise"
PAPER = "adap-dp-fl"
VERSION = "2"
PRIVATE = True
DEFAULTS = {"clipping": {"rule": "constant"}, "noise": {"decay": 1.0}}


def compose(config: RunConfig) -> Composition:
    """Each client's local steps along noisy sums of clipped gradients, and the models' average."""
    return Composition.of(config)
