"""What a private run may spend, what it has spent, and when it has to stop."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dpfedbench.config import RunConfig
from dpfedbench.privacy.accounting import calibrate, epsilon_after, rounds_allowed


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetPlan:
    """The noise of a run and the rounds it may take, fixed before the first round.

    Attributes:
        sampler: the participation plan's description.
        noise_multiplier: z, configured or calibrated.
        delta: at which epsilon is counted.
        rounds_allowed: rounds after which epsilon is still within the budget; training stops before the next.
        counted: whether every release has an event; without, no finite epsilon holds.
    """

    sampler: Mapping[str, Any]
    noise_multiplier: float
    delta: float
    rounds_allowed: int
    counted: bool

    @classmethod
    def of(cls, config: RunConfig, sampler: Mapping[str, Any], *, counted: bool) -> BudgetPlan:
        """The plan of a private run.

        Raises:
            BenchError: no noise meets the budget, or a profile does not fit the sampler.
        """
        assert config.budget is not None and config.noise is not None
        budget, z = config.budget, config.noise.multiplier
        if z is None:
            assert budget.epsilon is not None  # RunConfig refuses a run with neither
            z = calibrate(budget.profile, sampler, budget.epsilon, budget.delta)
        allowed = int(sampler["rounds"])
        if budget.epsilon is not None and budget.stop:
            allowed = rounds_allowed(budget.profile, sampler, z, budget.delta, budget.epsilon)
        return cls(sampler=sampler, noise_multiplier=z, delta=budget.delta, rounds_allowed=allowed, counted=counted)

    def spent(self, done: int) -> tuple[float, float]:
        """Epsilon after `done` rounds: as claimed, and the high end of what holds."""
        claimed = epsilon_after("as_claimed", self.sampler, self.noise_multiplier, done, self.delta)
        if not self.counted:
            return claimed, math.inf
        return claimed, epsilon_after("holds", self.sampler, self.noise_multiplier, done, self.delta)
