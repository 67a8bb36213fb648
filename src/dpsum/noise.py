"""Noise: the multiplier z of each round, the draws, and the name in the ledger.

An accountant is found by that name (`mechanism`) and by the sampler. The name therefore
stands for the code that the proof covers. A class that draws, sums or combines noise in
its own way must name its own mechanism, or its definition raises an error. Where no
accountant has that name, no epsilon is reported.

This module has independent Gaussian noise. Other noise is in `correlated_noise` and
`skellam_noise`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from dpsum.errors import DpsumError
from dpsum.lazy import np
from dpsum.parameters import check_bounds, parameter
from dpsum.private_sum import PrivateSum
from dpsum.sampling import Sampler

_MADE_BY = ("standard", "private_sum", "combines", "secure")
"""Members that define the noised sum and its description in the ledger. The name of a
mechanism stands for all of them.
"""

_NAMED_IN = {
    "gaussian": __name__,
    "correlated-gaussian": "dpsum.correlated_noise",
    "skellam": "dpsum.skellam_noise",
}
"""Module that defines each mechanism's name."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """Base of the kinds of noise.

    Attributes:
        kind: name of the noise in a configuration; "": it cannot be chosen there.
        mechanism: name of the noise in the ledger.
        follows_loss: whether the multiplier follows a validation loss, so that it is
            not known before the run.
        one_by_one: whether the sum takes each unit's message separately.
        by_dimension: whether noise and sensitivity over C depend on the number of
            coordinates.
        public_columns: columns of the training's history that its sums publish besides
            the release (`PrivateSum.public_values`).

    Raises:
        DpsumError: a parameter is out of bounds; or a subclass changes the draws or the
            sum without naming its own mechanism.
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
        doc=("z: noise deviation over C; null: the least that the budget allows"),
        paper="1",
    )

    def __post_init__(self) -> None:
        """Check the bounds of all parameters."""
        check_bounds(self)

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a subclass that changes the noise but keeps the mechanism's name.

        The proof found by that name would not cover the subclass's code.
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
                    f" {cls.mechanism!r} of {ancestors[named].__name__}, whose"
                    f" analyses cover other code: give {class_name} a mechanism name"
                    " of its own"
                )
        module = ancestors[named].__module__
        if (first := _NAMED_IN.setdefault(cls.mechanism, module)) != module:
            raise DpsumError(
                f"{class_name} and {first} both name the mechanism {cls.mechanism!r}: give"
                " one of them another"
            )

    @property
    def decay_step(self) -> tuple[float, int]:
        """Factor of the multiplier, and the falls of a loss in a row that trigger it."""
        return 1.0, 3

    def sampled(self, sampler: Sampler) -> Sampler:
        """Return the sampler, with what an accountant needs to know about this noise.

        Raises:
            DpsumError: the noise does not fit this sampler.
        """
        return sampler

    def successors(self, multiplier: float) -> tuple[float, ...]:
        """Return the multipliers that the next round may have."""
        return (multiplier,)

    def combines(self, index: int) -> list[float] | None:
        """Return the weights with which a round's noise combines earlier draws.

        They belong to the draws of rounds 0 to `index`. None: the round has an
        independent draw.
        """
        return None

    def secure(self, **values: Any) -> dict[str, Any] | None:
        """Return the ledger's field `secure`; None without secure aggregation.

        Args:
            values: arguments of `private_sum`.
        """
        return None

    def private_sum(
        self,
        *,
        streams: Callable[..., np.random.Generator],
        cohort: float,
        **values: Any,
    ) -> PrivateSum:
        """Return the object that adds up a round's contributions.

        Args:
            streams: returns a random stream of the round, by purpose and indices.
            cohort: expected number of units.
            values: arguments of the sum.
        """
        return PrivateSum(**values)

    def standard(
        self,
        stream_of: Callable[[int], np.random.Generator],
        index: int,
        dimension: int,
    ) -> np.ndarray:
        """Return noise of deviation 1 on each coordinate, float64 [d].

        Args:
            stream_of: returns the random stream of a round's noise, from its start at
                each call.
            index: number of the round, from 0.
            dimension: d.
        """
        return stream_of(index).standard_normal(dimension)


@dataclasses.dataclass(frozen=True)
class Gaussian(Noise):
    """Independent Gaussian noise of deviation z C in each round."""

    kind: ClassVar[str] = "fixed"


@dataclasses.dataclass(frozen=True)
class Decaying(Noise):
    """Gaussian noise whose multiplier z decays (Adap DP-FL, IV-B).

    z is multiplied by `decay` each time a public validation loss has fallen `falls`
    times in a row.
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
        0.9999,
        gt=0,
        lt=1,
        doc="beta: factor of z",
        paper="0.9999 (MNIST), 0.9998 (Fashion-MNIST)",
    )
    falls: int = parameter(
        3, ge=1, le=1_000_000, doc="falls in a row of the validation loss", paper="3"
    )

    @property
    def decay_step(self) -> tuple[float, int]:
        return self.decay, self.falls

    def successors(self, multiplier: float) -> tuple[float, ...]:
        return multiplier, multiplier * self.decay
