"""Each record of a client in each lot with the same chance; no record is at two clients.

The noise of lots may follow a public validation loss. Two proofs cover that: a Renyi filter (`accounting.filters`), and
the least noise that a declared rule can have come to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsum.accounting import filters, poisson
from dpsum.accounting.analyses.base import Analysis, Reading
from dpsum.accounting.analyses.poisson import Poisson
from dpsum.accounting.claims import Claims
from dpsum.accounting.context import Budget
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, Schedule

# A floor below this says nothing that anyone would want to read.
_LEAST_FLOOR = 0.5


class PoissonLots(Poisson):
    """As for Poisson participation, for one client's records."""

    sampler = "poisson-lots"
    explanation = (
        "each record of a client in each lot with the same chance; privacy loss distribution, bracketed; "
        "no record is at two clients"
    )

    units = "records"

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        return Analysis.image_bracket(self, use, multipliers, sampler, delta)

    def filter_of(self, reading: Reading, budget: Budget, claims: Claims) -> filters.Filter | None:
        if budget.epsilon is None or not budget.stop:
            return None
        orders, tight = filters.orders_of(budget.profile, claims.get(self.sampler))
        if reading.uncounted and not tight:
            return None  # the claim's budget leaves a release out
        rate = float(reading.sampler["rate"])
        if tight:
            first = reading.multipliers[0]
            orders = filters.filter_order(first, rate, orders, epsilon=budget.epsilon, delta=budget.delta)
        budgets = filters.order_budgets(budget.epsilon, orders, budget.delta, tight=tight)
        spent = np.sum([count * poisson.renyi(z, rate, orders) for z, count in reading.schedule], axis=0)
        return filters.Filter(orders=orders, budgets=budgets) if filters.keeps(spent, budgets) else None

    def floor_of(self, reading: Reading, fall: tuple[float, int]) -> Schedule | None:
        """The schedule that falls at every chance, where that is not too far.

        A lot of more noise tells no more than one of less, whatever went before, so that what holds for this fixed
        schedule holds for any that stays above it.
        """
        beta, every = fall
        lots, first = int(reading.sampler["rounds"]), reading.multipliers[0]
        falls = (lots - 1) // every
        if first * beta**falls < _LEAST_FLOOR:
            return None
        if any(z < first * beta ** (index // every) * (1 - 1e-9) for index, z in enumerate(reading.multipliers)):
            return None  # the rule that was declared is not the one that ran
        return tuple((first * beta**fallen, min(every, lots - fallen * every)) for fallen in range(falls + 1))
