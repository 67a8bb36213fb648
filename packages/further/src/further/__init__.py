"""Methods of no paper of the benchmark, as a plugin of dpfedbench: DP-AGR with
correlated noise, DP-AGR by secure aggregation, FedProx, SCAFFOLD, and personalised
methods.

`config` has their experiments, and overlays of them for the presets.
"""

from further import (
    correlated_noise,
    ditto,
    fedprox,
    fedrep,
    fine_tuning,
    local_training,
    per_fedavg,
    scaffold,
    secure_aggregation,
)

__version__ = "0.1.0"

__all__ = [
    "correlated_noise",
    "ditto",
    "fedprox",
    "fedrep",
    "fine_tuning",
    "local_training",
    "per_fedavg",
    "scaffold",
    "secure_aggregation",
]
