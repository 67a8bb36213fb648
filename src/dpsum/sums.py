"""Specifications of private sums: their units and observers, clipping and noise.

Sums that read the same units are composed and share one budget (`composition_groups`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dpsum.accounting.units import by_part, by_unit, cannot_compose, check_part
from dpsum.budget import Budget
from dpsum.clipping import ClippingRule
from dpsum.errors import DpsumError
from dpsum.group_clipping import CoordinateGroups
from dpsum.noise import Noise

if TYPE_CHECKING:
    from dpsum.accounting.budget_plans import BudgetPlan
    from dpsum.accounting.claims import Claims
    from dpsum.sampling import Sampler


class Transform(Protocol):
    """Transform of each contribution before it is clipped."""

    @property
    def trivial(self) -> bool:
        """Whether it is the identity."""

    def rows(self, contributions: Any, /) -> Any:
        """Return the contributions [n, d], transformed; an array of any library."""


class WithinTaskLimits(Protocol):
    """Settings that determine the noise of a few-shot client's own sum."""

    @property
    def delta(self) -> float:
        """Delta at which epsilon of the sum is stated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumSpec:
    """Specification of a sum that the server or a client takes.

    Attributes:
        name: name of the release in the ledger.
        unit: whose contribution is protected: "client" or "record".
        observer: who sees the release: "server" or "everyone".
        taken_by: who adds up: "server", or "client" where each client takes its own
            sum.
        clipping, noise: both None where the sum is released without clipping and noise,
            and claims no privacy. A multiplier of None is found by `calibrated`.
        transform: transform of each contribution before clipping; None: no transform.
        groups: groups of coordinates, each with its own threshold and noise; None: all
            coordinates are clipped to one norm. `clipping.threshold` may have one value
            for each group.
        budget: limit on epsilon of the sum.
        within_task: for a few-shot client's own sum, the settings that determine its
            noise.
        adjacency: difference between neighbouring inputs: "zero-out", or "replace-one"
            where a unit is always present.
        stream: purpose of the random stream of its noise; no two sums of a run share
            one.
        stream_indices: parts of the names of its random streams of noise: some of
            "round", "step" and "client"; None: "round", and with holders all three.
        denominator: public number that the sum is divided by, where it is not that of
            the participation.
        part: for a sum over records, the part of a client's records that it reads,
            where each record is in one part alone; "": all records.
        shape: shape of a contribution that is no vector of the caller's `dimension`,
            such as (1,) for a number; None: it is one.
        added: whether the clients' releases are added up, so that all but the observer
            see only their own release and the total.

    Raises:
        DpsumError: a sum over clients names a part of their records, or a shape is
            empty.
    """

    name: str
    unit: str
    observer: str
    taken_by: str = "server"
    clipping: ClippingRule | None = None
    noise: Noise | None = None
    transform: Transform | None = None
    groups: CoordinateGroups | None = None
    budget: Budget | None = None
    within_task: WithinTaskLimits | None = None
    adjacency: str = "zero-out"
    stream: str = "noise"
    stream_indices: tuple[str, ...] | None = None
    denominator: float | None = None
    part: str = ""
    added: bool = False
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a part of the records where the unit is not the record, and a shape
        without coordinates.
        """
        if self.part:
            check_part(self)
        sizes = self.shape or (1,)
        if self.shape == () or any(type(size) is not int or size < 1 for size in sizes):
            raise DpsumError(
                f"the shape of {self.name} is {self.shape}: give positive whole numbers,"
                " such as (1,) for a number"
            )

    @functools.cached_property
    def private(self) -> bool:
        """Whether the sum is clipped and noised."""
        return self.noise is not None

    @property
    def private_rule(self) -> ClippingRule:
        """Clipping rule of a private sum."""
        if self.clipping is None:
            raise DpsumError(f"{self.name} is not clipped: give it a clipping rule")
        return self.clipping

    @property
    def private_noise(self) -> Noise:
        """Noise of a private sum."""
        if self.noise is None:
            raise DpsumError(f"{self.name} has no noise: give it a noise")
        return self.noise

    @property
    def claimed_ratio(self) -> float:
        """The configured noise multiplier divided by the proven one."""
        if self.groups is not None:
            return self.groups.claimed_ratio
        if self.clipping is None or self.clipping.threshold is None:
            return 1.0
        if self.adjacency == "replace-one":
            reach = 2.0
        else:
            reach = 1.0
        return float(self.clipping.claimed_ratio(reach * self.clipping.threshold))

    def with_first_threshold(self, threshold: float) -> SumSpec:
        """Return the sum with the first threshold of a rule that does not state one."""
        clipping = dataclasses.replace(self.private_rule, threshold=threshold)
        return dataclasses.replace(self, clipping=clipping)

    def with_multiplier(self, noise_multiplier: float) -> SumSpec:
        """Return the sum with the multiplier of its noise, as a configuration has it.

        Args:
            noise_multiplier: z that the account counts. The configured multiplier is
                larger where the paper counts another one (`claimed_ratio`).
        """
        configured = noise_multiplier * self.claimed_ratio
        while configured / self.claimed_ratio < noise_multiplier:
            configured = math.nextafter(configured, math.inf)
        noise = dataclasses.replace(self.private_noise, multiplier=configured)
        return dataclasses.replace(self, noise=noise)

    @property
    def stream_purposes(self) -> set[str]:
        """Purposes of its random noise streams: the sum's and the clipping rule's."""
        if self.clipping is None:
            return set()
        purposes = {self.stream}
        # The names depend neither on the threshold nor on the multiplier.
        extra = self.clipping.extra(
            self.clipping.begin(1.0), noise_multiplier=1.0, cohort=1.0
        )
        if extra is not None:
            purposes.add(extra.stream)
        return purposes

    @property
    def delta(self) -> float | None:
        """Delta at which its epsilon is stated."""
        limits = self.budget or self.within_task
        if limits is None:
            return None
        return float(limits.delta)

    @functools.cached_property
    def moves(self) -> bool:
        """Whether the cost of a round is not fixed by the multiplier beforehand.

        That is so where the noise follows a loss, or the clipping rule makes a release
        whose cost comes on top.
        """
        rule = self.clipping
        noise = self.noise
        return noise is not None and (
            noise.follows_loss or (rule is not None and rule.uncounted)
        )


