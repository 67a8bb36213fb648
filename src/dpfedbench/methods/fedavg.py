"""Non-private FedAvg (McMahan et al. 2017): the rounds of Adap DP-FL without clipping and noise, the ceiling."""

from dpfedbench.config import RunConfig
from dpfedbench.federation.composition import Composition

NAME = "fedavg"
TITLE = "Non-private FedAvg"
PAPER = "adap-dp-fl"
VERSION = "2"
PRIVATE = False
DEFAULTS = {"clipping": None, "noise": None, "budget": None}


def compose(config: RunConfig) -> Composition:
    """Each round: every client's local steps along the sums of its lots as they are, and the models' average."""
    return Composition.of(config)
