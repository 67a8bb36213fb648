"""What a private run may spend, what it has spent, how its noise moves, and when it has to stop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpfedbench.config import RunConfig
from dpfedbench.privacy.accounting import (
    CLAIMED_ORDERS,
    HOLDING_ORDERS,
    calibrate,
    epsilon_after,
    joint_multiplier,
    rounds_allowed,
)
from dpfedbench.privacy.filters import filter_order
from dpfedbench.privacy.poisson import epsilon_of, renyi


class BudgetPlan:
    """The noise of a run whose noise stays, and the rounds it may take, fixed before the first round.

    Attributes:
        sampler: the participation plan's description.
        noise_multiplier: z, configured or calibrated.
        delta: at which epsilon is counted.
        lots_allowed: releases after which epsilon is still within the budget; training stops before the next.
        counted: whether every release has an event; without, no finite epsilon holds.

    Args:
        config: the run.
        sampler: its sampler.
        counted: see above.
        every_round: whether both epsilons are wanted after every round (slow for a long run of lots).

    Raises:
        BenchError: no noise meets the budget, or a profile does not fit the sampler.
    """

    def __init__(
        self, config: RunConfig, sampler: Mapping[str, Any], *, counted: bool = True, every_round: bool = True
    ) -> None:
        assert config.budget is not None and config.noise is not None
        budget, z = config.budget, config.noise.multiplier
        if z is None:
            assert budget.epsilon is not None  # RunConfig refuses a run with neither
            z = calibrate(budget.profile, sampler, budget.epsilon, budget.delta)
        allowed = int(sampler["rounds"])
        if budget.epsilon is not None and budget.stop:
            allowed = rounds_allowed(budget.profile, sampler, z, budget.delta, budget.epsilon)
        self.sampler, self.noise_multiplier, self.delta = sampler, z, budget.delta
        self.lots_allowed, self.counted, self._every_round = allowed, counted, every_round

    def allows(self, releases: int) -> bool:
        """Whether epsilon is still within the budget after `releases` rounds (or lots) in all."""
        return releases <= self.lots_allowed

    def took(self, lots: int) -> None:
        """Take note that so many rounds (or lots) were released at the present noise."""

    def spent(self, done: int) -> tuple[float, float]:
        """Epsilon after `done` rounds: as claimed, and the high end of what holds (NaN where it would take long)."""
        claimed = epsilon_after("as_claimed", self.sampler, self.noise_multiplier, done, self.delta)
        if not self.counted:
            return claimed, math.inf
        if not self._every_round:
            return claimed, math.nan
        return claimed, epsilon_after("holds", self.sampler, self.noise_multiplier, done, self.delta)

    def observe(self, loss: float) -> None:
        """Take note of the public validation loss; the noise stays as it is."""

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""


class DecayingBudget(BudgetPlan):
    """Noise that decays by a public loss (Adap DP-FL, Section IV-B), spent release by release.

    Renyi divergences add up, so that whether one more lot fits is known at once: under `as_claimed` by the paper's
    orders and conversion; under `holds` by more orders and the tighter conversion, and if the noise may decay by one
    order alone, chosen before the first lot: a filter, so that the budget holds for whatever noise comes of it
    (`privacy.filters`).

    Args:
        config: the run.
        sampler: its sampler, Poisson lots.
        counted: as in `BudgetPlan`.
        extra: releases a lot beside the gradients', of the same multiplier; the paper's claim leaves them out.
    """

    def __init__(self, config: RunConfig, sampler: Mapping[str, Any], *, counted: bool = True, extra: int = 0) -> None:
        assert config.budget is not None and config.noise is not None and config.noise.multiplier is not None
        self.sampler, self.delta, self.counted = sampler, config.budget.delta, counted
        self.noise_multiplier = config.noise.multiplier
        self.lots_allowed = int(sampler["rounds"])
        self._decay, self._falls, self._extra = config.noise.decay, config.noise.falls, extra
        self._limit = math.inf
        if config.budget.epsilon is not None and config.budget.stop:
            self._limit = config.budget.epsilon
        self._holds = config.budget.profile == "holds"
        self._orders = HOLDING_ORDERS if self._holds else CLAIMED_ORDERS
        if self._holds and self._decay < 1 and math.isfinite(self._limit):
            z = joint_multiplier([self.noise_multiplier] * (1 + extra))
            self._orders = filter_order(z, sampler["rate"], HOLDING_ORDERS, epsilon=self._limit, delta=self.delta)
        self._spent = np.zeros(len(self._orders))
        self._claimed = np.zeros(len(CLAIMED_ORDERS))
        self._lots = 0
        self._losses: list[float] = []
        self._seen = 0

    def _cost(self, orders: tuple[int, ...], *, counted_in_full: bool) -> np.ndarray:
        z = self.noise_multiplier
        if counted_in_full and self._extra:
            z = joint_multiplier([z] * (1 + self._extra))
        return renyi(z, self.sampler["rate"], orders)

    def allows(self, releases: int) -> bool:
        """Whether lots up to `releases` in all, at the present noise, stay within the budget."""
        if releases > self.lots_allowed:
            return False
        more = (releases - self._lots) * self._cost(self._orders, counted_in_full=self._holds)
        return epsilon_of(self._spent + more, self._orders, self.delta, tight=self._holds) <= self._limit

    def took(self, lots: int) -> None:
        self._spent = self._spent + lots * self._cost(self._orders, counted_in_full=self._holds)
        self._claimed = self._claimed + lots * self._cost(CLAIMED_ORDERS, counted_in_full=False)
        self._lots += lots

    def spent(self, done: int) -> tuple[float, float]:
        """As claimed; what holds is infinite where a release has no event, and else left to the account (NaN)."""
        holds = math.nan if self.counted else math.inf
        return epsilon_of(self._claimed, CLAIMED_ORDERS, self.delta, tight=False), holds

    def observe(self, loss: float) -> None:
        """After `falls` falls in a row (J(t-3) > J(t-2) > J(t-1) > J(t) for 3) the noise is multiplied by the decay.

        J(w_0) = J(w_1) = J(w_2) = infinity (Section IV-B): the losses of the first two rounds are not looked at.
        """
        self._seen += 1
        loss = math.inf if self._seen < self._falls else loss
        self._losses = [*self._losses, loss][-(self._falls + 1) :]
        falls = [
            later < earlier for earlier, later in itertools.pairwise([math.inf, *self._losses][-self._falls - 1 :])
        ]
        if len(falls) == self._falls and all(falls):
            self.noise_multiplier *= self._decay

    def state(self) -> dict[str, Any]:
        return {
            "noise_multiplier": self.noise_multiplier,
            "lots": self._lots,
            "losses": list(self._losses),
            "seen": self._seen,
            "spent": self._spent.tolist(),
            "claimed": self._claimed.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.noise_multiplier, self._lots = state["noise_multiplier"], state["lots"]
        self._losses, self._seen = list(state["losses"]), state["seen"]
        self._spent, self._claimed = np.array(state["spent"]), np.array(state["claimed"])
