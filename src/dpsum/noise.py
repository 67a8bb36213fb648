"""Noise: the multiplier z of each round, what is drawn, and the name that the ledger
gives to it.

Accountants are found by that name (`mechanism`) and by the sampler, so that a name
stands for the code that a proof is of. A class that draws, sums or combines in its own
way has to name a mechanism of its own, and is refused when it is made if it does not;
without an accountant of that name no epsilon is printed.

Here is independent Gaussian noise. `correlated_noise` and `skellam_noise` have the
others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from dpsum.errors import DpsumError
from dpsum.lazy import np
from dpsum.parameters import check_bounds, parameter
from dpsum.private_sum import PrivateSum
from dpsum.sampling import Sampler

if TYPE_CHECKING:
    from dpsum.accounting.budgets import BudgetPlan
    from dpsum.accounting.context import BudgetLimits

_MADE_BY = ("standard", "private_sum", "combines", "secure")
"""What makes the noised sum, and what the ledger says of how: a mechanism's name stands
for all of these.
"""

_NAMED_IN = {
    "gaussian": __name__,
    "correlated-gaussian": "dpsum.correlated_noise",
    "skellam": "dpsum.skellam_noise",
}
"""The module that gave each mechanism its name."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """Base of the kinds of noise.

    Attributes:
        kind: its name in a configuration; "": it cannot be chosen there.
        mechanism: the ledger's name.
        follows_loss: whether the multiplier follows a validation loss, so that it is
            not known before the run.
        one_by_one: whether its sum takes each unit's message by itself.
        by_dimension: whether noise and sensitivity over C follow from the number of
            coordinates.
        public_columns: what its sums tell in public beside the release, for the history
            of a training (`PrivateSum.told`).

    Raises:
        DpsumError: a parameter is out of bounds; or a class is made that changes what
            is drawn or summed under a mechanism that it did not name.
    """

    kind: ClassVar[str] = ""
    mechanism: ClassVar[str] = "gaussian"
    follows_loss: ClassVar[bool] = False
    one_by_one: ClassVar[bool] = False
    by_dimension: ClassVar[bool] = False
    public_columns: ClassVar[tuple[str, ...]] = ()

    multiplier: float | None = parameter(
        1.0,
        ge=1e-3,
        le=1e7,
        doc=(
            "z: noise standard deviation over C; null: the least that the budget allows"
        ),
        paper="1",
    )

    def __post_init__(self) -> None:
        """Check the bounds of all parameters."""
        check_bounds(self)

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that would take another code's proof for its own, since it
        uses its mechanism's name.
        """
        super().__init_subclass__(**options)
        class_name = f"{cls.__module__}.{cls.__name__}"
        ancestors = list(cls.__mro__)

        def defined(name: str) -> int:
            return next(
                depth for depth, base in enumerate(ancestors) if name in vars(base)
            )

        named = defined("mechanism")
        for name in _MADE_BY:
            if defined(name) < named:
                raise DpsumError(
                    f"{class_name} has a {name} of its own, but the mechanism"
                    f" {cls.mechanism!r} of {ancestors[named].__name__}, whose analyses"
                    " are of other code: name another mechanism there"
                )
        module = ancestors[named].__module__
        if (first := _NAMED_IN.setdefault(cls.mechanism, module)) != module:
            raise DpsumError(
                f"{class_name} and {first} both name the mechanism {cls.mechanism!r}: give"
                " one of them another"
            )

    @property
    def fall(self) -> tuple[float, int]:
        """The factor of the multiplier, and after how many falls of a loss in a row it
        is applied.
        """
        return 1.0, 3

    def plan(self, budget: BudgetLimits, **given: Any) -> BudgetPlan:
        """Return the budget plan of this noise, round by round; `given` as of
        `BudgetPlan`.

        Noise without an analysis has to override this: what it costs is for its owner
        to say.
        """
        from dpsum.accounting.budgets import (
            BudgetPlan,
        )  # a plan is read where scipy is not installed

        return BudgetPlan(
            budget, multiplier=self.multiplier, mechanism=self.mechanism, **given
        )

    def sampled(self, sampler: Sampler) -> Sampler:
        """A sampler with what an accountant needs to know of this noise; DpsumError
        where the noise is not for it.
        """
        return sampler

    def successors(self, multiplier: float) -> tuple[float, ...]:
        """The multipliers that a round may have after one that had this."""
        return (multiplier,)

    def combines(self, index: int) -> list[float] | None:
        """The weights with which a round's noise combines draws of rounds 0 to it;
        None: it is a draw of its own.
        """
        return None

    def secure(self, **values: Any) -> dict[str, Any] | None:
        """Return the ledger's group `secure` of a sum under secure aggregation, from
        the arguments of `private_sum`; else None.
        """
        return None

    def private_sum(
        self,
        ordinary: type[PrivateSum],
        *,
        streams: Callable[..., np.random.Generator],
        cohort: float,
        **values: Any,
    ) -> PrivateSum:
        """The object that takes a round's contributions: an `ordinary` sum, or another
        one, made of the same `values`.

        `streams` are random streams of the round, by what they are for and further
        indices; `cohort` is the expected number of units.
        """
        return ordinary(**values)

    def standard(
        self,
        stream_of: Callable[[int], np.random.Generator],
        index: int,
        dimension: int,
    ) -> np.ndarray:
        """Noise of deviation 1 on each coordinate, float64 [d], for round `index` (from
        0).

        `stream_of` gives the random stream of a round's noise, from its start at each
        call.
        """
        return stream_of(index).standard_normal(dimension)


@dataclasses.dataclass(frozen=True)
class Gaussian(Noise):
    """Independent Gaussian noise of deviation z C in each round."""

    kind: ClassVar[str] = "fixed"


@dataclasses.dataclass(frozen=True)
class Decaying(Noise):
    """After `falls` falls in a row of a public validation loss, z is multiplied by
    `decay` (Adap DP-FL, IV-B).
    """

    kind: ClassVar[str] = "decaying"
    follows_loss: ClassVar[bool] = True

    multiplier: float | None = parameter(
        6.0,
        ge=1e-3,
        le=1e6,
        doc="z of the first round",
        paper="6 (MNIST), 4 (Fashion-MNIST)",
    )
    decay: float = parameter(
        0.9999, gt=0, lt=1, doc="beta", paper="0.9999 (MNIST), 0.9998 (Fashion-MNIST)"
    )
    falls: int = parameter(
        3, ge=1, le=1_000_000, doc="falls in a row of the validation loss", paper="3"
    )

    @property
    def fall(self) -> tuple[float, int]:
        return self.decay, self.falls

    def successors(self, multiplier: float) -> tuple[float, ...]:
        return multiplier, multiplier * self.decay
