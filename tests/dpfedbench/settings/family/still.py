from typing import Literal

from dpfedbench.settings.part import setting
from tests.dpfedbench.settings.family import SharedRule


class Still(SharedRule):
    kind: Literal["still"] = "still"
    threshold: float = setting(gt=0, doc="C")
