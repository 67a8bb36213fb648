"""Cohorts of a fixed size, drawn without replacement in each round: what most simulators do."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpfedbench.parts.participation.participation import Participation
from dpsum import participation


class FixedSize(Participation):
    """In each round L of the N clients, every such set with the same chance, drawn anew and in secret."""

    kind: Literal["fixed-size"] = "fixed-size"
    planned: ClassVar[type[participation.Participation]] = participation.FixedSize
