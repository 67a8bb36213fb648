"""Interface to a release under audit: it checks the answers and learns their structure.

A few hundred calls show which coordinates have noise, how far one contribution moves
the release, and whether one call depends on another. The result selects the attacks.
These make separate calls, so that learning does not reduce their confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpsum.errors import DpsumError

ReleaseCall = Callable[[np.ndarray], Any]
"""Function from the contributions of one call, float64 [n, d], to the release: an
array, or several in a list or dict.
"""

ADJACENCIES = ("add-or-remove", "zero-out", "replace-one")

LARGE = 1e6
"""Norm of a canary before clipping: above any threshold in use, and with a square
within single precision.
"""

NULLS = 32
"""Number of calls without a canary before, and after, the calls with many."""

_NUMBERS = 4_000_000
"""Most numbers in the contributions of one call."""

_COPIES = 1000
_SURE = 6.0
"""Number of standard errors of a certain difference: correct code reaches it in one of
a hundred million audits.
"""

_MORE = 16
"""Factor of further calls before the audit reports that a release ignores its input."""

_STATE = (
    "release keeps state: its result for the same contributions {how} after a call"
    " with others; create its state (momentum, an adaptive threshold) anew in each"
    " call, and audit the private sum alone"
)


class Watched:
    """A release under audit: checks its answers and counts its calls.

    Args:
        release: see `ReleaseCall`.
        dimension: number of coordinates d of a contribution.
        adjacency: a canary's contribution in the other world: no row ("add-or-remove"),
            a row of zeros ("zero-out"), or the opposite row ("replace-one"). In the
            last two, every call has `cohort` rows, some of them zero.
        cohort: number of rows of a call; None: as many as the canaries need.
        told: called with the number of calls so far after each call.

    Attributes:
        calls: number of calls so far.
        most: most rows that one call may have besides the background.
        direction: a row, float64 [d].
        background: the opposite row, float64 [1, d], which is in every call.
        mean: mean of the answers to the background alone, float64 [k]. `learn` sets it,
            and the attributes below.
        variance: variance of the noise, float64 [k]: the same number for all
            coordinates, except where one clearly differs; always above 0.
        aligned: whether the answer has one number for each coordinate of a
            contribution.
    """

    direction: np.ndarray
    background: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    aligned: bool

    def __init__(
        self,
        release: ReleaseCall,
        dimension: int,
        adjacency: str,
        cohort: int | None,
        told: Callable[[int], object] = lambda calls: None,
    ) -> None:
        if not callable(release):
            raise DpsumError(
                f"release is a {type(release).__name__}: pass a function of"
                " contributions [n, d]"
            )
        if (
            isinstance(dimension, bool)
            or not isinstance(dimension, int)
            or dimension < 1
        ):
            raise DpsumError(
                f"dimension is {dimension!r}: it must be the number of coordinates d,"
                " a whole number of at least 1"
            )
        if adjacency not in ADJACENCIES:
            raise DpsumError(
                f"adjacency is {adjacency!r}: choose {', '.join(ADJACENCIES)}"
            )
        if cohort is not None and (cohort < 2 or adjacency == "add-or-remove"):
            raise DpsumError(
                f"cohort is {cohort}: it fixes the number of rows of a call, so it"
                " must be at least 2, and adjacency zero-out or replace-one"
            )
        self._release = release
        self.dimension = dimension
        self.adjacency = adjacency
        self.calls = 0
        self._told = told
        fits = max(1, _NUMBERS // dimension)
        self.most = min(_COPIES, fits) if cohort is None else cohort - 1
        self._cohort = None if adjacency == "add-or-remove" else self.most + 1
        self._size: int | None = None

    @property
    def fixed(self) -> bool:
        """Whether all calls have the same number of rows."""
        return self._cohort is not None

    @property
    def pair_size(self) -> int:
        """Number of rows of a call with the background and one canary."""
        return self._cohort or 2

    def __call__(
        self,
        rows: np.ndarray,
        present: np.ndarray | None = None,
        *,
        order: np.ndarray | None = None,
    ) -> np.ndarray:
        """Call the release and return its answer, float64 [k].

        Args:
            rows: contributions [n, d]. The first row is the background, which is in
                every call.
            present: whether each canary is present, bool [n - 1]; None: all are.
            order: places of all rows of the call, by which they are sorted, float64 [m]
                with m at least the number of rows; None: they stay as they are.

        Raises:
            DpsumError: the release fails, or its answer is not an array of finite
                numbers of constant size.
        """
        rows = self._arranged(rows, present, order)
        self.calls += 1
        arguments = f"contributions [{len(rows)}, {self.dimension}]"
        try:
            answer = _flat(self._release(np.array(rows)))
        except DpsumError:
            raise
        except Exception as error:
            fault = (
                f"{type(error).__name__}: {error}"
                if str(error)
                else type(error).__name__
            )
            raise DpsumError(
                f"release fails on {arguments} at call {self.calls} ({fault}):"
                " correct it and try again"
            ) from error
        if answer.dtype.kind not in "fiub" or not answer.size:
            raise DpsumError(
                f"release returned {answer.dtype} of size {answer.size} for"
                f" {arguments}: return real numbers"
            )
        if self._size is None:
            self._size = answer.size
        if answer.size != self._size:
            raise DpsumError(
                f"release returned {answer.size} numbers for {arguments}, but"
                f" {self._size} before: a mechanism's output must have the same size"
                " for every input"
            )
        if not np.isfinite(answer).all():
            raise DpsumError(
                f"release returned numbers that are not finite for {arguments}:"
                " correct it and try again"
            )
        self._told(self.calls)
        return answer.astype(np.float64)

    def _arranged(
        self,
        rows: np.ndarray,
        present: np.ndarray | None,
        order: np.ndarray | None,
    ) -> np.ndarray:
        """Return the contributions of a call; arguments as of the call."""
        if present is not None:
            there = np.concatenate([[True], present])
            if self.adjacency == "add-or-remove":
                rows = rows[there]
            else:
                rows = (
                    rows
                    * np.where(
                        there, 1.0, 0.0 if self.adjacency == "zero-out" else -1.0
                    )[:, None]
                )
        if self._cohort is not None:
            rows = np.concatenate(
                [rows, np.zeros((self._cohort - len(rows), self.dimension))]
            )
        if order is not None:
            rows = rows[np.argsort(order[: len(rows)], kind="stable")]
        return rows

    def learn(self, rng: np.random.Generator) -> None:
        """Learn the mean, the noise and the response of the release.

        Raises:
            DpsumError: the release keeps state from call to call, or ignores its input.
        """
        self.direction = direction = (
            LARGE * rng.choice([-1.0, 1.0], self.dimension) / math.sqrt(self.dimension)
        )
        self.background = background = -direction[None, :]
        before = np.stack([self(background) for _ in range(NULLS)])
        crowds, after = self._crowds(NULLS)
        nulls = np.concatenate([before, after])
        self.aligned = nulls.shape[1] == self.dimension
        # Every second pair of calls gives the direction of the response; the others
        # test whether there is a response.
        ways = [unit_vector(crowds[::2].mean(axis=0) - before[::2].mean(axis=0))] + [
            unit_vector(direction)
        ] * self.aligned
        answers = np.concatenate([before[1::2], after[1::2]])
        # Repeated noise cannot measure a response; the attacks show that fault.
        if not 1 < len(np.unique(before, axis=0)) < NULLS:
            if (
                max(_apart(before[1::2] @ way, after[1::2] @ way) for way in ways)
                > _SURE
            ):
                raise DpsumError(_STATE.format(how="moves"))
            # Differences of pairs: distances from a mean of far groups would depend on
            # the groups' sizes.
            spreads = [
                log_spread(answers[1::2] - answers[::2]) for answers in (before, after)
            ]
            if nulls.shape[1] > 1 and _apart(*spreads) > _SURE:
                raise DpsumError(_STATE.format(how="has other noise"))
        plainly = _answers(crowds[1::2], answers, ways)
        if plainly < _SURE:  # a weak response may need more calls
            crowds, more = self._crowds(_MORE * NULLS)
            plainly = _answers(crowds, more, ways)
        if plainly < _SURE:
            raise DpsumError(
                f"release ignores its input: {self.most} contributions in one"
                f" direction change nothing in {self.calls} calls; pass the function"
                " that adds them up, or lower the noise for the audit"
            )
        variance = nulls.var(axis=0, ddof=1)
        usual = float(np.median(variance))
        variance = np.where(
            (variance > usual / 2) & (variance < 2 * usual), usual, variance
        )
        moved = float(np.abs(crowds.mean(axis=0)).max()) / self.most
        floor = 1e-12 * max(usual, float(variance.max()), moved**2)
        self.mean = nulls.mean(axis=0)
        self.variance = np.maximum(variance, max(floor, 1e-300))

    def _crowds(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return answers to a crowd and to the background alone, called in turns.

        The crowd has as many copies of the direction as a call may have.
        """
        crowd = self._crowd(self.direction)
        crowds, nulls = zip(
            *((self(crowd), self(self.background)) for _ in range(count)), strict=True
        )
        return np.stack(crowds), np.stack(nulls)

    def _crowd(self, row: np.ndarray) -> np.ndarray:
        """Return a call of the background and as many copies of a row as it may have."""
        copies = np.repeat(row[None, :], self.most, axis=0)
        return np.concatenate([self.background, copies])

    def response(self, row: np.ndarray) -> np.ndarray:
        """Return the change of the answer that one row makes, float64 [k].

        It is along the row, unless the answer clearly changes in other directions too.
        """
        response = (self(self._crowd(row)) - self.mean) / self.most
        unit = row / np.linalg.norm(row)
        straight = (response @ unit) * unit
        turned = (
            float(((response - straight) ** 2).sum())
            > 2 * float(self.variance.sum()) / self.most**2
        )
        return np.asarray(response if turned else straight)


