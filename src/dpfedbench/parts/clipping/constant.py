"""A threshold that stays."""

from typing import Literal

from dpfedbench.parts.clipping.rule import CohortRule, LotRule
from dpsum import clipping


class Constant(CohortRule, LotRule, clipping.Constant):
    """C stays as it is."""

    kind: Literal["constant"] = "constant"
