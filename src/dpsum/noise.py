"""Noise: the multiplier z of each round, what is drawn, and the name that the ledger
gives to it.

Accountants are found by that name (`mechanism`) and by the sampler, so that a name
stands for the code that a proof is of. A class that draws, sums or combines in its own
way has to name a mechanism of its own, and is refused when it is made if it does not;
without an accountant of that name no epsilon is printed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from dpsum.errors import DpsumError
from dpsum.lazy import np
from dpsum.private_sum import PrivateSum
from dpsum.sampling import Sampler, Sampling
from dpsum.secure import Lattice, SecureSum
from dpsum.triangular import inverted

if TYPE_CHECKING:
    from dpsum.accounting.budgets import BudgetPlan
    from dpsum.accounting.context import Budget

_MADE_BY = ("standard", "private_sum", "combines", "secure")
"""What makes the noised sum, and what the ledger says of how: a mechanism's name stands
for all of these.
"""

_NAMED_IN = {"gaussian": __name__}
"""The module that gave each mechanism its name."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """Base of the kinds of noise.

    Attributes:
        multiplier: z, deviation over the sensitivity; None: the least that a budget
            allows.
        mechanism: the ledger's name.
        follows_loss: whether the multiplier follows a validation loss, so that it is
            not known before the run.
        one_by_one: whether its sum takes each unit's message by itself.
        by_dimension: whether noise and sensitivity over C follow from the number of
            coordinates.

    Raises:
        DpsumError: when a class is made that changes what is drawn or summed under a
            mechanism that it did not name.
    """

    mechanism: ClassVar[str] = "gaussian"
    follows_loss: ClassVar[bool] = False
    one_by_one: ClassVar[bool] = False
    by_dimension: ClassVar[bool] = False

    multiplier: float | None = 1.0

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that would take another code's proof for its own, since it
        uses its mechanism's name.
        """
        super().__init_subclass__(**options)
        said, places = f"{cls.__module__}.{cls.__name__}", list(cls.__mro__)

        def defined(name: str) -> int:
            return next(
                place for place, base in enumerate(places) if name in vars(base)
            )

        named = defined("mechanism")
        for name in _MADE_BY:
            if defined(name) < named:
                raise DpsumError(
                    f"{said} has a {name} of its own, but the mechanism"
                    f" {cls.mechanism!r} of {places[named].__name__}, whose analyses"
                    " are of other code: name another mechanism there"
                )
        module = places[named].__module__
        if (first := _NAMED_IN.setdefault(cls.mechanism, module)) != module:
            raise DpsumError(
                f"{said} and {first} both name the mechanism {cls.mechanism!r}: give"
                " one of them another"
            )

    @property
    def fall(self) -> tuple[float, int]:
        """The factor of the multiplier, and after how many falls of a loss in a row it
        is applied.
        """
        return 1.0, 3

    def plan(self, budget: Budget, **given: Any) -> BudgetPlan:
        """What this noise costs, round by round; `given` as of `BudgetPlan`.

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
        """What the ledger says of a sum under secure aggregation, from the arguments of
        `private_sum`; else None.
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
class Independent(Noise):
    """Gaussian noise of deviation z times the sensitivity, drawn anew in each round."""


@dataclasses.dataclass(frozen=True)
class Decaying(Noise):
    """After `falls` falls in a row of a public validation loss, z is multiplied by
    `decay` (Adap DP-FL, IV-B).
    """

    follows_loss: ClassVar[bool] = True

    decay: float = 0.9999
    falls: int = 3

    @property
    def fall(self) -> tuple[float, int]:
        return self.decay, self.falls

    def successors(self, multiplier: float) -> tuple[float, ...]:
        return multiplier, multiplier * self.decay


@dataclasses.dataclass(frozen=True)
class Encoded(Noise):
    """Correlated noise: a round takes back part of what earlier rounds added (DP-FTRL,
    matrix factorisation).

    The noise of round t is row t of C^-1 Z with independent Gaussian Z, for an encoder
    C (`factorisations`). What a unit can be told by is its column of the encoder, whose
    norm is at most 1, so that z is over C's largest column. Kairouz et al. 2021,
    Practical and Private (Deep) Learning without Sampling or Shuffling; Denisov et al.
    2022, Improved Differential Privacy for SGD via Optimal Private Linear Operators on
    Adaptive Streams.

    Nothing is kept between rounds: the draws of earlier rounds are made again from
    their named streams, so that a restart draws the same bits. That costs T (T + 1) / 2
    draws of the model's size, in a memory of two of them; an encoder with p bands makes
    it at most p T.
    """

    mechanism: ClassVar[str] = "correlated-gaussian"

    def inverse(self) -> np.ndarray:
        """C^-1, lower triangular, float64 [T, T], for the planned rounds."""
        raise NotImplementedError("of noise whose rounds and encoder are known")

    def sampled(self, sampler: Sampler) -> Sampler:
        """With the encoder, where an account is of it; DpsumError where a unit moves
        encoded sums by more than C.
        """
        # Not at the head: a plan of the workflow is read where scipy is not installed.
        from dpsum.accounting.analyses import known
        from dpsum.accounting.several import sensitivity

        everyone = sampler["kind"] == "everyone"
        if everyone or "separation" in sampler:
            encoder = inverted(self.inverse())
            separation = 1 if everyone else int(sampler["separation"])
            times = int(sampler["rounds" if everyone else "participations"])
            moved = sensitivity(encoder.T @ encoder, separation, times)[1]
            if moved > 1 + 1e-9:
                raise DpsumError(
                    f"a unit's {times} participations move the"
                    f" encoded sums by {moved:.6g} C: scale the weights by"
                    " `factorisations.scaled(weights, separation=...,"
                    " participations=...)`"
                )
        elif not known(self.mechanism, str(sampler["kind"])):
            return dataclasses.replace(
                Sampling.of(sampler), encoder=np.abs(inverted(self.inverse())).tobytes()
            )
        return sampler

    def combines(self, index: int) -> list[float]:
        weights = self.inverse()
        if index >= len(weights):
            raise DpsumError(
                f"the factorisation is for {len(weights)} rounds, and round {index} was"
                " asked for"
            )
        row: list[float] = weights[index, : index + 1].tolist()
        return row

    def standard(
        self,
        stream_of: Callable[[int], np.random.Generator],
        index: int,
        dimension: int,
    ) -> np.ndarray:
        """Row `index` of C^-1 Z, float64 [d]."""
        total, draw = np.zeros(dimension), np.empty(dimension)
        for earlier, weight in enumerate(self.combines(index)):
            if weight:
                stream_of(earlier).standard_normal(out=draw)
                draw *= weight
                total += draw
        return total


