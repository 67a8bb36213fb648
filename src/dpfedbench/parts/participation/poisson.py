"""Poisson cohorts: in each round each client takes part with the same chance."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpfedbench.parts.participation.participation import Participation
from dpsum import participation


class Poisson(Participation):
    """In each round each client takes part with probability L/N, apart from all others."""

    kind: Literal["poisson"] = "poisson"
    planned: ClassVar[type[participation.Participation]] = participation.Poisson
