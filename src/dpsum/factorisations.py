"""Factorisations: the encoder C of correlated noise, for so many rounds.

A server that moves a model by sums S_0, S_1, ... over rounds releases A S with a lower
triangular A (all ones, where each step adds its own sum). Written A = B C, the matrix
mechanism releases B (C S + z Z) = A (S + z C^-1 Z) with independent Gaussian Z (Denisov
et al. 2022; Kairouz et al. 2021 is the binary tree's B and C): the noise of round t is
row t of C^-1 Z, and what one round adds later rounds take away again. A unit that is in
round t alone moves C S by column t of C times what it contributed, so that C is scaled
until its largest column has norm 1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from dpsum.lazy import Lazy, np
from dpsum.parameters import check_bounds, parameter
from dpsum.triangular import inverted

if TYPE_CHECKING:
    from scipy import linalg, optimize
else:
    linalg, optimize = (
        Lazy("scipy.linalg"),
        Lazy("scipy.optimize"),
    )  # a plan is read without scipy

_STEPS = 200
_CLOSE = 1e-3
"""The search ends at either: the least error is flat, and any encoder is as private."""

_RIDGE = 1e-6

_DIGITS = 2.0**-30
"""The encoder is rounded to it: what machines make of the last digits moves its noise
seldom.
"""

_FLAT = 1e-7
_COARSE = 2.0**-16
"""Of a banded encoder the search's end, a share of the error, and the digits: a search
by slopes spreads roundings.
"""

MOST = 2000
"""Rounds up to which `optimised` is computed: each step of the search takes the
eigenvalues of a [T, T] matrix.
"""


class LinearStep(Protocol):
    """A server's step that is linear in the released means."""

    def response(self, rounds: int) -> np.ndarray:
        """Return how far the model has moved after each round for a unit in the mean of
        each, float64 [after, of].
        """


@dataclasses.dataclass(frozen=True)
class Factorisation:
    """Base of the factorisations.

    Attributes:
        kind: its name in a configuration.
    """

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check the bounds of all parameters."""
        check_bounds(self)

    def weights(self, rounds: int, step: LinearStep) -> np.ndarray:
        """Return C^-1, lower triangular, float64 [T, T]; no column of its inverse C has
        a norm above 1.

        Row t says how round t's noise combines the independent draws of rounds 0 to t.
        The bits are the same on any number of threads.

        Args:
            rounds: T.
            step: the server's.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class SquareRoot(Factorisation):
    """The encoder A^(1/2) with A all ones, whole or banded; see
    `dpsum.factorisations.square_root`.

    Fichtenberger, Henzinger and Upadhyay, Constant Matters, ICML 2023.
    """

    kind: ClassVar[str] = "square-root"

    band: int | None = parameter(
        None,
        ge=1,
        doc="draws that a round's noise combines at most; null: those of all rounds",
    )

    def weights(self, rounds: int, step: LinearStep) -> np.ndarray:
        return square_root(rounds, band=self.band)


@dataclasses.dataclass(frozen=True)
class Optimised(Factorisation):
    """The encoder C of least total squared error of all models, |A C^-1|_F^2 at columns
    of norm 1.

    `prefix`: A is all ones. `server`: A is what the server's own step makes of a unit
    in each round's mean, momentum and schedule included; its step has to be linear.
    """

    kind: ClassVar[str] = "optimised"

    workload: Literal["prefix", "server"] = parameter(
        "prefix", doc="what A is: prefix sums, or the server's steps"
    )

    def weights(self, rounds: int, step: LinearStep) -> np.ndarray:
        return optimised(self.moved(rounds, step))

    def moved(self, rounds: int, step: LinearStep) -> np.ndarray:
        """Return A, float64 [T, T]."""
        if self.workload == "prefix":
            return np.tril(np.ones((rounds, rounds)))
        return step.response(rounds)


@dataclasses.dataclass(frozen=True)
class Banded(Optimised):
    """The `optimised` factorisation with so few diagonals in the encoder that a
    client's columns do not overlap.

    That is so where its rounds are at least `bands` apart: its k participations then
    move the releases by the root of k. More bands are accounted for by their overlap,
    and cost more noise (Choquette-Choo et al. 2023).
    """

    kind: ClassVar[str] = "banded"

    bands: int = parameter(
        8, ge=1, le=MOST, doc="diagonals of the encoder, the main one among them"
    )

    def weights(self, rounds: int, step: LinearStep) -> np.ndarray:
        return banded(self.moved(rounds, step), self.bands)


def square_root(rounds: int, *, band: int | None = None) -> np.ndarray:
    """C^-1 [T, T] of B = C = A^(1/2) with A all ones (Fichtenberger, Henzinger and
    Upadhyay, Constant Matters, 2023).

    C is the Toeplitz matrix of (1 - x)^(-1/2), whose inverse is that of (1 - x)^(1/2).
    Of the inverse `band` diagonals are kept, so that a round's noise combines as many
    draws (Kalinin et al., Back to Square Roots, 2025); the encoder and its column norm
    are those of the inverse that is kept.
    """
    inverse = np.zeros((rounds, rounds))
    value = 1.0
    for back in range(min(rounds, band or rounds)):
        np.fill_diagonal(inverse[back:], value)
        value *= (back - 0.5) / (back + 1)
    return scaled(inverse)


