"""DP-MAML at sample level (Meta-Learning with Differential Privacy, Algorithm 2): single examples, a trusted server.

For each task of a lot

1. the inner loop steps along the sum of its support examples' gradients, each clipped to C_inner, with noise
   N(0, z^2 C_inner^2 I);
2. the query examples' gradients at those weights go to the outer loop one by one;

the server clips each of all tasks' query gradients to C_outer, adds them up, adds N(0, z^2 C_outer^2 I), divides by
|D^q| L and takes a step. First order only: a second-order gradient would carry the raw support set into every query
gradient past the inner loop's noise. Normalisation is within each record.
"""

from dpfedbench.config import RunConfig
from dpfedbench.federation.composition import Composition

NAME = "dp-maml-sample"
TITLE = "DP-MAML, sample level"
PAPER = "dp-maml"
VERSION = "1"
PRIVATE = True
DEFAULTS: dict = {
    "model": {"normalisation": "record"},
    "client_update": {"inner_steps": 1, "order": 1},
    "local": {
        "threshold": 0.5, "multiplier": 1.0, "epsilon": None, "delta": 1.0e-5, "profile": "holds", "query": "server",
        "batches": "full",
    },
    "clipping": {"rule": "constant"},
    "budget": {"delta": 1.0e-5},
}  # fmt: skip


def compose(config: RunConfig) -> Composition:
    """Private sums within each task, and one over all query examples of the cohort."""
    return Composition.of(config)
