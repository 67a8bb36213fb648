"""Specifications of private sums: their units and observers, clipping and noise.

Sums that read the same units are composed and share one budget (`composition_groups`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpsum.accounting.units import by_part, by_unit, cannot_compose, part_of
from dpsum.clipping import ClippingRule
from dpsum.errors import DpsumError
from dpsum.noise import Noise

if TYPE_CHECKING:
    from dpsum.accounting.budget_plans import BudgetPlan
    from dpsum.accounting.claims import Claims
    from dpsum.budget import Budget
    from dpsum.sampling import Sampler


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumSpec:
    """Specification of a sum that the server or a client takes.

    Attributes:
        name: name of the release in the ledger.
        unit: whose contribution is protected: "client" or "record".
        observer: who sees the release: "server" or "everyone".
        taken_by: who adds up: "server", or "client" where each client takes its own
            sum.
        clipping, noise: a `ClippingRule` and a `Noise`; both None where the sum is
            released without clipping and noise, and claims no privacy.
        transform: transform of each contribution before clipping. Its `rows` transforms
            contributions [n, d]; its `trivial` says that it is the identity. None: no
            transform.
        budget: limit on epsilon of the sum.
        within_task: for a few-shot client's own sum, the settings that determine its
            noise.
        adjacency: difference between neighbouring inputs: "zero-out", or "replace-one"
            where a unit is always present.
        stream: purpose of the random stream of its noise; no two sums of a run share
            one.
        part: for a sum over records, the part of a client's records that it reads,
            where each record is in one part alone; "": all records.
        added: whether the clients' releases are added up, so that all but the observer
            see only their own release and the total.

    Raises:
        DpsumError: a sum over clients names a part of their records.
    """

    name: str
    unit: str
    observer: str
    taken_by: str = "server"
    clipping: Any = None
    noise: Any = None
    transform: Any = None
    budget: Budget | None = None
    within_task: Any = None
    adjacency: str = "zero-out"
    stream: str = "noise"
    part: str = ""
    added: bool = False

    def __post_init__(self) -> None:
        """Refuse a part of the records where the unit is not the record."""
        part_of(self)

    @property
    def private(self) -> bool:
        """Whether the sum is clipped and noised."""
        return self.noise is not None

    def claimed_ratio(self, threshold: float) -> float:
        """Return the configured noise multiplier divided by the proven one.

        Args:
            threshold: clipping threshold of all coordinates together.
        """
        if self.clipping is None:
            return 1.0
        if self.adjacency == "replace-one":
            reach = 2.0
        else:
            reach = 1.0
        return float(self.clipping.claimed_ratio(reach * threshold))

    @property
    def delta(self) -> float | None:
        """Delta at which its epsilon is stated."""
        limits = self.budget or self.within_task
        if limits is None:
            return None
        return float(limits.delta)

    @property
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

    def plan(
        self,
        sampler: Sampler,
        *,
        claims: Claims,
        counted: bool,
        stepwise: bool,
        ratios: Sequence[float] = (),
    ) -> BudgetPlan:
        """Return the budget plan of all sums; it counts lot by lot if the cost `moves`.

        Args:
            sampler: how the units are drawn, as in the ledger.
            claims, counted, ratios: see `BudgetPlan`, which also states the errors.
            stepwise: whether a round is a holder's local step. There are too many local
                steps to compute epsilon after each.
        """
        # A local import: the workflow reads plans where scipy is not installed.
        from dpsum.accounting.budget_plans import DecayingBudgetPlan

        first, *other_sums = self.sums
        noise = first.noise
        budget = first.budget
        assert noise is not None and first.clipping is not None and budget is not None
        arguments: dict[str, Any] = {
            "sampler": noise.sampled(sampler),
            "claims": claims,
            "counted": counted,
            "beside": [sum_.noise.multiplier for sum_ in other_sums],
        }
        if any(ratio != 1.0 for ratio in ratios):
            arguments["ratios"] = ratios
        if not first.moves:
            return noise.plan(budget, every_round=not stepwise, **arguments)
        assert noise.multiplier is not None
        arguments |= {"multiplier": noise.multiplier, "mechanism": noise.mechanism}
        decay, patience = noise.decay_step
        return DecayingBudgetPlan(
            budget,
            decay=decay,
            patience=patience,
            extra=int(first.clipping.uncounted),
            **arguments,
        )


def composition_groups(sums: Sequence[SumSpec]) -> list[CompositionGroup]:
    """Return the private sums of a run, grouped by the units and parts that they read.

    The sums of one group are composed.

    Raises:
        DpsumError: no analysis composes sums that read the same units, or sums have
            different budgets.
    """
    private = [sum_ for sum_ in sums if sum_.private]
    groups = list[CompositionGroup]()
    twice = [
        sum_.name
        for sum_ in private
        if [same.name for same in private].count(sum_.name) > 1
    ]
    if twice:
        raise DpsumError(
            f"two private sums of this run have the name {twice[0]}: give each its"
            " own name"
        )
    budgets = [sum_ for sum_ in private if sum_.budget is not None]
    for sum_ in budgets[1:]:
        if (sum_.unit, sum_.budget) != (budgets[0].unit, budgets[0].budget):
            raise DpsumError(
                f"{budgets[0].name} (of {budgets[0].unit}s) and {sum_.name} (of"
                f" {sum_.unit}s) have two budgets: a run has one budget, with one"
                " unit and one delta; give both sums the same"
            )
    for sum_ in private:
        check_parts(sum_)
    for unit, of_unit in by_unit(private).items():
        for part, same_part in by_part(of_unit).items():
            for second_sum in same_part[1:]:
                why = _apart(same_part[0], second_sum)
                if why:
                    raise DpsumError(
                        cannot_compose(
                            same_part[0].name, second_sum.name, unit, part, why
                        )
                    )
            if sum(sum_.moves for sum_ in same_part) > 1:
                first, second, *_ = (sum_.name for sum_ in same_part if sum_.moves)
                raise DpsumError(
                    cannot_compose(
                        first,
                        second,
                        unit,
                        part,
                        "their costs are both known only after each lot",
                    )
                )
            groups.append(
                CompositionGroup(
                    tuple(sorted(same_part, key=lambda sum_: not sum_.moves))
                )
            )
    return groups


def check_parts(sum_: SumSpec) -> None:
    """Refuse a clipping rule that the analysis of the sum's noise does not cover.

    Raises:
        DpsumError: the noise is correlated over rounds and the threshold moves, or the
            sum is under secure aggregation and the rule makes its own release, or the
            adjacency is not zero-out.
    """
    rule = sum_.clipping
    noise = sum_.noise
    if rule is None or noise is None:
        return
    if type(noise).combines is not Noise.combines and rule.moves:
        raise DpsumError(
            f"the noise of {sum_.name} cancels noise of earlier rounds, but its"
            f" clipping rule {type(rule).__name__} changes the threshold, and noise"
            " at two thresholds does not cancel: take a constant threshold"
        )
    if noise.one_by_one and sum_.adjacency != "zero-out":
        raise DpsumError(
            f"{sum_.name} is summed by secure aggregation, whose analysis is for zero-out"
            f" adjacency, not {sum_.adjacency}: set adjacency to zero-out"
        )
    if noise.one_by_one and type(rule).extra is not ClippingRule.extra:
        raise DpsumError(
            f"{sum_.name} is summed by secure aggregation, but its clipping rule"
            f" {type(rule).__name__} makes a further release, which would show the"
            " server each client's contribution: take a constant threshold, or one"
            " that follows releases"
        )


def _apart(first: SumSpec, second: SumSpec) -> str:
    """Return why no analysis composes two sums of the same units.

    Returns "" where an analysis does, provided that both have the same sampler.
    """
    assert first.noise is not None and second.noise is not None
    if first.within_task is not None or second.within_task is not None:
        return "clients' own sums have a separate account"
    if {first.noise.mechanism, second.noise.mechanism} != {"gaussian"}:
        return f"have {first.noise.mechanism} and {second.noise.mechanism} noise"
    if first.adjacency == second.adjacency:
        return ""
    return f"are for {first.adjacency} and {second.adjacency} adjacency"