def optimised(workload: np.ndarray) -> np.ndarray:
    """C^-1 [T, T] of least total squared error of all models, |A C^-1|_F^2 at columns
    of norm 1 (Denisov et al. 2022).

    Args:
        workload: A, lower triangular, float64 [T, T]: how far the model has moved after
            each round for a unit in the sum of each. All ones below the diagonal:
            prefix sums.
    """
    return _optimised(
        len(workload), np.ascontiguousarray(workload, dtype=float).tobytes()
    ).copy()


def banded(workload: np.ndarray, bands: int) -> np.ndarray:
    """Return C^-1 as `optimised` does, among encoders C of so many diagonals: float64
    [T, T]; columns of C have norm 1.

    Columns that are `bands` or more rounds apart do not overlap, so that a unit whose k
    rounds are that far apart moves all releases by the root of k and no more
    (Choquette-Choo et al., (Amplified) Banded Matrix Factorization, 2023). The minimum
    is searched by L-BFGS over the entries of C, from the optimised encoder cut to its
    bands.

    Args:
        workload: as of `optimised`.
        bands: diagonals of C that may differ from zero, the main one among them.
    """
    return _banded(
        len(workload), np.ascontiguousarray(workload, dtype=float).tobytes(), bands
    ).copy()


def scaled(
    inverse: np.ndarray, *, separation: int = 1, participations: int = 1
) -> np.ndarray:
    """The inverse of an encoder, float64 [T, T], times the encoder's largest column
    norm, in the last digits up.

    For units that come several times (any two of their rounds are at least `separation`
    apart, and there are at most so many `participations`) it is in place of the column
    norm how far all of a unit's columns move.
    """
    encoder = inverted(inverse)
    if participations > 1:
        from dpsum.accounting.repeated_participation import (
            sensitivity,
        )  # not at the head: a plan is read without scipy

        return np.asarray(
            inverse
            * (
                sensitivity(encoder.T @ encoder, separation, participations)[1]
                * (1 + 1e-12)
            )
        )
    squares = [
        math.fsum(value * value for value in column) for column in encoder.T.tolist()
    ]
    norm = math.sqrt(max(squares, default=1.0))
    return np.asarray(inverse * (norm * (1 + 1e-12)))


@functools.lru_cache(maxsize=16)
def _optimised(rounds: int, workload: bytes) -> np.ndarray:
    if not rounds:
        return np.zeros((0, 0))
    moved = np.frombuffer(workload).reshape(rounds, rounds)
    square = gram(moved.T @ moved)
    # square = C^T C with C lower triangular: Cholesky from the last coordinate to the
    # first.
    lower = np.linalg.cholesky(square[::-1, ::-1])
    encoder = lower[::-1, ::-1].T
    rounded = np.round(encoder / _DIGITS) * _DIGITS
    return scaled(inverted(rounded))


@functools.lru_cache(maxsize=16)
def _banded(rounds: int, workload: bytes, bands: int) -> np.ndarray:
    if bands >= rounds:
        return _optimised(rounds, workload)
    moved = np.frombuffer(workload).reshape(rounds, rounds)
    squares = _with_ridge(moved.T @ moved)
    all_ones = np.ones((rounds, rounds))
    band = np.tril(np.triu(all_ones, 1 - bands))
    entry_indices = np.nonzero(band)
    encoder = np.zeros((rounds, rounds))

    def columns(entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        encoder[entry_indices] = entries
        squares_of_columns = (encoder**2).sum(axis=0)
        norms = np.sqrt(squares_of_columns)
        return encoder / norms, norms

    def error(entries: np.ndarray) -> tuple[float, np.ndarray]:
        unit, norms = columns(entries)
        inverse = linalg.solve_triangular(unit, np.eye(rounds), lower=True)
        noised = squares @ inverse
        slope = -2 * (inverse.T @ noised) @ inverse.T
        return float((inverse * noised).sum()), (
            (slope - unit * (slope * unit).sum(axis=0)) / norms
        )[entry_indices]

    start = inverted(_optimised(rounds, workload))[entry_indices]
    minimum = optimize.minimize(
        error,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _STEPS, "ftol": _FLAT},
    )
    best, _ = columns(minimum.x)
    rounded = np.round(best / _COARSE) * _COARSE
    return scaled(inverted(rounded))


def _with_ridge(squares: np.ndarray) -> np.ndarray:
    """Steps at a rate of almost nothing would have noise without end."""
    mean = np.diag(squares).mean()
    ridge = _RIDGE * mean * np.eye(len(squares))
    return np.asarray(squares + ridge)


def gram(squares: np.ndarray) -> np.ndarray:
    """The X with ones on its diagonal that makes the trace of `squares` X^-1 nearly
    least, both float64 [T, T].

    X = D^-1/2 (D^1/2 squares D^1/2)^1/2 D^-1/2, where the diagonal D is that of the
    root itself: a fixed point.
    """
    squares = _with_ridge(squares)
    diagonal = np.sqrt(np.diag(squares))
    for _ in range(_STEPS):
        half = np.sqrt(diagonal)
        values, vectors = np.linalg.eigh(half[:, None] * squares * half)
        roots = np.sqrt(values.clip(min=0.0))
        root = (vectors * roots) @ vectors.T
        candidate = np.diag(root)
        change = np.abs(candidate / diagonal - 1)
        done = bool(change.max() < _CLOSE)
        diagonal = candidate
        if done:
            break
    size = np.sqrt(np.diag(root))
    return np.asarray(root / (size[:, None] * size))
