"""The sums of one run, composed: their noise, and the epsilon spent (`Composition`)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpsum.accounting.analyses import known, within_task
from dpsum.accounting.budget_plans import BudgetPlan
from dpsum.accounting.claims import Claims
from dpsum.accounting.units import cannot_compose
from dpsum.budget import Budget
from dpsum.errors import DpsumError
from dpsum.participation import DrawnBy, PoissonLots, UnitDraw
from dpsum.sums import CompositionGroup, SumSpec, composition_groups


def calibrated(
    sums: Sequence[SumSpec],
    participation: DrawnBy,
) -> tuple[SumSpec, ...]:
    """Return the sums of a run with the noise multipliers that their budget needs.

    A multiplier that is given stays. Sums that read the same units share one budget.
    The multipliers that are None are then the smallest equal ones for which all planned
    rounds fit the budget, rounded up to four digits.

    Args:
        sums: specifications of all sums of the run.
        participation: draws the units of all sums.

    Raises:
        DpsumError: a sum has neither a multiplier nor a budget with an epsilon, no
            noise meets the budget, or no analysis composes the sums.
    """
    return Composition(sums=sums).calibrate(sums, participation)


@dataclasses.dataclass(frozen=True)
class _Share:
    """A sum's share of a budget plan.

    Attributes:
        plan: the plan.
        position: position of the sum among the sums of the plan.
        spec: specification for which the plan was made.
    """

    plan: BudgetPlan
    position: int
    spec: SumSpec


def _read_by_plan(spec: SumSpec) -> tuple[Any, ...]:
    """Return what a plan reads of a sum: it holds for all sums that agree in this."""
    return (
        spec.noise,
        spec.adjacency,
        spec.moves,
        spec.private_rule.private,
        spec.claimed_ratio,
    )


class Composition:
    """The sums of one run, composed: their noise, and the epsilon spent.

    Sums that read the same units are composed, and share the `Budget` that their
    specifications name. `calibrate` fixes their noise, before their mechanisms exist.

    Args:
        claims: the paper's accounting, by kind of sampler.
        unaccounted_releases: reasons why something that was computed from private data
            before the first round, and is published with the releases, has no ledger
            entry of its own. If there is any, no finite epsilon is proven for any release.
        unaccounted_units: the same by unit ("client" or "record"). Each reason counts
            for the releases that protect that unit only.
        sums: specifications of all sums of the run, including those that are never
            taken (an audit replaces some of them by canaries). Sums that share a budget
            but are not calibrated in one call must be among them.

    Raises:
        DpsumError: no analysis composes sums that read the same units.
    """

    def __init__(
        self,
        *,
        claims: Claims | None = None,
        unaccounted_releases: Sequence[str] = (),
        unaccounted_units: Mapping[str, Sequence[str]] | None = None,
        sums: Sequence[SumSpec] = (),
    ) -> None:
        composition_groups(sums)
        self.claims = claims or {}
        self.unaccounted_releases = tuple(unaccounted_releases)
        self._unaccounted_units = dict(unaccounted_units or {})
        self._sums = {spec.name: spec for spec in sums if spec.private}
        self._draws: dict[str, UnitDraw] = {}
        self._plans: dict[str, tuple[BudgetPlan, int]] = {}
        self._shares: dict[str, _Share] = {}
        self._own_costs: dict[str, tuple[float, float]] = {}
        self._claimed = set[str]()

    def unaccounted_of(self, unit: str) -> tuple[str, ...]:
        """Return why no finite epsilon is proven for releases that protect `unit`."""
        of_unit = self._unaccounted_units.get(unit, ())
        return (*self.unaccounted_releases, *of_unit)

    # Calibration

    def calibrate(
        self, sums: Sequence[SumSpec], participation: DrawnBy
    ) -> tuple[SumSpec, ...]:
        """Fix the noise of sums, and return them with their multipliers.

        Sums that read the same units share one plan. Sums without privacy are returned
        as they are.

        Args:
            sums: specifications of sums that the run takes, complete with their groups
                and first thresholds.
            participation: draws the units of these sums.

        Raises:
            DpsumError: a sum has neither a multiplier nor a budget with an epsilon, no
                noise meets the budget, no analysis composes sums that read the same
                units, two sums draw their noise from one stream, or sums share a
                budget whose noise was fixed before.
        """
        private = [spec for spec in sums if spec.private]
        for spec in private:
            self._add(spec, participation)
        groups = composition_groups(list(self._sums.values()))
        for group in groups:
            members = [spec for spec in private if spec in group.sums]
            if members and group.budget is not None:
                self._plan(group, members)
        self._cost_sums_without_budget(groups)
        return tuple(
            spec.with_multiplier(self.noise_multiplier(spec.name))
            if spec.noise is not None and spec.noise.multiplier is None
            else spec
            for spec in sums
        )

    def _add(self, spec: SumSpec, participation: DrawnBy) -> None:
        """Add a private sum that the run takes."""
        if isinstance(participation, PoissonLots):
            raise DpsumError(
                f"{spec.name}: PoissonLots draws each client's records, not a cohort of"
                " clients: use the result of its lots()"
            )
        if spec.name in self._draws:
            raise DpsumError(
                f"two private sums of this run have the name {spec.name}: give each its"
                " own name"
            )
        has_limit = spec.budget is not None and spec.budget.epsilon is not None
        if spec.private_noise.multiplier is None and not has_limit:
            raise DpsumError(
                f"{spec.name} has no noise multiplier: give one, or a budget with an"
                " epsilon"
            )
        for name in self._draws:
            for shared in spec.stream_purposes & self._sums[name].stream_purposes:
                raise DpsumError(
                    f"two sums of this run draw their noise from the stream {shared!r}:"
                    " give one of them another stream or, if a clipping rule owns the"
                    " stream, another rule"
                )
        self._sums[spec.name] = spec
        self._draws[spec.name] = UnitDraw.of(participation, spec.name)

    def _plan(self, group: CompositionGroup, members: Sequence[SumSpec]) -> None:
        """Compute the plan of a group of sums, or check that its plan has new members.

        Args:
            group: sums that read the same units.
            members: those of them that were just added.
        """
        taken = [spec for spec in group.sums if spec.name in self._draws]
        for spec in taken[1:]:
            self._check_drawn_alike(taken[0], spec)
        added = [spec.name for spec in members]
        before = [spec for spec in taken if spec.name not in added]
        if before:
            self._check_in_plan(members, before[0])
            return
        draw = self._draws[taken[0].name]
        has_private_rules = all(spec.private_rule.private for spec in group.sums)
        plan = group.plan(
            draw.sampler,
            claims=self.claims,
            counted=has_private_rules and not self.unaccounted_of(taken[0].unit),
            ratios=[spec.claimed_ratio for spec in group.sums],
        )
        self._plans[members[0].name] = plan, draw.steps
        for position, spec in enumerate(group.sums):
            self._shares[spec.name] = _Share(plan, position, spec)

    def _check_drawn_alike(self, first: SumSpec, second: SumSpec) -> None:
        """Refuse two sums of one budget whose cohorts are not one draw.

        Draws that an observer may know cost the same, whether they are one or two.

        Raises:
            DpsumError: the samplers differ, or the cohorts are drawn apart.
        """
        samplers = [self._draws[spec.name].sampler for spec in (first, second)]
        if known(first.private_noise.mechanism, samplers[0].kind):
            samplers = [dataclasses.replace(sampler, draw=None) for sampler in samplers]
        if samplers[0] == samplers[1]:
            return
        why = "are not sampled alike"
        if samplers[0] | {"draw": ""} == samplers[1] | {"draw": ""}:
            why = "have cohorts of their own draws, which no budget covers together"
        raise DpsumError(
            cannot_compose(first.name, second.name, first.unit, first.part, why)
        )

    def _check_in_plan(self, members: Sequence[SumSpec], before: SumSpec) -> None:
        """Refuse sums that the plan of a sum that was added before does not cover."""
        for spec in members:
            share = self._shares.get(spec.name)
            if share is None or _read_by_plan(spec) != _read_by_plan(share.spec):
                raise DpsumError(
                    f"{spec.name} shares the budget of {before.name}, whose noise is"
                    " fixed already: calibrate both sums in one call"
                )

    def _cost_sums_without_budget(self, groups: Sequence[CompositionGroup]) -> None:
        """Compute what sums without a budget cost the units of the run's budget."""
        budgeted = [spec for spec in self._sums.values() if spec.budget is not None]
        for group in groups:
            taken = [spec for spec in group.sums if spec.name in self._draws]
            if not taken or not budgeted or group.budget is not None:
                continue
            spec = taken[0]
            budget = budgeted[0].budget
            assert budget is not None
            if budgeted[0].unit == spec.unit and spec.name not in self._own_costs:
                self._own_costs[spec.name] = self._own_cost(budget, spec)

    def _own_cost(self, budget: Budget, spec: SumSpec) -> tuple[float, float]:
        """Return epsilon (claimed, proven) of within-task sums that have no budget.

        Each client takes such a sum once, over one part of its records; a sum over
        another part has the budget. The cost is complete after the first round and
        does not grow. A record may be in either part, so the limit applies to both.

        Raises:
            DpsumError: the cost is above the limit of the budget.
        """

        def epsilon(profile: str) -> float:
            z = self.noise_multiplier(spec.name)
            sampler = self._draws[spec.name].sampler
            return within_task.epsilon_under(
                profile, sampler, z, budget.delta, claims=self.claims
            )

        cost = epsilon(budget.profile)
        if budget.epsilon is not None and budget.stop and cost > budget.epsilon:
            raise DpsumError(
                f"{spec.name} costs a record epsilon {cost:.4g} at"
                f" budget.delta {budget.delta:g}, more than budget.epsilon"
                f" ({budget.epsilon:g}) allows for all sums over records: raise"
                " within_task.multiplier or budget.epsilon"
            )
        claimed = math.nan
        if self.claims:
            claimed = epsilon("claimed")
        if self.unaccounted_of(spec.unit):
            return claimed, math.inf
        return claimed, epsilon("proven")

    # Calibrated sums

    def claim(self, spec: SumSpec, draw: UnitDraw) -> None:
        """Reserve a sum for the one mechanism that takes it.

        Args:
            spec: the calibrated specification.
            draw: how the mechanism draws the units.

        Raises:
            DpsumError: the sum was not calibrated, or for another participation, or
                another mechanism takes it.
        """
        if not spec.private:
            return
        if self._draws.get(spec.name) != draw:
            raise DpsumError(
                f"{spec.name} was not calibrated for this participation: create its"
                " mechanism from what calibrate() of the composition returns"
            )
        if spec.name in self._claimed:
            raise DpsumError(
                f"{spec.name} has a mechanism already, and a second one would draw the"
                " same noise: give the second sum a name and a stream of its own"
            )
        self._claimed.add(spec.name)

    @property
    def budgeted(self) -> list[SumSpec]:
        """Sums that the run takes and whose noise follows from a budget."""
        return [self._sums[name] for name in self._draws if name in self._shares]

    def plan_of(self, name: str) -> BudgetPlan | None:
        """Return the budget plan of a sum; None if it has no budget."""
        share = self._shares.get(name)
        if share is None:
            return None
        return share.plan

    def noise_multiplier(self, name: str) -> float:
        """Return z of a sum's next release, as the budget is charged for it.

        Where groups of coordinates are clipped, it is the proven multiplier.
        """
        share = self._shares.get(name)
        if share is not None:
            return share.plan.multipliers[share.position]
        spec = self._sums[name]
        multiplier = spec.private_noise.multiplier
        assert multiplier is not None
        return float(multiplier) / spec.claimed_ratio

    @property
    def duration_is_public(self) -> bool:
        """Whether the duration of a round may be published.

        Not where the account treats the cohort as secret, since the duration reveals
        the cohort's size. Nor where each client's message is rounded separately, since
        the duration reveals how often a rounding was drawn again.
        """
        for name, draw in self._draws.items():
            noise = self._sums[name].private_noise
            if noise.one_by_one or not known(noise.mechanism, draw.sampler.kind):
                return False
        return True

    # Rounds

    def charge(self, name: str) -> None:
        """Charge one round of a sum.

        Sums that share a plan are charged once a round, together.
        """
        if name in self._plans:
            plan, _ = self._plans[name]
            plan.charge()

    def epsilon_spent(self, rounds: int) -> dict[str, float]:
        """Return the claimed and the proven epsilon after a number of rounds.

        Sums that read the same units are composed. Over sums on disjoint parts of the
        records, the largest epsilon counts. See `accounting.units`.
        """
        epsilon_pairs = [
            plan.epsilon_spent(rounds * steps) for plan, steps in self._plans.values()
        ]
        for own_cost in self._own_costs.values():
            epsilon_pairs.append(own_cost if rounds else (0.0, 0.0))
        if not epsilon_pairs:
            return {}
        claimed, proven = np.max(epsilon_pairs, axis=0)
        return {"epsilon_claimed": float(claimed), "epsilon_proven": float(proven)}

    def allows(self, rounds: int) -> bool:
        """Return whether the budget has room for this total number of rounds."""
        return all(plan.allows(rounds * steps) for plan, steps in self._plans.values())

    def expected_rounds(self, planned: int) -> int:
        """Return how many of the planned rounds the budget allows, for the time left.

        An upper bound: noise that decays costs more, so that fewer rounds will run.
        """
        allowed = [plan.lots_allowed // steps for plan, steps in self._plans.values()]
        return min([planned, *allowed])

    def observe(self, loss: float) -> None:
        """Pass a public validation loss on to noise that decays with it."""
        for plan, _ in self._plans.values():
            plan.observe(loss)
