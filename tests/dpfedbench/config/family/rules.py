from typing import Literal

from dpfedbench.config.part import setting
from tests.dpfedbench.config.family import Rule, SharedRule


class Still(SharedRule):
    kind: Literal["still"] = "still"
    threshold: float = setting(gt=0, doc="C")


class Moving(SharedRule):
    kind: Literal["moving"] = "moving"
    threshold: float | None = setting(None, gt=0)
    window: int = setting(10, ge=1)
    percentile: float = setting(90, ge=0, le=100)
    form: Literal["sum", "mean"] = "sum"


class Odd(Rule):
    kind: Literal["odd"] = "odd"
    order: Literal[1, 2] = 2
    inner: Rule | None = None
