"""Non-private MAML (Finn et al. 2017): the same rounds as DP-AGR without clipping and noise, the ceiling."""

from dpfedbench.config import RunConfig
from dpfedbench.federation.composition import Composition

NAME = "maml"
TITLE = "Non-private MAML"
PAPER = "dp-fedmeta"
VERSION = "1"
PRIVATE = False
DEFAULTS = {"clipping": None, "noise": None, "budget": None}


def compose(config: RunConfig) -> Composition:
    """Each round: the cohort's MAML query gradients, summed as they are, and a step along their mean."""
    return Composition.of(config)
