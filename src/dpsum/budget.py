"""The privacy budget that several mechanisms share, and the epsilon spent of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dpsum.accounting.analyses import own_records
from dpsum.accounting.budgets import BudgetPlan
from dpsum.accounting.claims import Claims
from dpsum.accounting.units import cannot_compose
from dpsum.errors import DpsumError
from dpsum.sampling import Sampling
from dpsum.sums import SumSpec, composition_groups


class Spender(Protocol):
    """Interface of a mechanism to its budget; see `Mechanism`."""

    sum: SumSpec
    sampler: Sampling
    holders: int
    per_round: int

    @property
    def claimed_ratio(self) -> float: ...
    @property
    def noise_multiplier(self) -> float: ...
    @property
    def streams(self) -> set[str]: ...
    @property
    def timed(self) -> bool: ...


class Budget:
    """One limit on the epsilon of several mechanisms.

    Mechanisms that read the same units are composed.

    Args:
        epsilon: the limit. None: no limit; the budget only reports what was spent.
        delta: the delta at which epsilon is stated.
        profile: the accounting that the limit applies to: "proven", or "claimed" (the
            paper's, see `claims`).
        stop: whether the budget refuses rounds beyond the limit. If false, the limit
            only calibrates the noise.
        claims: the paper's accounting, by kind of sampler.
        unaccounted: reasons why something that was computed from private data before
            the first round, and is published with the releases, has no ledger entry of
            its own. If there is any, no finite epsilon is proven for any release.
        unaccounted_units: the same by unit ("client" or "record"). Each reason counts
            for the releases that protect that unit only.
        sums: specifications of all mechanisms that the run has, including those that
            are never created (an audit replaces some of them by canaries). By default
            the sums of the registered mechanisms.

    Raises:
        DpsumError: epsilon is not above 0, delta is not between 0 and 1, or the profile
            is unknown.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float = 1e-6,
        profile: str = "proven",
        stop: bool = True,
        claims: Claims | None = None,
        unaccounted: Sequence[str] = (),
        unaccounted_units: Mapping[str, Sequence[str]] | None = None,
        sums: Sequence[SumSpec] = (),
    ) -> None:
        if epsilon is not None and not epsilon > 0:
            raise DpsumError(
                f"the budget's epsilon is {epsilon}: it must be above 0, or None for no"
                " limit"
            )
        if not 0 < delta < 1:
            raise DpsumError(
                f"the budget's delta is {delta}: it must be between 0 and 1"
            )
        if profile not in ("proven", "claimed"):
            raise DpsumError(
                f"the budget's profile is {profile!r}: it must be proven or claimed"
            )
        self.epsilon = epsilon
        self.delta = delta
        self.profile = profile
        self.stop = stop
        self.claims = claims or {}
        self.unaccounted = tuple(unaccounted)
        self._unaccounted_units = dict(unaccounted_units or {})
        self.mechanisms: list[Any] = []  # each is a Mechanism, which imports this file
        self._sums = tuple(sums)
        self._settled = False
        self._plans = list[tuple[BudgetPlan, int]]()
        self._own = list[tuple[float, float]]()
        self._shared: dict[int, tuple[list[str], BudgetPlan]] = {}

    def unaccounted_of(self, unit: str) -> tuple[str, ...]:
        """Return why no finite epsilon is proven for releases that protect `unit`."""
        of_unit = self._unaccounted_units.get(unit, ())
        return (*self.unaccounted, *of_unit)

    def join(self, mechanism: Spender) -> None:
        """Register a mechanism. All mechanisms register before the first round.

        Raises:
            DpsumError: the noise of all sums is fixed already, or another mechanism
                draws its noise from the same stream.
        """
        if self._settled:
            raise DpsumError(
                f"{mechanism.sum.name} comes after the noise of all sums was fixed:"
                " enter it with the others"
            )
        for shared in mechanism.streams & set[str]().union(
            *(member.streams for member in self.mechanisms)
        ):
            raise DpsumError(
                f"two sums of this run draw their noise from the stream {shared!r}:"
                " name another, or where it is a clipping rule's own take another rule"
                " for one of them"
            )
        self.mechanisms.append(mechanism)

    def finalize(self) -> None:
        """Fix the noise and the number of rounds, once all mechanisms are registered.

        Mechanisms that read the same units share one plan.

        Raises:
            DpsumError: no noise meets the budget, or no analysis composes sums that
                read the same units.
        """
        if self._settled:
            return
        self._settled = True
        spenders = {
            spender.sum.name: spender
            for spender in self.mechanisms
            if spender.sum.private
        }
        named = {sum_.name for sum_ in self._sums}
        sums = [
            *self._sums,
            *(spender.sum for name, spender in spenders.items() if name not in named),
        ]
        budget = next(
            (sum_ for sum_ in sums if sum_.private and sum_.budget is not None), None
        )
        for group in composition_groups(sums):
            names = [sum_.name for sum_ in group.sums]
            members = [spenders[name] for name in names if name in spenders]
            if not members:
                continue
            first = members[0]
            counted = not self.unaccounted_of(first.sum.unit)
            if first.sum.budget is not None:
                for member in members[1:]:
                    if member.sampler != first.sampler:
                        raise DpsumError(
                            cannot_compose(
                                first.sum.name,
                                member.sum.name,
                                first.sum.unit,
                                first.sum.part,
                            )
                        )
                counted = counted and all(
                    sum_.clipping is not None and sum_.clipping.private
                    for sum_ in group.sums
                )
                plan = group.plan(
                    first.sampler,
                    claims=self.claims,
                    counted=counted,
                    stepwise=bool(first.holders),
                    ratios=[
                        spenders[name].claimed_ratio if name in spenders else 1.0
                        for name in names
                    ],
                )
                self._shared |= {id(spender): (names, plan) for spender in members}
                self._plans.append((plan, first.per_round))
            elif budget is not None and budget.unit == first.sum.unit:
                cost = self._own_cost(budget.budget, first, counted=counted)
                self._own.append(cost)

    def _own_cost(
        self, budget: Any, spender: Spender, *, counted: bool
    ) -> tuple[float, float]:
        """Return epsilon (claimed, proven) of within-task sums that have no budget.

        Each client takes such a sum once, over one part of its records; a sum over
        another part has the budget. The cost is complete after the first round and
        does not grow. A record may be in either part, so the limit applies to both.

        Raises:
            DpsumError: the cost is above the limit of the budget.
        """

        def epsilon(profile: str) -> float:
            z = spender.noise_multiplier
            return own_records.epsilon_under(
                profile, spender.sampler, z, budget.delta, claims=self.claims
            )

        cost = epsilon(budget.profile)
        if budget.epsilon is not None and budget.stop and cost > budget.epsilon:
            raise DpsumError(
                f"{spender.sum.name} costs a record epsilon {cost:.4g} at budget.delta"
                f" {budget.delta:g}, more than budget.epsilon ({budget.epsilon:g})"
                " allows for all that reads records: raise within_task.multiplier or"
                " budget.epsilon"
            )
        claimed = math.nan
        if self.claims:
            claimed = epsilon("claimed")
        if not counted:
            return claimed, math.inf
        return claimed, epsilon("proven")

    def shared(self, mechanism: Spender) -> tuple[list[str], BudgetPlan] | None:
        """Return the names of the sums that share a mechanism's plan, and the plan.

        None where the mechanism's noise does not follow from a budget.
        """
        self.finalize()
        return self._shared.get(id(mechanism))

    def plan_of(self, mechanism: Spender) -> Any:
        """Return the plan of a mechanism's noise; None if no budget determines it."""
        shared = self.shared(mechanism)
        if shared is None:
            return None
        return shared[1]

    def charge(self, mechanism: Spender) -> None:
        """Charge one round of a mechanism.

        Mechanisms that share a plan are charged once a round, together.
        """
        if (shared := self.shared(mechanism)) is not None:
            names, plan = shared
            sharing = [
                spender for spender in self.mechanisms if spender.sum.name in names
            ]
            if sharing[0] is mechanism:
                plan.took(1)

    @property
    def timed(self) -> bool:
        """Whether the duration of rounds may be published.

        It may where it reveals nothing about a secret cohort.
        """
        return all(spender.timed for spender in self.mechanisms)

    @property
    def budgeted(self) -> list[Any]:
        """Mechanisms whose noise follows from a budget."""
        return [
            spender for spender in self.mechanisms if self.shared(spender) is not None
        ]

    def spent(self, rounds: int) -> dict[str, float]:
        """Return the claimed and the proven epsilon after a number of rounds.

        Sums that read the same units are composed. Over sums on disjoint parts of the
        records, the largest epsilon counts. See `accounting.units`.
        """
        self.finalize()
        epsilon_pairs = [
            plan.spent(rounds * per_round) for plan, per_round in self._plans
        ]
        if rounds:
            epsilon_pairs += self._own
        else:
            epsilon_pairs += [(0.0, 0.0)] * len(self._own)
        names = ("epsilon_claimed", "epsilon_proven")
        return {
            name: float(np.max(epsilons))
            for name, epsilons in zip(
                names, zip(*epsilon_pairs, strict=True), strict=False
            )
        }

    def allows(self, rounds: int) -> bool:
        """Return whether the budget has room for this total number of rounds."""
        self.finalize()
        return all(plan.allows(rounds * per_round) for plan, per_round in self._plans)

    def expected(self, planned: int) -> int:
        """Return how many of the planned rounds the budget allows, for the time left.

        An upper bound: noise that decays costs more, so that fewer rounds will run.
        """
        self.finalize()
        rounds = [planned]
        for plan, per_round in self._plans:
            rounds.append(plan.lots_allowed // per_round)
        return min(rounds)

    def observe(self, loss: float) -> None:
        """Pass a public validation loss on to noise that decays with it."""
        self.finalize()
        for plan, _ in self._plans:
            plan.observe(loss)
