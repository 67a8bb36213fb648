"""Budget plans: the noise of a private run, the rounds that it allows, and the epsilon
spent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsum.accounting.analyses import find
from dpsum.accounting.calibration import Given, calibrate, epsilon_after, rounds_allowed
from dpsum.accounting.claims import NO_CLAIM, Claims
from dpsum.accounting.context import BudgetLimits
from dpsum.accounting.filters import filter_order, orders_of
from dpsum.accounting.gaussian import joint_multiplier, joint_or_only, rounded_up
from dpsum.accounting.renyi import HOLDING_ORDERS, epsilon_of, renyi
from dpsum.errors import DpsumError
from dpsum.sampling import Sampler


class BudgetPlan:
    """The noise of a run whose noise stays, and the rounds it may take, fixed before
    the first round.

    Args:
        budget: what may be spent.
        sampler: how units are drawn.
        multiplier: z; None: the smallest that meets the budget.
        claims: the method's.
        mechanism: what the ledger will call the noise.
        counted: whether every release has an event; without, no finite epsilon is proven.
        every_round: whether both epsilons are wanted after every round (slow for a long
            run of lots).
        beside: z of a round's other sums that read the same units; all that are None,
            `multiplier` too, cost the same.
        ratios: of each sum, `multiplier`'s first: its multiplier as it is configured,
            and as the paper counts it, over the one that is proven
            (`CoordinateGroups.claimed_ratio`); none: 1.

    Attributes:
        noise_multiplier, beside: as above, with what was found.
        lots_allowed: releases after which epsilon is still within the budget; training
            stops before the next.

    Raises:
        DpsumError: no noise meets the budget, the pair has no analysis, or the paper
            makes no claim for its profile.
    """

    def __init__(
        self,
        budget: BudgetLimits,
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
        self._given: Given = {"claims": claims, "mechanism": mechanism}
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
                budget.profile, sampler, budget.epsilon, budget.delta, **self._given
            )
        self._ratios = tuple(ratios)
        if not ratios:
            self._ratios = (1.0,) * len(multipliers)
        # A claim for this sampler counts configured multipliers; without one what is
        # proven is claimed.
        self._has_claim = sampler["kind"] in claims
        if budget.profile == "claimed" and self._has_claim:
            configured = _shared(total, multipliers)
            proven = _divided(configured, self._ratios)
        else:
            proven = _shared(total, _divided(multipliers, self._ratios))
        self.noise_multiplier, *self.beside = proven
        self.lots_allowed = int(sampler["rounds"])
        if budget.epsilon is not None and budget.stop:
            limits = budget.delta, budget.epsilon
            together = joint_or_only(self._counted(budget.profile))
            self.lots_allowed = rounds_allowed(
                budget.profile, sampler, together, *limits, **self._given
            )

    @property
    def multipliers(self) -> list[float]:
        """z of each sum of the next round, in the order of the sums."""
        return [self.noise_multiplier, *self.beside]

    def _counted(self, profile: str) -> list[float]:
        """Return the multipliers of a round's releases as a profile counts them."""
        if profile == "claimed" and self._has_claim:
            pairs = zip(self.multipliers, self._ratios, strict=True)
            return [z * ratio for z, ratio in pairs]
        return self.multipliers

    def allows(self, releases: int) -> bool:
        """Whether epsilon is still within the budget after `releases` rounds (or lots)
        in all.
        """
        return releases <= self.lots_allowed

    def took(self, lots: int) -> None:
        """Take note that so many rounds (or lots) were released at the present
        noise.
        """

    def spent(self, done: int) -> tuple[float, float]:
        """Epsilon after `done` rounds, as claimed and as it holds; NaN where nothing is
        claimed, or it takes long.
        """
        if self._given["claims"]:
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
            joint_or_only(self._counted(profile)),
            done,
            self.delta,
            **self._given,
        )

    def observe(self, loss: float) -> None:
        """Take note of the public validation loss; the noise stays as it is."""

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""


