"""Budget plans: noise, allowed rounds and spent epsilon of a private run."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dploss.gaussian import joint_multiplier, joint_or_only, rounded_up
from dploss.renyi import PROVEN_ORDERS, epsilon_of, renyi
from dpsum.accounting.analyses import find
from dpsum.accounting.calibration import (
    AccountingOptions,
    calibrate,
    epsilon_after,
    rounds_allowed,
)
from dpsum.accounting.claims import NO_CLAIM, Claims
from dpsum.accounting.filters import filter_order, orders_of
from dpsum.budget import Budget
from dpsum.errors import DpsumError
from dpsum.sampling import Sampler


class BudgetPlan:
    """Plan of a run with constant noise: its noise and its largest number of rounds.

    Both are fixed before the first round.

    Args:
        budget: limit on epsilon.
        sampler: how the units are drawn.
        multiplier: z; None: the smallest that meets the budget.
        claims: claims of the method's paper.
        mechanism: name of the noise in the ledger.
        counted: whether every release has a ledger entry. If not, no finite epsilon is
            proven.
        every_round: whether `epsilon_spent` computes both epsilons after every round (slow for
            a long run of lots).
        beside: z of a round's other sums that read the same units. All sums whose z is
            None, `multiplier` included, cost the same.
        ratios: for each sum, starting with that of `multiplier`, the configured
            multiplier, which the paper counts, divided by the proven one
            (`CoordinateGroups.claimed_ratio`); empty: 1.

    Attributes:
        multipliers: z of each sum of the next round, calibrated: `multiplier`, then
            those of `beside`.
        lots_allowed: largest number of releases within the budget; training stops
            before the next.

    Raises:
        DpsumError: no noise meets the budget, the pair has no analysis, or the paper
            makes no claim for its profile.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        sampler: Sampler,
        multiplier: float | None,
        claims: Claims,
        mechanism: str,
        counted: bool = True,
        every_round: bool = True,
        beside: Sequence[float | None] = (),
        ratios: Sequence[float] = (),
    ) -> None:
        self.sampler = sampler
        self.delta = budget.delta
        self.counted = counted
        self._every_round = every_round
        self._options: AccountingOptions = {"claims": claims, "mechanism": mechanism}
        find(mechanism, sampler["kind"])
        _check_claimed(budget, claims)
        multipliers = (multiplier, *beside)
        total = 0.0
        if None in multipliers:
            if budget.epsilon is None:
                raise DpsumError(
                    "noise.multiplier and budget.epsilon are both null: give one"
                )
            total = calibrate(
                budget.profile, sampler, budget.epsilon, budget.delta, **self._options
            )
        self._ratios = tuple(ratios)
        if not ratios:
            self._ratios = (1.0,) * len(multipliers)
        # A claim for this sampler counts configured multipliers; without a claim, the
        # proven epsilon is claimed.
        self._has_claim = sampler["kind"] in claims
        if budget.profile == "claimed" and self._has_claim:
            configured = _share_noise(total, multipliers)
            proven = _divide_by_ratios(configured, self._ratios)
        else:
            proven = _share_noise(total, _divide_by_ratios(multipliers, self._ratios))
        self.multipliers: list[float] = proven
        self.lots_allowed = int(sampler["rounds"])
        if budget.epsilon is not None and budget.stop:
            limits = budget.delta, budget.epsilon
            together = joint_or_only(self._counted_multipliers(budget.profile))
            self.lots_allowed = rounds_allowed(
                budget.profile, sampler, together, *limits, **self._options
            )

    def _counted_multipliers(self, profile: str) -> list[float]:
        """Return the multipliers of a round's releases that a profile counts."""
        if profile == "claimed" and self._has_claim:
            pairs = zip(self.multipliers, self._ratios, strict=True)
            return [z * ratio for z, ratio in pairs]
        return self.multipliers

    def allows(self, releases: int) -> bool:
        """Return whether this total number of rounds (or lots) is within the budget."""
        return releases <= self.lots_allowed

    def charge(self) -> None:
        """Charge for a round (or lot) that was released at the present noise."""

    def epsilon_spent(self, done: int) -> tuple[float, float]:
        """Return the claimed and the proven epsilon after `done` rounds.

        NaN where there is no claim, or the computation is too slow.
        """
        if self._options["claims"]:
            claimed = self._epsilon("claimed", done)
        else:
            claimed = math.nan
        if not self.counted:
            return claimed, math.inf
        proven = math.nan
        if self._every_round:
            proven = self._epsilon("proven", done)
        return claimed, proven

    def _epsilon(self, profile: str, done: int) -> float:
        return epsilon_after(
            profile,
            self.sampler,
            joint_or_only(self._counted_multipliers(profile)),
            done,
            self.delta,
            **self._options,
        )

    def observe(self, loss: float) -> None:
        """Ignore the public validation loss: the noise is constant."""

    def state(self) -> dict[str, Any]:
        """Return everything that a restart needs."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""


class DecayingBudgetPlan(BudgetPlan):
    """Plan of noise that decays with a public loss (Adap DP-FL, Section IV-B).

    The budget is charged release by release. Renyi divergences add up, so that the plan
    knows at once whether one more lot fits. Under `claimed` it uses the claim's orders
    and conversion. Under `proven` it uses more orders and the tighter conversion. If
    the noise may decay, it uses one order alone, chosen before the first lot: a filter,
    so that the budget holds for all noise that may follow (`accounting.filters`).

    Args:
        sampler: sampler of the Poisson lots. `BudgetPlan` documents arguments that are
            missing here.
        multiplier: z of the first lot.
        decay: factor of the noise after a number of falls of the loss.
        patience: number of falls in a row that trigger the decay.
        extra: number of further releases of a lot besides the gradients', of the same
            multiplier; the paper's claim omits them.
        beside: z of a round's other sums, with constant noise.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        sampler: Sampler,
        multiplier: float,
        decay: float,
        patience: int,
        claims: Claims,
        mechanism: str,
        counted: bool = True,
        extra: int = 0,
        beside: Sequence[float | None] = (),
        ratios: Sequence[float] = (),
    ) -> None:
        if (mechanism, sampler["kind"]) != ("gaussian", "poisson-lots"):
            raise DpsumError(
                "noise that follows a loss is accounted for as gaussian noise on"
                f" poisson-lots, not as {mechanism} noise on {sampler['kind']}"
            )
        if None in beside:
            raise DpsumError(
                "a sum has no noise multiplier, but another sum's noise follows a"
                " loss or is released twice: give each a multiplier"
            )
        # The limit is kept lot by lot, and does not determine the number of rounds.
        super().__init__(
            Budget(delta=budget.delta),
            sampler=sampler,
            multiplier=multiplier,
            claims=claims,
            mechanism=mechanism,
            counted=counted,
            beside=beside,
            ratios=ratios,
        )
        _check_claimed(budget, claims)
        self._decay = decay
        self._patience = patience
        self._extra = extra
        if budget.epsilon is not None and budget.stop:
            self._limit = budget.epsilon
        else:
            self._limit = math.inf
        claim = claims.get(sampler["kind"])
        self._orders, self._is_proven = orders_of(budget.profile, claim)
        if self._is_proven and decay < 1 and math.isfinite(self._limit):
            gradients = self.multipliers[:1] * extra
            z = joint_multiplier(gradients + self.multipliers)
            self._orders = filter_order(
                z,
                sampler["rate"],
                PROVEN_ORDERS,
                epsilon=self._limit,
                delta=self.delta,
            )
        # A claim that does not add up divergences gives no epsilon lot by lot.
        follows = bool(claims) and (claim is None or bool(claim.orders))
        self._claimed_orders: tuple[float, ...] = ()
        self._tight = False
        if follows:
            self._claimed_orders, self._tight = orders_of("claimed", claim)
        self._spent = np.zeros(len(self._orders))
        self._claimed = np.zeros(len(self._claimed_orders))
        self._lots = 0
        self._losses = list[float]()
        self._seen = 0

    def _cost(self, orders: tuple[float, ...], *, is_proven: bool) -> np.ndarray:
        """Return the divergences of one lot, at each order.

        The paper's claim counts the configured multipliers, and not the further
        releases of the clipping rule.
        """
        if is_proven:
            multipliers = self.multipliers[:1] * self._extra + self.multipliers
        else:
            multipliers = self._counted_multipliers("claimed")
        z = joint_or_only(multipliers)
        return renyi(z, self.sampler["rate"], orders)

    def allows(self, releases: int) -> bool:
        """Return whether this total number of lots, at the present noise, fits."""
        if releases > self.lots_allowed:
            return False
        cost = self._cost(self._orders, is_proven=self._is_proven)
        spent = self._spent + (releases - self._lots) * cost
        epsilon = epsilon_of(spent, self._orders, self.delta, tight=self._is_proven)
        return epsilon <= self._limit

    def charge(self) -> None:
        cost = self._cost(self._orders, is_proven=self._is_proven)
        self._spent = self._spent + cost
        if self._claimed_orders:
            cost = self._cost(self._claimed_orders, is_proven=False)
            self._claimed = self._claimed + cost
        self._lots += 1

    def epsilon_spent(self, done: int) -> tuple[float, float]:
        """Return the claimed epsilon, and NaN: the account computes the proven one.

        The second value is infinity where a release has no ledger entry.
        """
        claimed = math.nan
        if self._claimed_orders:
            claimed = epsilon_of(
                self._claimed, self._claimed_orders, self.delta, tight=self._tight
            )
        if self.counted:
            return claimed, math.nan
        return claimed, math.inf

    def observe(self, loss: float) -> None:
        """Multiply the noise by the decay after a number of falls of the loss in a row.

        For 3 falls the condition is J(t-3) > J(t-2) > J(t-1) > J(t). J(w_0) = J(w_1) =
        J(w_2) = infinity (Section IV-B): the losses of the first two rounds are not
        used.
        """
        self._seen += 1
        if self._seen < self._patience:
            loss = math.inf
        losses = [*self._losses, loss]
        self._losses = losses[-(self._patience + 1) :]
        latest = [math.inf, *self._losses]
        latest = latest[-self._patience - 1 :]
        falls = [later < earlier for earlier, later in itertools.pairwise(latest)]
        if len(falls) == self._patience and all(falls):
            self.multipliers[0] *= self._decay

    def state(self) -> dict[str, Any]:
        return {
            "noise_multiplier": self.multipliers[0],
            "lots": self._lots,
            "losses": list(self._losses),
            "seen": self._seen,
            "spent": self._spent.tolist(),
            "claimed": self._claimed.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.multipliers[0] = state["noise_multiplier"]
        self._lots = state["lots"]
        self._losses = list(state["losses"])
        self._seen = state["seen"]
        self._spent = np.array(state["spent"])
        self._claimed = np.array(state["claimed"])


def _share_noise(total: float, multipliers: Sequence[float | None]) -> list[float]:
    """Return multipliers of releases that together cost at most one of `total`.

    Multipliers that are None get equal values: with n of them besides fixed ones z_i,
    each is (n / (total^-2 - sum of z_i^-2))^1/2.
    """
    fixed = [z for z in multipliers if z is not None]
    missing = multipliers.count(None)
    if not missing:
        return fixed
    share = total
    if len(multipliers) > 1:
        squares = math.fsum(z**-2 for z in fixed)
        remaining = total**-2 - squares
        if remaining <= 0:
            raise DpsumError(
                f"the budget allows a joint noise multiplier of {total:g} for all"
                " sums of these units, but the sums with fixed multipliers already"
                f" have {joint_multiplier(fixed):g}: raise a multiplier or"
                " budget.epsilon"
            )
        share = rounded_up((missing / remaining) ** 0.5)
        while joint_multiplier([*fixed, *[share] * missing]) < total:
            share = math.nextafter(share, math.inf)
    return [share if z is None else z for z in multipliers]


def _divide_by_ratios(
    multipliers: Sequence[float | None], ratios: Sequence[float]
) -> list[Any]:
    """Return each multiplier over its ratio; None stays None."""
    return [
        None if z is None else z / ratio
        for z, ratio in zip(multipliers, ratios, strict=True)
    ]


def _check_claimed(budget: Budget, claims: Claims) -> None:
    if budget.epsilon is not None and budget.profile == "claimed" and not claims:
        raise DpsumError(f"budget.profile is claimed, but {NO_CLAIM}: set it to proven")
