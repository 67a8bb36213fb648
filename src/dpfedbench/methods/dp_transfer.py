"""DP pre-training: `transfer` by DP-SGD (Abadi et al. 2016), the private rival of DP-AGR and DP-MAML.

In each round the holder

1. takes a lot: each image with probability L/n, apart from all others;
2. clips each image's gradient to C in L2 norm over all weights, adds them up and adds N(0, z^2 C^2 I);
3. takes a step of Adam along that sum / L.

An image is what is protected, from everyone who gets the model, and Poisson lots are what the accountant takes for
granted. z = 6 and L = 2,000 are the papers'; C is not said.
"""

from dpfedbench.config import RunConfig
from dpfedbench.federation.composition import Composition
from dpfedbench.methods.transfer import PRE_TRAINING

NAME = "dp-transfer"
TITLE = "DP transfer learning"
PAPER = "dp-fedmeta"
VERSION = "1"
PRIVATE = True
DEFAULTS = PRE_TRAINING | {
    "participation": {"kind": "poisson-lots", "cohort": 500, "rounds": 30},
    "clipping": {"rule": "constant", "threshold": 1.0},
    "noise": {"multiplier": 6.0, "decay": 1.0},
    "budget": {"epsilon": None, "delta": 1.0e-5},
}


def compose(config: RunConfig) -> Composition:
    """One private sum a lot, over single images."""
    return Composition.of(config)