@dataclasses.dataclass(frozen=True)
class CompositionGroup:
    """The private sums of a run that read the same units.

    One budget limits the composition of all of them. The first is the one that `moves`,
    if any does.
    """

    sums: tuple[SumSpec, ...]

    @property
    def budget(self) -> Budget | None:
        """The one budget of the sums; None if none has a budget."""
        return next((spec.budget for spec in self.sums if spec.budget), None)

    def plan(
        self,
        sampler: Sampler,
        *,
        claims: Claims,
        counted: bool,
        ratios: Sequence[float] = (),
    ) -> BudgetPlan:
        """Return the budget plan of all sums; it counts lot by lot if the cost `moves`.

        Args:
            sampler: how the units are drawn, as in the ledger.
            claims, counted, ratios: see `BudgetPlan`, which also states the errors.

        Raises:
            DpsumError: a multiplier is missing where the cost `moves`.
        """
        # A local import: the workflow reads plans where scipy is not installed.
        from dpsum.accounting.budget_plans import BudgetPlan, DecayingBudgetPlan

        first, *other_sums = self.sums
        noise = first.private_noise
        budget = self.budget
        assert budget is not None
        arguments: dict[str, Any] = {
            "sampler": noise.sampled(sampler),
            "multiplier": noise.multiplier,
            "claims": claims,
            "mechanism": noise.mechanism,
            "counted": counted,
            "beside": [spec.private_noise.multiplier for spec in other_sums],
            "ratios": ratios,
        }
        if not first.moves:
            # A client's own sums have local steps, too many to compute epsilon after
            # each.
            every_round = first.taken_by != "client"
            return BudgetPlan(budget, every_round=every_round, **arguments)
        if noise.multiplier is None:
            raise DpsumError(
                f"{first.name} has no noise multiplier, but its noise follows a loss or"
                " its clipping rule makes a release of its own: give it a multiplier"
            )
        decay, patience = noise.decay_step
        return DecayingBudgetPlan(
            budget,
            decay=decay,
            patience=patience,
            extra=int(first.private_rule.uncounted),
            **arguments,
        )


