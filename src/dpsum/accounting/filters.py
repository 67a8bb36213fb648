"""Renyi filters: what is proven where the noise of a round was chosen by looking at earlier
releases.

Composition theorems take the noise of every round as given. Where it follows a
validation loss of released models it is itself random, and the account of the schedule
that was run says nothing of the schedules that were not. A filter does: each lot is
allowed only if the Renyi divergences so far, and its own, are within a budget fixed in
advance (Feldman and Zrnic, Individual Privacy Accounting via a Renyi Filter, 2021;
Lecuyer 2021).

Proof, for a set of orders fixed in advance with budgets B_a, of which a run keeps one
or another: let R be the ratio of the densities of all releases under two neighbouring
inputs and rho_t(a) the divergence of lot t given what came before. Under Q, R_t^a
exp(-(a - 1) sum_{s <= t} rho_s(a)) is a supermartingale that starts at 1. On the event
A_a that a is the first order whose budget was kept, E_Q R^a 1{A_a} <= exp((a - 1) B_a).
For c > 0, (r - c)+ <= r^a c^(1 - a) (1/a) (1 - 1/a)^(a - 1), so

    delta(eps) = E_Q (R - e^eps)+ <= sum_a (1/a) (1 - 1/a)^(a - 1) exp((a - 1) (B_a - eps)).

With one order this is the tight conversion of its budget, without any loss.

Two runs on the same records, one after the other, are a filter too (`beside`,
`together`). Let R = R_1 R_2. On the event A_a of the first run, E_Q R_1^a 1{A_a} is at
most exp((a - 1) B_a), and given the first run E_Q R_2^a is at most exp((a - 1) rho(a))
where the second run's noise is fixed: the budgets are B_a + rho(a). Where the second
run keeps a filter of its own, orders a' and budgets B'_a', R is bounded on each event
A_a and A'_a'. At the order m = min(a, a') the divergences that were spent are at most
those at a and at a', since Renyi divergences do not fall with the order, so that the
budget at m is B_a + B'_a'. The order of the runs does not matter to the bound.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from dploss.gaussian import Schedule, least_root
from dploss.renyi import PROVEN_ORDERS, renyi, renyi_of_rounds
from dpsum.accounting.accountant import Events
from dpsum.accounting.claims import Claim, Claims
from dpsum.budget import Budget
from dpsum.errors import DpsumError

_LEAST_FLOOR = 0.5
"""Least useful floor of the noise; below it the account has no practical value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filter:
    """The Renyi filter of a run with adaptive noise.

    Attributes:
        orders: the orders.
        budgets: the budget of each order, fixed in advance.
    """

    orders: tuple[float, ...]
    budgets: np.ndarray

    def epsilon(self, delta: float) -> float:
        """Return a proven upper bound on epsilon, which holds for all noise."""
        alphas = np.asarray(self.orders, dtype=float)
        # No run keeps a budget below 0.
        is_kept = self.budgets >= 0
        alphas = alphas[is_kept]
        kept_budgets = self.budgets[is_kept]
        if not len(alphas):
            return 0.0
        powers = alphas - 1.0
        factors = powers * np.log1p(-1.0 / alphas)
        factors = factors - np.log(alphas)
        log_delta = math.log(delta)

        def excess(epsilon: float) -> float:
            exponents = factors + powers * (kept_budgets - epsilon)
            return float(logsumexp(exponents)) - log_delta

        root = least_root(excess, xtol=1e-12)
        if root:
            return root + 1e-11
        return 0.0

    def beside(self, divergences: np.ndarray) -> Filter:
        """Return the filter of this run and of releases of fixed noise beside it.

        Args:
            divergences: Renyi divergences of these releases at this filter's orders.
        """
        return Filter(orders=self.orders, budgets=self.budgets + divergences)

    def together(self, other: Filter) -> Filter:
        """Return the filter of two runs that each keep a filter."""
        orders = []
        budgets = []
        for order, budget in zip(self.orders, self.budgets, strict=True):
            for other_order, other_budget in zip(
                other.orders, other.budgets, strict=True
            ):
                orders.append(min(order, other_order))
                budgets.append(budget + other_budget)
        return Filter(orders=tuple(orders), budgets=np.array(budgets))


