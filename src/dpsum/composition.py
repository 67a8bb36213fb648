"""The mechanisms of one run, composed (`Composition`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpsum.accounting.analyses import known, within_task
from dpsum.accounting.budget_plans import BudgetPlan
from dpsum.accounting.claims import Claims
from dpsum.accounting.units import cannot_compose
from dpsum.budget import Budget
from dpsum.errors import DpsumError
from dpsum.sums import CompositionGroup, SumSpec, composition_groups

if TYPE_CHECKING:
    from dpsum.mechanism import Mechanism


@dataclasses.dataclass(frozen=True)
class _Share:
    """A mechanism's share of a budget plan.

    Attributes:
        plan: the plan.
        position: position of the mechanism's sum among the sums of the plan.
        is_charged: whether the mechanism's rounds are charged; one of each plan.
    """

    plan: BudgetPlan
    position: int
    is_charged: bool


class Composition:
    """The mechanisms of one run, composed: their noise, and the epsilon spent.

    Mechanisms that read the same units are composed, and share the `Budget` that their
    specifications name.

    Args:
        claims: the paper's accounting, by kind of sampler.
        unaccounted_releases: reasons why something that was computed from private data
            before the first round, and is published with the releases, has no ledger
            entry of its own. If there is any, no finite epsilon is proven for any release.
        unaccounted_units: the same by unit ("client" or "record"). Each reason counts
            for the releases that protect that unit only.
        sums: specifications of all mechanisms that the run has, including those that
            are never created (an audit replaces some of them by canaries). By default
            the sums of the registered mechanisms.

    Attributes:
        mechanisms: the registered mechanisms.
    """

    def __init__(
        self,
        *,
        claims: Claims | None = None,
        unaccounted_releases: Sequence[str] = (),
        unaccounted_units: Mapping[str, Sequence[str]] | None = None,
        sums: Sequence[SumSpec] = (),
    ) -> None:
        self.claims = claims or {}
        self.unaccounted_releases = tuple(unaccounted_releases)
        self._unaccounted_units = dict(unaccounted_units or {})
        self.mechanisms: list[Mechanism] = []
        self._sums = tuple(sums)
        self._is_final = False
        self._plans = list[tuple[BudgetPlan, int]]()
        self._own_costs = list[tuple[float, float]]()
        self._shares: dict[Mechanism, _Share] = {}

    def unaccounted_of(self, unit: str) -> tuple[str, ...]:
        """Return why no finite epsilon is proven for releases that protect `unit`."""
        of_unit = self._unaccounted_units.get(unit, ())
        return (*self.unaccounted_releases, *of_unit)

    def register(self, mechanism: Mechanism) -> None:
        """Register a mechanism. All mechanisms register before the first round.

        Raises:
            DpsumError: the noise of all sums is fixed already, or another mechanism
                draws its noise from the same stream.
        """
        if self._is_final:
            raise DpsumError(
                f"{mechanism.spec.name} was created after the noise of all sums was"
                " fixed: create it with the other mechanisms"
            )
        for shared in mechanism.stream_purposes & set[str]().union(
            *(member.stream_purposes for member in self.mechanisms)
        ):
            raise DpsumError(
                f"two sums of this run draw their noise from the stream {shared!r}:"
                " give one of them another stream or, if a clipping rule owns the"
                " stream, another rule"
            )
        self.mechanisms.append(mechanism)

    def finalize(self) -> None:
        """Fix the noise and the number of rounds, once all mechanisms are registered.

        Mechanisms that read the same units share one plan.

        Raises:
            DpsumError: no noise meets the budget, or no analysis composes sums that
                read the same units.
        """
        if self._is_final:
            return
        self._is_final = True
        named = {spec.name for spec in self._sums}
        specs = list(self._sums)
        private: dict[str, Mechanism] = {}
        for mechanism in self.mechanisms:
            spec = mechanism.spec
            if spec.private:
                private[spec.name] = mechanism
                if spec.name not in named:
                    specs.append(spec)
        budgeted = [spec for spec in specs if spec.private and spec.budget is not None]
        for group in composition_groups(specs):
            names = [spec.name for spec in group.sums]
            members = [private[name] for name in names if name in private]
            if not members:
                continue
            first = members[0]
            if first.spec.budget is not None:
                self._add_plan(group, private)
            elif budgeted and budgeted[0].unit == first.spec.unit:
                budget = budgeted[0].budget
                assert budget is not None
                self._own_costs.append(self._own_cost(budget, first))

    def _add_plan(
        self, group: CompositionGroup, private: Mapping[str, Mechanism]
    ) -> None:
        """Compute the plan of a group of sums, which its mechanisms share.

        Args:
            group: sums that read the same units.
            private: the private mechanisms by name, in the order of registration.
        """
        names = [spec.name for spec in group.sums]
        members = [private[name] for name in names if name in private]
        first = members[0]
        for member in members[1:]:
            _check_sampled_alike(first, member)
        has_private_rules = all(
            spec.clipping is not None and spec.clipping.private for spec in group.sums
        )
        ratios = [
            private[name].claimed_ratio if name in private else 1.0 for name in names
        ]
        plan = group.plan(
            first.sampler,
            claims=self.claims,
            counted=has_private_rules and not self.unaccounted_of(first.spec.unit),
            stepwise=bool(first.holders),
            ratios=ratios,
        )
        self._plans.append((plan, first.per_round))
        is_charged = True
        for name, mechanism in private.items():
            if name in names:
                position = names.index(name)
                self._shares[mechanism] = _Share(plan, position, is_charged)
                is_charged = False

    def _own_cost(self, budget: Budget, mechanism: Mechanism) -> tuple[float, float]:
        """Return epsilon (claimed, proven) of within-task sums that have no budget.

        Each client takes such a sum once, over one part of its records; a sum over
        another part has the budget. The cost is complete after the first round and
        does not grow. A record may be in either part, so the limit applies to both.

        Raises:
            DpsumError: the cost is above the limit of the budget.
        """

        def epsilon(profile: str) -> float:
            z = mechanism.noise_multiplier
            return within_task.epsilon_under(
                profile, mechanism.sampler, z, budget.delta, claims=self.claims
            )

        cost = epsilon(budget.profile)
        if budget.epsilon is not None and budget.stop and cost > budget.epsilon:
            raise DpsumError(
                f"{mechanism.spec.name} costs a record epsilon {cost:.4g} at"
                f" budget.delta {budget.delta:g}, more than budget.epsilon"
                f" ({budget.epsilon:g}) allows for all sums over records: raise"
                " within_task.multiplier or budget.epsilon"
            )
        claimed = math.nan
        if self.claims:
            claimed = epsilon("claimed")
        if self.unaccounted_of(mechanism.spec.unit):
            return claimed, math.inf
        return claimed, epsilon("proven")

    def plan_of(self, mechanism: Mechanism) -> BudgetPlan | None:
        """Return the plan of a mechanism's noise; None if no budget determines it."""
        self.finalize()
        share = self._shares.get(mechanism)
        if share is None:
            return None
        return share.plan

    def multiplier_of(self, mechanism: Mechanism) -> float | None:
        """Return the proven z of a mechanism; None if no budget determines it."""
        self.finalize()
        share = self._shares.get(mechanism)
        if share is None:
            return None
        return share.plan.multipliers[share.position]

    def charge(self, mechanism: Mechanism) -> None:
        """Charge one round of a mechanism.

        Mechanisms that share a plan are charged once a round, together.
        """
        self.finalize()
        share = self._shares.get(mechanism)
        if share is not None and share.is_charged:
            share.plan.charge(1)

    @property
    def duration_is_public(self) -> bool:
        """Whether the duration of rounds may be published.

        It may where it reveals nothing about a secret cohort.
        """
        return all(mechanism.duration_is_public for mechanism in self.mechanisms)

    @property
    def budgeted(self) -> list[Mechanism]:
        """Mechanisms whose noise follows from a budget."""
        return [
            mechanism
            for mechanism in self.mechanisms
            if self.plan_of(mechanism) is not None
        ]

    def epsilon_spent(self, rounds: int) -> dict[str, float]:
        """Return the claimed and the proven epsilon after a number of rounds.

        Sums that read the same units are composed. Over sums on disjoint parts of the
        records, the largest epsilon counts. See `accounting.units`.
        """
        self.finalize()
        epsilon_pairs = [
            plan.epsilon_spent(rounds * per_round) for plan, per_round in self._plans
        ]
        if rounds:
            epsilon_pairs += self._own_costs
        else:
            epsilon_pairs += [(0.0, 0.0)] * len(self._own_costs)
        if not epsilon_pairs:
            return {}
        claimed, proven = np.max(epsilon_pairs, axis=0)
        return {"epsilon_claimed": float(claimed), "epsilon_proven": float(proven)}

    def allows(self, rounds: int) -> bool:
        """Return whether the budget has room for this total number of rounds."""
        self.finalize()
        return all(plan.allows(rounds * per_round) for plan, per_round in self._plans)

    def expected_rounds(self, planned: int) -> int:
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


def _check_sampled_alike(first: Mechanism, second: Mechanism) -> None:
    """Refuse two mechanisms of one budget whose cohorts are not one draw.

    Draws that an observer may know cost the same, whether they are one or two.

    Raises:
        DpsumError: the samplers differ, or the cohorts are drawn apart.
    """
    samplers = [first.sampler, second.sampler]
    spec = first.spec
    if known(spec.noise.mechanism, samplers[0].kind):
        samplers = [dataclasses.replace(sampler, draw=None) for sampler in samplers]
    if samplers[0] == samplers[1]:
        return
    why = "are not sampled alike"
    if dict(samplers[0]) | {"draw": ""} == dict(samplers[1]) | {"draw": ""}:
        why = "have cohorts of their own draws, which no budget covers together"
    raise DpsumError(
        cannot_compose(spec.name, second.spec.name, spec.unit, spec.part, why)
    )