def composition_groups(sums: Sequence[SumSpec]) -> list[CompositionGroup]:
    """Return the private sums of a run, grouped by the units and parts that they read.

    The sums of one group are composed.

    Raises:
        DpsumError: no analysis composes sums that read the same units, or sums have
            different budgets.
    """
    private = [spec for spec in sums if spec.private]
    _check_names_and_budgets(private)
    groups = list[CompositionGroup]()
    for spec in private:
        check_parts(spec)
    for unit, of_unit in by_unit(private).items():
        for part, same_part in by_part(of_unit).items():
            first = same_part[0]
            for second in same_part[1:]:
                why = _why_apart(first, second)
                if why:
                    raise DpsumError(
                        cannot_compose(first.name, second.name, unit, part, why)
                    )
            moving = [spec.name for spec in same_part if spec.moves]
            if len(moving) > 1:
                why = "their costs are both known only after each lot"
                raise DpsumError(cannot_compose(moving[0], moving[1], unit, part, why))
            ordered = sorted(same_part, key=lambda spec: not spec.moves)
            groups.append(CompositionGroup(tuple(ordered)))
    return groups


def _check_names_and_budgets(private: Sequence[SumSpec]) -> None:
    """Refuse private sums of one name, or with two budgets."""
    names = [spec.name for spec in private]
    for name in names:
        if names.count(name) > 1:
            raise DpsumError(
                f"two private sums of this run have the name {name}: give each its own"
                " name"
            )
    budgeted = [spec for spec in private if spec.budget is not None]
    for spec in budgeted[1:]:
        if (spec.unit, spec.budget) != (budgeted[0].unit, budgeted[0].budget):
            raise DpsumError(
                f"{budgeted[0].name} (of {budgeted[0].unit}s) and {spec.name} (of"
                f" {spec.unit}s) have two budgets: a run has one budget, with one"
                " unit and one delta; give both sums the same"
            )


def check_parts(spec: SumSpec) -> None:
    """Refuse a clipping rule that the analysis of the sum's noise does not cover.

    Raises:
        DpsumError: the noise is correlated over rounds and the threshold moves, or the
            sum is under secure aggregation and the rule makes its own release, or the
            adjacency is not zero-out.
    """
    rule = spec.clipping
    noise = spec.noise
    if rule is None or noise is None:
        return
    if type(noise).combines is not Noise.combines and rule.moves:
        raise DpsumError(
            f"the noise of {spec.name} cancels noise of earlier rounds, but its"
            f" clipping rule {type(rule).__name__} changes the threshold, and noise"
            " at two thresholds does not cancel: take a constant threshold"
        )
    if noise.one_by_one and spec.adjacency != "zero-out":
        raise DpsumError(
            f"{spec.name} is summed by secure aggregation, whose analysis is for zero-out"
            f" adjacency, not {spec.adjacency}: set adjacency to zero-out"
        )
    if noise.one_by_one and type(rule).extra is not ClippingRule.extra:
        raise DpsumError(
            f"{spec.name} is summed by secure aggregation, but its clipping rule"
            f" {type(rule).__name__} makes a further release, which would show the"
            " server each client's contribution: take a constant threshold, or one"
            " that follows releases"
        )


def _why_apart(first: SumSpec, second: SumSpec) -> str:
    """Return why no analysis composes two sums of the same units.

    Returns "" where an analysis does, provided that both have the same sampler.
    """
    if first.within_task is not None or second.within_task is not None:
        return "clients' own sums have a separate account"
    mechanisms = [first.private_noise.mechanism, second.private_noise.mechanism]
    if set(mechanisms) != {"gaussian"}:
        return f"have {mechanisms[0]} and {mechanisms[1]} noise"
    if first.adjacency == second.adjacency:
        return ""
    return f"are for {first.adjacency} and {second.adjacency} adjacency"
