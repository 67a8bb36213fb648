"""Non-private Reptile (Nichol et al. 2018), in batches: task-global DP Reptile without clipping and noise."""

from dpfedbench.config import RunConfig
from dpfedbench.federation.composition import Composition

NAME = "reptile"
TITLE = "Non-private Reptile"
PAPER = "dp-meta-learning-gbml"
VERSION = "1"
PRIVATE = False
DEFAULTS: dict = {
    "model": {"normalisation": "record"},
    "client_update": {"kind": "reptile", "inner_steps": 5, "inner_rate": 0.001, "optimizer": "adam"},
    "local": None,
    "clipping": None,
    "noise": None,
    "budget": None,
    "server": {"optimizer": "sgd", "rate": 1.0},
}


def compose(config: RunConfig) -> Composition:
    """What a cohort's training makes of the weights, in the mean."""
    return Composition.of(config)
