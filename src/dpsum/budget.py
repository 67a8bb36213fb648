"""The budget that several mechanisms share, and what they have spent of it."""

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
    """Members of a mechanism that its budget reads; see `Mechanism`."""

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
    """Limit on what all its mechanisms spend together; the units that they read decide
    which of them compose.

    Args:
        epsilon: the limit; None: there is none, and what is spent is only told.
        delta: at which epsilon is counted.
        profile: whose epsilon the limit is for: "proven", or "claimed" (the
            accounting that `claims` has).
        stop: whether the limit is kept; else it is only what noise is found by.
        claims: the accounting of a paper, by kind of sampler.
        unaccounted: why something that was computed from private data before the first
            round, and that leaves with the releases, has no event of its own; nothing
            finite holds of any release then.
        unaccounted_units: the same by unit ("client" or "record"), of what leaves with
            the releases that protect that unit, and of no other release.
        sums: of all mechanisms to come, also those that nobody makes: an audit puts
            canaries in place of some. By default those that join.

    Raises:
        DpsumError: a limit, a delta or a profile that cannot be.
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
        """Return why nothing finite is proven for releases that protect `unit`."""
        of_unit = self._unaccounted_units.get(unit, ())
        return (*self.unaccounted, *of_unit)

    def join(self, mechanism: Spender) -> None:
        """Take in a mechanism before the first round; DpsumError where that was, or
        another has its stream of noise.
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

    def settle(self) -> None:
        """Fix what may be spent and the noise, once all mechanisms have joined: one
        plan for those that read the same.

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
        """Return epsilon of clients' own sums over a part of their examples, beside a
        sum over another part that has a budget.

        Each client takes its own once, and with the first round one has: what they cost
        is known, and does not grow. A record may be in the one or in the other, so that
        the budget is for both.
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
        return epsilon("claimed") if self.claims else math.nan, (
            epsilon("proven") if counted else math.inf
        )

    def shared(self, mechanism: Spender) -> tuple[list[str], BudgetPlan] | None:
        """The sums that share a mechanism's budget, by name, and their plan; None where
        its noise follows from none.
        """
        self.settle()
        return self._shared.get(id(mechanism))

    def plan_of(self, mechanism: Spender) -> Any:
        """The plan of a mechanism's noise; None where its noise follows from no
        budget.
        """
        shared = self.shared(mechanism)
        if shared is None:
            return None
        return shared[1]

    def charge(self, mechanism: Spender) -> None:
        """Take note of a round of a mechanism: a round of all that share a plan is
        charged for once.
        """
        if (shared := self.shared(mechanism)) is not None:
            names, plan = shared
            if (
                next(
                    spender for spender in self.mechanisms if spender.sum.name in names
                )
                is mechanism
            ):
                plan.took(1)

    @property
    def timed(self) -> bool:
        """Whether the time of a round, or of all, may be published: it tells nothing of
        a cohort that is secret.
        """
        return all(spender.timed for spender in self.mechanisms)

    @property
    def budgeted(self) -> list[Any]:
        """The mechanisms whose noise follows from a budget."""
        return [
            spender for spender in self.mechanisms if self.shared(spender) is not None
        ]

    def spent(self, rounds: int) -> dict[str, float]:
        """Epsilon after so many rounds, as claimed and as it holds; see
        `accounting.units`.

        Sums that read the same units are composed; of sums over disjoint parts of the
        records it is the largest.
        """
        self.settle()
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
        """Whether there is room for so many rounds in all."""
        self.settle()
        return all(plan.allows(rounds * per_round) for plan, per_round in self._plans)

    def expected(self, planned: int) -> int:
        """Rounds to come of those planned, for the time left on screen; with noise that
        decays there will be fewer.
        """
        self.settle()
        return min(
            [
                planned,
                *(plan.lots_allowed // per_round for plan, per_round in self._plans),
            ]
        )

    def observe(self, loss: float) -> None:
        """Take note of a public validation loss, which noise may follow."""
        self.settle()
        for plan, _ in self._plans:
            plan.observe(loss)
