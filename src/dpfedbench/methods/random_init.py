"""Random initialisation: the meta-model before any training, the floor of every table."""

from dpfedbench.config import RunConfig
from dpfedbench.federation.composition import Composition

NAME = "random"
TITLE = "Random initialisation"
PAPER = "dp-fedmeta"
VERSION = "1"
PRIVATE = False
DEFAULTS = {"clipping": None, "noise": None, "budget": None}


def compose(config: RunConfig) -> Composition:
    """No rounds, so nothing is computed from any client."""
    return Composition.of(config, rounds=0)