def _flat(answer: Any) -> np.ndarray:
    """Return all numbers of an answer as one vector; lists and dicts array by array."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, (list, tuple)):
        return np.concatenate([np.zeros(0), *(_flat(piece) for piece in answer)])
    if hasattr(answer, "detach"):
        answer = answer.detach().cpu()
    return np.asarray(answer).ravel()


def _answers(crowds: np.ndarray, nulls: np.ndarray, ways: list[np.ndarray]) -> float:
    """Return the distance of answers to a crowd and to nobody, in standard errors.

    It is the largest over some directions and the spread.
    """
    spreads = [log_spread(answers - nulls.mean(axis=0)) for answers in (crowds, nulls)]
    return max(_apart(*spreads), *(_apart(crowds @ way, nulls @ way) for way in ways))


def unit_vector(values: np.ndarray) -> np.ndarray:
    """Return a vector of length 1 in the direction of another."""
    return np.asarray(values / max(float(np.linalg.norm(values)), 1e-300))


def log_spread(rows: np.ndarray) -> np.ndarray:
    """Return the log of each row's spread."""
    return 0.5 * np.log(np.maximum((rows**2).mean(axis=1), 1e-300))


def _apart(first: np.ndarray, second: np.ndarray) -> float:
    """Return the distance of two samples' means in standard errors."""
    gap = abs(float(first.mean() - second.mean()))
    error = math.sqrt(
        float(first.var(ddof=1)) / len(first) + float(second.var(ddof=1)) / len(second)
    )
    scale = max(float(np.abs(first).max()), float(np.abs(second).max()))
    return 0.0 if gap <= 1e-9 * scale else gap / max(error, 1e-300)