class DecayingBudget(BudgetPlan):
    """Noise that decays by a public loss (Adap DP-FL, Section IV-B), spent release by
    release.

    Renyi divergences add up, so that whether one more lot fits is known at once: under
    `claimed` by the claim's orders and conversion; under `proven` by more orders and
    the tighter conversion, and if the noise may decay by one order alone, chosen before
    the first lot: a filter, so that the budget holds for whatever noise comes of it
    (`accounting.filters`).

    Args:
        sampler: Poisson lots; what is not here is as in `BudgetPlan`.
        multiplier: z of the first lot.
        decay: the noise is multiplied by it, after so many `falls` of the loss in a
            row.
        extra: releases a lot beside the gradients', of the same multiplier; the paper's
            claim leaves them out.
        beside: of noise that stays as it is.
    """

    def __init__(
        self,
        budget: BudgetLimits,
        *,
        sampler: Sampler,
        multiplier: float,
        decay: float,
        falls: int,
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
        _check_claimed(budget, claims)
        if None in beside:
            raise DpsumError(
                "the multiplier of a sum is null beside one whose noise follows a loss"
                " or is released twice: give one"
            )
        self.sampler = sampler
        self.delta = budget.delta
        self.counted = counted
        self._ratios = tuple(ratios)
        if not ratios:
            self._ratios = (1.0,) * (1 + len(beside))
        self._has_claim = sampler["kind"] in claims
        self.noise_multiplier, *self.beside = _divided(
            (multiplier, *beside), self._ratios
        )
        self.lots_allowed = int(sampler["rounds"])
        self._decay = decay
        self._falls = falls
        self._extra = extra
        if budget.epsilon is not None and budget.stop:
            self._limit = budget.epsilon
        else:
            self._limit = math.inf
        claim = claims.get(sampler["kind"])
        self._orders, self._holds = orders_of(budget.profile, claim)
        if self._holds and decay < 1 and math.isfinite(self._limit):
            gradients = [self.noise_multiplier] * (1 + extra)
            z = joint_multiplier(gradients + self.beside)
            self._orders = filter_order(
                z,
                sampler["rate"],
                HOLDING_ORDERS,
                epsilon=self._limit,
                delta=self.delta,
            )
        # Of a claim that does not add up divergences nothing is known from lot to lot.
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

    def _cost(self, orders: tuple[float, ...], *, counted_in_full: bool) -> np.ndarray:
        profile = "claimed"
        if counted_in_full:
            profile = "proven"
        multipliers = self._counted(profile)
        if counted_in_full:
            multipliers = [multipliers[0]] * self._extra + multipliers
        z = joint_or_only(multipliers)
        return renyi(z, self.sampler["rate"], orders)

    def allows(self, releases: int) -> bool:
        """Whether lots up to `releases` in all, at the present noise, stay within the
        budget.
        """
        if releases > self.lots_allowed:
            return False
        cost = self._cost(self._orders, counted_in_full=self._holds)
        spent = self._spent + (releases - self._lots) * cost
        epsilon = epsilon_of(spent, self._orders, self.delta, tight=self._holds)
        return epsilon <= self._limit

    def took(self, lots: int) -> None:
        cost = self._cost(self._orders, counted_in_full=self._holds)
        self._spent = self._spent + lots * cost
        if self._claimed_orders:
            cost = self._cost(self._claimed_orders, counted_in_full=False)
            self._claimed = self._claimed + lots * cost
        self._lots += lots

    def spent(self, done: int) -> tuple[float, float]:
        """Epsilon as claimed; infinity where a release has no event, else NaN: the
        account says what is proven.
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
        """After `falls` falls in a row (J(t-3) > J(t-2) > J(t-1) > J(t) for 3) the
        noise is multiplied by the decay.

        J(w_0) = J(w_1) = J(w_2) = infinity (Section IV-B): the losses of the first two
        rounds are not looked at.
        """
        self._seen += 1
        if self._seen < self._falls:
            loss = math.inf
        losses = [*self._losses, loss]
        self._losses = losses[-(self._falls + 1) :]
        latest = [math.inf, *self._losses]
        latest = latest[-self._falls - 1 :]
        falls = [later < earlier for earlier, later in itertools.pairwise(latest)]
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
        self.noise_multiplier = state["noise_multiplier"]
        self._lots = state["lots"]
        self._losses = list(state["losses"])
        self._seen = state["seen"]
        self._spent = np.array(state["spent"])
        self._claimed = np.array(state["claimed"])


def _shared(total: float, multipliers: Sequence[float | None]) -> list[float]:
    """Multipliers of releases that together cost at most what one of `total` does,
    where None are to be found.

    Those found are alike: with n of them beside given ones z_i each is (n / (total^-2 -
    sum of z_i^-2))^1/2.
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
                "the budget allows all sums of these units together one of noise"
                f" multiplier {total:g}, and those that are given have"
                f" {joint_multiplier(fixed):g} already: raise a multiplier or"
                " budget.epsilon"
            )
        share = rounded_up((missing / remaining) ** 0.5)
        while joint_multiplier([*fixed, *[share] * missing]) < total:
            share = math.nextafter(share, math.inf)
    filled = []
    for z in multipliers:
        if z is None:
            z = share
        filled.append(z)
    return filled


def _divided(multipliers: Sequence[float | None], ratios: Sequence[float]) -> list[Any]:
    """Return each multiplier over its ratio; None stays None."""
    quotients: list[Any] = []
    for z, ratio in zip(multipliers, ratios, strict=True):
        if z is not None:
            z = z / ratio
        quotients.append(z)
    return quotients


def _check_claimed(budget: BudgetLimits, claims: Claims) -> None:
    if budget.epsilon is not None and budget.profile == "claimed" and not claims:
        raise DpsumError(f"budget.profile is claimed, but {NO_CLAIM}: set it to proven")
