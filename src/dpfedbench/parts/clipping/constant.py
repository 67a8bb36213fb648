"""A threshold that stays."""

from __future__ import annotations

from typing import Literal

from dpfedbench.parts.clipping.rule import CohortRule, LotRule


class Constant(CohortRule, LotRule):
    """C stays as it is."""

    kind: Literal["constant"] = "constant"