def orders_of(profile: str, claim: Claim | None) -> tuple[tuple[float, ...], bool]:
    """Return the orders of a budget that is kept lot by lot.

    The second value says whether the conversion is the tight one. Without a claim, the
    proven epsilon is claimed.

    Raises:
        DpsumError: the claim does not add up divergences.
    """
    if profile == "proven" or claim is None:
        return PROVEN_ORDERS, True
    if not claim.orders:
        raise DpsumError(
            "the paper's claim cannot be tracked lot by lot: set budget.profile to"
            " proven"
        )
    return claim.orders, False


def order_budgets(
    epsilon: float, orders: Sequence[float], delta: float, *, tight: bool
) -> np.ndarray:
    """Return B_a: the divergence at each order that converts to (epsilon, delta).

    It is below 0 where no lot fits.
    """
    alphas = np.asarray(orders, dtype=float)
    budgets = epsilon + math.log(delta) / (alphas - 1.0)
    if tight:
        log_ratio = np.log(alphas) / (alphas - 1.0)
        gain = np.log1p(-1.0 / alphas) - log_ratio
        budgets = budgets - gain
    return np.asarray(budgets)


def filter_order(
    noise_multiplier: float,
    rate: float,
    orders: Sequence[float],
    *,
    epsilon: float,
    delta: float,
) -> tuple[float, ...]:
    """Return the single order of a filter.

    It is the order at which constant noise z, at rate q, allows the most lots.
    """
    budgets = order_budgets(epsilon, orders, delta, tight=True)
    lots = budgets / renyi(noise_multiplier, rate, tuple(orders))
    longest = int(np.argmax(lots))
    return (orders[longest],)


def keeps(spent: np.ndarray, budgets: np.ndarray) -> bool:
    """Return whether the spent divergence is within the budget at one of the orders.

    It allows for rounding of the sums.
    """
    limits = budgets * (1 + 1e-9) + 1e-12
    return bool(np.any(spent <= limits))


def filter_of(events: Events, budget: Budget, claims: Claims) -> Filter | None:
    """Return the filter of Poisson lots whose noise may follow a loss.

    The budget defines the filter. None if the run did not keep it.
    """
    if budget.epsilon is None or not budget.stop:
        return None
    claim = claims.get(events.sampling.kind)
    orders, tight = orders_of(budget.profile, claim)
    if events.uncounted and not tight:
        return None  # the claim's budget leaves a release out
    if tight:
        first = events.multipliers[0]
        orders = filter_order(
            first, events.rate, orders, epsilon=budget.epsilon, delta=budget.delta
        )
    budgets = order_budgets(budget.epsilon, orders, budget.delta, tight=tight)
    spent = renyi_of_rounds(events.schedule, events.rate, orders)
    if keeps(spent, budgets):
        return Filter(orders=orders, budgets=budgets)
    return None


def floor_of(events: Events, decay_step: tuple[float, int]) -> Schedule | None:
    """Return the least noise of each planned lot under the declared rule of decay.

    The rule (`decay_step`) allows multiplying the noise by beta at most once in a number of
    lots. The least noise is the schedule that decays as early as possible. More noise
    in a lot reveals no more, whatever came before, so that the epsilon proven for this
    fixed schedule holds for every schedule above it. None if the ledger did not follow
    the rule, or the noise falls too low.
    """
    beta, every = decay_step
    lots = int(events.sampling["rounds"])
    first = events.multipliers[0]
    falls = (lots - 1) // every
    if first * beta**falls < _LEAST_FLOOR:
        return None
    for index, z in enumerate(events.multipliers):
        least = first * beta ** (index // every)
        if z < least * (1 - 1e-9):
            return None  # the rule that was declared is not the one that ran
    return tuple(
        (first * beta**fallen, min(every, lots - fallen * every))
        for fallen in range(falls + 1)
    )
