from typing import Literal

from dpfedbench.config.part import setting
from tests.dpfedbench.config.family import SharedRule


class Still(SharedRule):
    kind: Literal["still"] = "still"
    threshold: float = setting(gt=0, doc="C")