@dataclasses.dataclass(frozen=True, eq=False)
class Correlated(Encoded):
    """Correlated noise by an encoder C that is given as its inverse.

    Attributes:
        weights: C^-1, lower triangular, float64 [T, T]; see `factorisations`.
            DpsumError where it is not, or a column of C has a norm above 1.
    """

    weights: np.ndarray = dataclasses.field(default_factory=lambda: np.ones((1, 1)))

    def __post_init__(self) -> None:
        """Check the encoder, which the sensitivity follows from."""
        weights = np.asarray(self.weights, dtype=float)
        if (
            weights.ndim != 2
            or len(set(weights.shape)) > 1
            or not np.array_equal(weights, np.tril(weights))
        ):
            raise DpsumError(
                f"the weights of correlated noise are {list(weights.shape)}: give a"
                " lower triangular [T, T]"
            )
        if not (np.isfinite(weights).all() and (np.diag(weights) > 0).all()):
            raise DpsumError(
                "the weights of correlated noise need numbers, and a diagonal above 0"
            )
        if (np.linalg.norm(np.linalg.inv(weights), axis=0) > 1 + 1e-9).any():
            raise DpsumError(
                "a column of the encoder has a norm above 1, so that C is not the"
                " sensitivity: scale the weights by `factorisations.scaled`"
            )

    def inverse(self) -> np.ndarray:
        return self.weights


@dataclasses.dataclass(frozen=True)
class Skellam(Noise):
    """Discrete noise that clients add in shares under secure aggregation, of deviation
    z over the rounded sensitivity.

    Skellam variables add up to Skellam variables, so that the noise of any set of
    shares is known exactly, also where clients drop out; a sum of discrete Gaussians is
    none, and its account has a divergence term of its own (Kairouz et al. 2021).
    Agarwal, Kairouz and Liu 2021, The Skellam Mechanism for Differentially Private
    Federated Learning.

    Attributes:
        bits: of a coordinate; clients' messages are added modulo 2^bits.
        deviations: of a coordinate of the sum, that half the modulus holds.
        dropped: share of each cohort that drops out, and its noise with it.
        dropped_at_most, colluding: shares of a cohort whose noise is not counted, since
            it may drop out, or tell the server: the others add more.
    """

    mechanism: ClassVar[str] = "skellam"
    by_dimension: ClassVar[bool] = True
    one_by_one: ClassVar[bool] = True

    bits: int = 16
    deviations: float = 4.0
    dropped: float = 0.0
    dropped_at_most: float = 0.0
    colluding: float = 0.0

    def gone(self, cohort: int) -> int:
        """How many clients of a cohort drop out."""
        return math.ceil(self.dropped * cohort - 1e-9)

    def colluders(self, cohort: int) -> int:
        """How many clients of a cohort may tell the server their noise."""
        return math.ceil(self.colluding * cohort - 1e-9)

    def counted(self, cohort: int) -> int:
        """How many shares of noise the account counts."""
        return (
            cohort
            - math.floor(self.dropped_at_most * cohort + 1e-9)
            - self.colluders(cohort)
        )

    def lattice(
        self, *, dimension: int, threshold: float, noise_multiplier: float, cohort: int
    ) -> Lattice:
        """The whole numbers of a round; DpsumError where the modulus is too small."""
        return Lattice.of(
            dimension=dimension,
            threshold=threshold,
            noise_multiplier=noise_multiplier,
            bits=self.bits,
            deviations=self.deviations,
            clients=cohort,
            counted=self.counted(cohort),
        )

    def private_sum(
        self,
        ordinary: type[PrivateSum],
        *,
        streams: Callable[..., Any],
        cohort: float,
        **values: Any,
    ) -> PrivateSum:
        size, _ = int(cohort), values.pop("adjacency")
        lattice = self.lattice(cohort=size, **values)
        return SecureSum(
            **values,
            lattice=lattice,
            dropped=self.gone(size),
            streams=streams,
            colluding=self.colluders(size),
        )

    def secure(self, **values: Any) -> dict[str, Any]:
        return self.lattice(**values).said(
            **{name: values[name] for name in ("threshold", "noise_multiplier")}
        )
