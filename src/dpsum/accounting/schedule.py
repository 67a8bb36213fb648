"""What an analysis reads, and what it gives."""

from collections.abc import Mapping
from typing import Any

Schedule = tuple[tuple[float, int], ...]
"""The noise of rounds: (noise multiplier, number of rounds at it), ..."""

Sampler = Mapping[str, Any]
"""A participation plan's description: kind, clients, cohort, rounds, rate."""

Bracket = tuple[float, float]
"""Low and high end of epsilon."""


def ends(schedule: Schedule) -> tuple[float, float, int]:
    """The least and the greatest multiplier, and the rounds."""
    multipliers = [z for z, _ in schedule]
    return min(multipliers), max(multipliers), sum(count for _, count in schedule)
