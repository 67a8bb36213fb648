"""Factorisations: the encoder C of correlated noise, for a number of rounds.

A server that moves a model by sums S_0, S_1, ... over rounds releases A S with a lower
triangular A (all ones, where each step adds its own sum). Written A = B C, the matrix
mechanism releases B (C S + z Z) = A (S + z C^-1 Z) with independent Gaussian Z (Denisov
et al. 2022; in Kairouz et al. 2021, B and C come from a binary tree). The noise of
round t is row t of C^-1 Z, so that later rounds cancel part of the noise of earlier
ones. A unit that takes part in round t alone moves C S by column t of C times its
contribution, so that C is scaled until its largest column has norm 1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar, Literal, Protocol

from dpsum.lazy import np
from dpsum.parameters import check_bounds, parameter
from dpsum.triangular import inverted

_STEPS = 200
_CLOSE = 1e-3
"""The search for the best encoder stops after `_STEPS` steps, or when a step changes
less than `_CLOSE`. The error is flat near its minimum, and any encoder is as private.
"""

_RIDGE = 1e-6

_DIGITS = 2.0**-30
"""The encoder is rounded to multiples of this, so that differences between machines in
the last digits seldom change the noise.
"""

_FLAT = 1e-7
_COARSE = 2.0**-16
"""Tolerance of the search for a banded encoder, relative to the error, and the rounding
of its entries. The rounding is coarser, since a gradient search amplifies rounding
errors.
"""

MOST = 2000
"""Largest number of rounds for `Optimised`: each step of its search computes the
eigenvalues of a [T, T] matrix.
"""


class LinearStep(Protocol):
    """A step of the server that is linear in the released means."""

    def response(self, rounds: int) -> np.ndarray:
        """Return the response of the model to the released means, float64 [T, T].

        Entry [s, t] is how far the model has moved after round s, for a unit in the
        mean of round t.
        """


@dataclasses.dataclass(frozen=True)
class Factorisation:
    """Base of the factorisations.

    Attributes:
        kind: name of the factorisation in a configuration.
    """

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check the bounds of all parameters."""
        check_bounds(self)

    def weights(self, rounds: int, step: LinearStep) -> np.ndarray:
        """Return C^-1, lower triangular, float64 [T, T].

        Row t has the weights with which round t's noise combines the independent draws
        of rounds 0 to t. No column of C has a norm above 1. The bits do not depend on
        the number of threads.

        Args:
            rounds: T.
            step: the server's step.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class SquareRoot(Factorisation):
    """The encoder A^(1/2) of prefix sums, whole or banded.

    B = C = A^(1/2), where A is all ones (Fichtenberger, Henzinger and Upadhyay,
    Constant Matters, ICML 2023). C is the Toeplitz matrix of (1 - x)^(-1/2), and its
    inverse that of (1 - x)^(1/2).

    With a band, as many diagonals of the inverse are kept (Kalinin et al., Back to
    Square Roots, 2025). The encoder and its column norm are those of the truncated
    inverse.
    """

    kind: ClassVar[str] = "square-root"

    band: int | None = parameter(
        None,
        ge=1,
        doc="most draws that a round's noise combines; null: those of all rounds",
    )

    def weights(self, rounds: int, step: LinearStep) -> np.ndarray:
        inverse = np.zeros((rounds, rounds))
        value = 1.0
        for back in range(min(rounds, self.band or rounds)):
            np.fill_diagonal(inverse[back:], value)
            value *= (back - 0.5) / (back + 1)
        return scaled(inverse)


@dataclasses.dataclass(frozen=True)
class Optimised(Factorisation):
    """The encoder C with the least total squared error of all models.

    The error is |A C^-1|_F^2, with columns of C of norm 1 (Denisov et al. 2022).
    `workload` "prefix": A is all ones. `workload` "server": A is the response of the
    model to each round's mean under the server's step, with momentum and schedule; the
    step must be linear.
    """

    kind: ClassVar[str] = "optimised"

    workload: Literal["prefix", "server"] = parameter(
        "prefix", doc="the workload A: prefix sums, or the server's steps"
    )

    def weights(self, rounds: int, step: LinearStep) -> np.ndarray:
        return _optimised(rounds, self.moved(rounds, step)).copy()

    def moved(self, rounds: int, step: LinearStep) -> bytes:
        """Return the workload A, float64 [T, T], as bytes."""
        workload = np.tril(np.ones((rounds, rounds)))
        if self.workload == "server":
            workload = step.response(rounds)
        return np.asarray(workload, dtype=float).tobytes()


@dataclasses.dataclass(frozen=True)
class Banded(Optimised):
    """The `optimised` factorisation with a banded encoder.

    Where a client's k participations are at least `bands` rounds apart, its columns of
    the encoder do not overlap, and they move the releases by sqrt(k). With more bands
    the accountant counts the overlap, which costs more noise (Choquette-Choo et al.,
    (Amplified) Banded Matrix Factorization, 2023).

    L-BFGS minimises the error of `Optimised` over the entries of C. It starts from the
    optimised encoder, truncated to its bands.
    """

    kind: ClassVar[str] = "banded"

    bands: int = parameter(
        8, ge=1, le=MOST, doc="diagonals of the encoder, including the main one"
    )

    def weights(self, rounds: int, step: LinearStep) -> np.ndarray:
        return _banded(rounds, self.moved(rounds, step), self.bands).copy()


def scaled(
    inverse: np.ndarray, *, separation: int = 1, participations: int = 1
) -> np.ndarray:
    """Scale C^-1 so that one unit moves the encoded sums by at most its contribution.

    The factor is the encoder's largest column norm, rounded up in the last digits. For
    units with several participations it is the joint sensitivity of all columns of a
    unit instead.

    Args:
        inverse: C^-1, lower triangular, float64 [T, T].
        separation: least number of rounds between two participations of a unit.
        participations: most rounds in which a unit takes part.

    Returns:
        The scaled inverse, float64 [T, T].
    """
    encoder = inverted(inverse)
    if participations > 1:
        # A local import: the workflow reads plans where scipy is not installed.
        from dpsum.accounting.repeated_participation import sensitivity

        _, moved = sensitivity(encoder.T @ encoder, separation, participations)
        return np.asarray(inverse * (moved * (1 + 1e-12)))
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
    # square = C^T C with a lower triangular C: Cholesky of the reversed matrix.
    reversed_square = square[::-1, ::-1]
    lower = np.linalg.cholesky(reversed_square)
    encoder = lower[::-1, ::-1].T
    rounded = np.round(encoder / _DIGITS) * _DIGITS
    return scaled(inverted(rounded))


@functools.lru_cache(maxsize=16)
def _banded(rounds: int, workload: bytes, bands: int) -> np.ndarray:
    # A local import: the workflow reads plans where scipy is not installed.
    from scipy import linalg, optimize

    if bands >= rounds:
        return _optimised(rounds, workload)
    moved = np.frombuffer(workload).reshape(rounds, rounds)
    squares = _with_ridge(moved.T @ moved)
    all_ones = np.ones((rounds, rounds))
    band = np.triu(all_ones, 1 - bands)
    band = np.tril(band)
    entry_indices = np.nonzero(band)
    encoder = np.zeros((rounds, rounds))

    def columns(entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        encoder[entry_indices] = entries
        squares_of_columns = (encoder**2).sum(axis=0)
        norms = np.sqrt(squares_of_columns)
        return encoder / norms, norms

    def error(entries: np.ndarray) -> tuple[float, np.ndarray]:
        unit, norms = columns(entries)
        identity = np.eye(rounds)
        inverse = linalg.solve_triangular(unit, identity, lower=True)
        noised = squares @ inverse
        squared_error = float((inverse * noised).sum())
        slope = -2 * (inverse.T @ noised) @ inverse.T
        along_column = (slope * unit).sum(axis=0)
        slope = (slope - unit * along_column) / norms
        return squared_error, slope[entry_indices]

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
    """Add a small ridge: without it, steps of almost zero rate get unbounded noise."""
    mean = np.diag(squares).mean()
    ridge = _RIDGE * mean * np.eye(len(squares))
    return np.asarray(squares + ridge)


def gram(squares: np.ndarray) -> np.ndarray:
    """Return the X with unit diagonal that nearly minimises the trace of squares X^-1.

    X = D^-1/2 (D^1/2 squares D^1/2)^1/2 D^-1/2, where D is the diagonal of the matrix
    root itself. The function iterates to this fixed point.

    Args:
        squares: A^T A, float64 [T, T].

    Returns:
        X = C^T C, float64 [T, T].
    """
    squares = _with_ridge(squares)
    diagonal = np.sqrt(np.diag(squares))
    for _ in range(_STEPS):
        half = np.sqrt(diagonal)
        product = half[:, None] * squares * half
        values, vectors = np.linalg.eigh(product)
        roots = np.sqrt(values.clip(min=0.0))
        root = (vectors * roots) @ vectors.T
        candidate = np.diag(root)
        change = np.abs(candidate / diagonal - 1)
        done = bool(change.max() < _CLOSE)
        diagonal = candidate
        if done:
            break
    size = np.sqrt(np.diag(root))
    scale = size[:, None] * size
    return np.asarray(root / scale)
