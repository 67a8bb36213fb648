"""What every noise is: the multiplier z of each round, what is drawn, and the name that the ledger gives to it.

An accountant finds its analysis by that name (`mechanism`) and by the sampler. So a name stands for the code that an
analysis is of: a class that draws, sums or combines in its own way has to name a mechanism of its own, and without an
analysis of that no epsilon is printed. Who does not, or takes the name of another's, is refused when the plan is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.parts.budget import Budget
    from dpsum.accounting.budgets import BudgetPlan
    from dpsum.accounting.claims import Claims
    from dpsum.private_sum import PrivateSum


_MADE_BY = ("standard", "private_sum", "combines", "secure")
"""What makes the noised sum, and what the ledger says of how: a mechanism's name stands for all of these."""

_NAMED_IN = {"gaussian": __name__}
"""The module that gave each mechanism its name."""


class Noise(Part):
    """Base of the kinds of noise.

    Raises:
        BenchError: when a class is made that changes what is drawn or summed under a mechanism that it did not name.
    """

    place: ClassVar[str] = "dpfedbench.parts.noise"
    mechanism: ClassVar[str] = "gaussian"
    follows_loss: ClassVar[bool] = False
    """Whether the multiplier follows a validation loss, so that it is not known before the run."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns of history.csv that its sums fill (`PrivateSum.told`)."""
    one_by_one: ClassVar[bool] = False
    """Whether its sum takes each client's message by itself, which one process does."""
    by_dimension: ClassVar[bool] = False
    """Whether noise and sensitivity over C follow from the number of coordinates, so that an audit has as many."""

    multiplier: float | None

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class under whose mechanism's name another code's proof would be taken for its own."""
        super().__init_subclass__(**options)
        said, places = f"{cls.__module__}.{cls.__name__}", list(cls.__mro__)

        def defined(name: str) -> int:
            return next(place for place, base in enumerate(places) if name in vars(base))

        named = defined("mechanism")
        for name in _MADE_BY:
            if defined(name) < named:
                raise BenchError(
                    f"{said} has a {name} of its own, but the mechanism {cls.mechanism!r} of {places[named].__name__}, "
                    "whose analyses are of other code: name another mechanism there"
                )
        module = places[named].__module__
        if (first := _NAMED_IN.setdefault(cls.mechanism, module)) != module:
            raise BenchError(f"{said} and {first} both name the mechanism {cls.mechanism!r}: give one of them another")

    def plan(
        self,
        budget: Budget,
        sampler: Mapping[str, Any],
        *,
        claims: Claims,
        counted: bool,
        uncounted: int,
        stepwise: bool,
        beside: Sequence[float | None] = (),
    ) -> BudgetPlan:  # fmt: skip
        """The noise of each round, what it costs, and how many rounds the budget allows.

        Args:
            budget: the limit.
            sampler: the participation plan's description.
            claims: the method's.
            counted: whether every release has an event; without, no finite epsilon holds.
            uncounted: releases a round beside the sum's own that cost as much again and that the claim leaves out.
            stepwise: whether a round is a client's local step, of which there are too many to account for each.
            beside: multipliers of a round's other sums that read the same units; None where the budget has to say.
        """
        from dpsum.accounting.budgets import BudgetPlan

        return BudgetPlan(
            budget, sampler=sampler, multiplier=self.multiplier, claims=claims, mechanism=self.mechanism,
            counted=counted, every_round=not stepwise, beside=beside,
        )  # fmt: skip

    def successors(self, multiplier: float) -> tuple[float, ...]:
        """The multipliers that a round may have after one that had this."""
        return (multiplier,)

    def combines(self, index: int) -> list[float] | None:
        """With which weights the noise of round `index` combines independent draws of rounds 0 to `index`.

        None: it is a draw of its own. The ledger says it, and an analysis reads it there.
        """
        return None

    def secure(self, **values: Any) -> dict[str, Any] | None:
        """What the ledger has to say of a sum that secure aggregation shows, from the arguments of `private_sum`."""
        return None

    def private_sum(
        self, ordinary: type[PrivateSum], *, streams: Callable[..., np.random.Generator], cohort: float, **values: Any
    ) -> PrivateSum:
        """What takes a round's contributions.

        Args:
            ordinary: the class of a sum whose noise whoever takes it adds.
            streams: random streams of the round, by what they are for and further indices.
            cohort: expected number of units.
            values: dimension, threshold, noise_multiplier and adjacency, as `PrivateSum` has them.
        """
        return ordinary(**values)

    def standard(self, stream_of: Callable[[int], np.random.Generator], index: int, dimension: int) -> np.ndarray:
        """Noise of deviation 1 on each coordinate, float64 [d], for round `index`.

        Args:
            stream_of: the random stream of a round's noise; each call gives it from its start.
            index: the round, from 0.
            dimension: d.
        """
        return stream_of(index).standard_normal(dimension)
