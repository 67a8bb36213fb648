"""Task-global DP Reptile (Differentially Private Meta-Learning, Li et al. 2020): "GBML" in DP-FedMeta's Table 2.

Each round every client of the cohort trains from the meta-model on its own examples by DP-Adam: each step's gradients
are clipped one by one and noised (Section 4). It sends the weights it ends with, which protects each of its examples
against the server and everyone after it. The server moves the meta-model towards their mean (batch Reptile, Nichol et
al. 2018): phi <- phi + eps (mean of theta_t - phi); it adds no noise of its own.
"""

from dpfedbench.config import RunConfig
from dpfedbench.federation.composition import Composition

NAME = "dp-reptile"
TITLE = "Task-global DP Reptile (GBML)"
PAPER = "dp-meta-learning-gbml"
VERSION = "1"
PRIVATE = True
DEFAULTS: dict = {
    "model": {"normalisation": "record"},
    "client_update": {"kind": "reptile", "inner_steps": 5, "inner_rate": 0.001, "optimizer": "adam"},
    "local": {
        "threshold": 0.2, "multiplier": None, "epsilon": 9.5, "delta": 1.0e-3, "profile": "as_claimed",
        "query": "client", "batches": "full",
    },
    "clipping": None,
    "noise": None,
    "budget": None,
    "server": {"optimizer": "sgd", "rate": 1.0},
}  # fmt: skip


def compose(config: RunConfig) -> Composition:
    """Private sums within each task, and the mean of what they make of the weights."""
    return Composition.of(config)
