"""Anybody's release, called with contributions of our own: what it answers, and how it answers at all.

`Watched` calls it and checks the answers. `look` calls it a few hundred times to learn where its noise is, how far one
contribution moves what is released, and whether one call follows from another. What is learned chooses the attacks; the
attacks make calls of their own, so that it takes nothing from their confidence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpsum.errors import DpsumError

ReleaseCall = Callable[[np.ndarray], Any]
"""Contributions float64 [n, d] of one call to what is released: an array, or several of them in a list or dict."""

ADJACENCIES = ("add-or-remove", "zero-out", "replace-one")

LARGE = 1e6
"""A canary's norm before clipping: above any threshold in use; its square fits single precision."""

NULLS = 32
"""Calls without a canary before those with many, and as many after."""

_NUMBERS = 4_000_000
"""Numbers that are handed over in one call, at most."""

_COPIES = 1000
_SURE = 6.0
"""Standard errors. Right code differs by so many in one of a hundred million audits."""

_MORE = 16
"""So many times the calls where no answer to the contributions was seen, before that is said."""


class Watched:
    """A release, its answers checked and counted.

    Args:
        release: see `ReleaseCall`.
        dimension: coordinates d of a contribution.
        adjacency: what the other world has of a canary: no row ("add-or-remove"), a row of zeros ("zero-out"), or the
            row against it ("replace-one"). In the last two every call has `cohort` rows, some of them zero.
        cohort: rows of a call; None: as many as the canaries need.

    Attributes:
        calls: made so far.
        most: rows that one call may have beside the background.
    """

    def __init__(self, release: ReleaseCall, dimension: int, adjacency: str, cohort: int | None) -> None:
        if not callable(release):
            raise DpsumError(f"release is a {type(release).__name__}: hand over a function of contributions [n, d]")
        if isinstance(dimension, bool) or not isinstance(dimension, int) or dimension < 1:
            raise DpsumError(f"dimension is {dimension!r}: it is the whole number of coordinates d, from 1 on")
        if adjacency not in ADJACENCIES:
            raise DpsumError(f"adjacency is {adjacency!r}: choose {', '.join(ADJACENCIES)}")
        if cohort is not None and (cohort < 2 or adjacency == "add-or-remove"):
            raise DpsumError(
                f"cohort is {cohort}: it fixes the rows of a call, two at least, and so it goes with zero-out or "
                "replace-one adjacency"
            )
        self._release, self.dimension, self.adjacency, self.calls = release, dimension, adjacency, 0
        fits = max(1, _NUMBERS // dimension)
        self.most = min(_COPIES, fits) if cohort is None else cohort - 1
        self._cohort = None if adjacency == "add-or-remove" else self.most + 1
        self._size: int | None = None

    def __call__(self, rows: np.ndarray, present: np.ndarray | None = None) -> np.ndarray:
        """What is released of some rows, float64 [k].

        Args:
            rows: float64 [n, d]; the first is the background, which is always there.
            present: bool [n - 1], whether each canary is in; None: they all are.

        Raises:
            DpsumError: the release fails, or its answer is no array of finite numbers of one size.
        """
        if present is not None:
            there = np.concatenate([[True], present])
            if self.adjacency == "add-or-remove":
                rows = rows[there]
            else:
                rows = rows * np.where(there, 1.0, 0.0 if self.adjacency == "zero-out" else -1.0)[:, None]
        if self._cohort is not None:
            rows = np.concatenate([rows, np.zeros((self._cohort - len(rows), self.dimension))])
        self.calls += 1
        given = f"contributions [{len(rows)}, {self.dimension}]"
        try:
            answer = _flat(self._release(np.array(rows)))
        except DpsumError:
            raise
        except Exception as error:
            fault = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise DpsumError(
                f"release fails on {given} at call {self.calls} ({fault}): mend it and try again"
            ) from error
        if answer.dtype.kind not in "fiub" or not answer.size:
            raise DpsumError(f"release answers {given} with {answer.dtype} of size {answer.size}: return real numbers")
        if self._size is None:
            self._size = answer.size
        if answer.size != self._size:
            raise DpsumError(
                f"release answers {given} with {answer.size} numbers, and answered with {self._size} before: what is "
                "released has to have one size, whatever comes in"
            )
        if not np.isfinite(answer).all():
            raise DpsumError(f"release answers {given} with numbers that are not finite: mend it and try again")
        return answer.astype(np.float64)


def _flat(answer: Any) -> np.ndarray:
    """All numbers of an answer in a row, of lists and dicts of arrays one array after another."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, (list, tuple)):
        return np.concatenate([np.zeros(0), *(_flat(part) for part in answer)])
    if hasattr(answer, "detach"):
        answer = answer.detach().cpu()
    return np.asarray(answer).ravel()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """What was learned of a release.

    Attributes:
        direction: float64 [d], the row that is against the background.
        background: float64 [1, d], the row that is always there.
        mean: float64 [k] of the answers to the background alone.
        variance: float64 [k] of the noise; one number but where a coordinate plainly differs, and never quite 0.
        aligned: whether there is an answer for each coordinate of a contribution.
    """

    direction: np.ndarray
    background: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    aligned: bool


def look(watched: Watched, rng: np.random.Generator) -> Look:
    """Learn how a release answers.

    Raises:
        DpsumError: it keeps state from call to call, or does not follow from its input.
    """
    direction = LARGE * rng.choice([-1.0, 1.0], watched.dimension) / math.sqrt(watched.dimension)
    background = -direction[None, :]
    many = np.concatenate([background, np.repeat(direction[None, :], watched.most, axis=0)])
    before = np.stack([watched(background) for _ in range(NULLS)])
    crowds, after = _pairs(watched, many, background, NULLS)
    nulls = np.concatenate([before, after])
    aligned = nulls.shape[1] == watched.dimension
    # Where the answer moves is seen in every second pair of calls, and whether it does in the others.
    ways = [_unit(crowds[::2].mean(axis=0) - before[::2].mean(axis=0))] + ([_unit(direction)] if aligned else [])
    others = np.concatenate([before[1::2], after[1::2]])
    # Noise that comes again and again is no noise to measure a move by; that is a fault which the attacks show.
    again = 1 < len(np.unique(before, axis=0)) < NULLS
    if not again and max(_apart(before[1::2] @ way, after[1::2] @ way) for way in ways) > _SURE:
        _refuse_state("moves")
    spreads = [_spread(answers - answers.mean(axis=0)) for answers in (before, after)]
    if not again and nulls.shape[1] > 1 and _apart(*spreads) > _SURE:
        _refuse_state("has other noise")
    seen = _answers(crowds[1::2], others, ways)
    if seen < _SURE:  # such an answer may take more calls to be seen
        crowds, more = _pairs(watched, many, background, _MORE * NULLS)
        seen = _answers(crowds, more, ways)
    if seen < _SURE:
        raise DpsumError(
            f"release ignores its input: {watched.most} contributions that all point one way change nothing in "
            f"{watched.calls} calls; hand over the function that adds them up, or lower the noise for the audit"
        )
    variance = nulls.var(axis=0, ddof=1)
    usual = float(np.median(variance))
    variance = np.where((variance > usual / 2) & (variance < 2 * usual), usual, variance)
    floor = 1e-12 * max(usual, float(variance.max()), float(np.abs(crowds.mean(axis=0)).max()) ** 2 / watched.most**2)
    return Look(
        direction=direction, background=background, mean=nulls.mean(axis=0), aligned=aligned,
        variance=np.maximum(variance, max(floor, 1e-300)),
    )  # fmt: skip


def _pairs(watched: Watched, many: np.ndarray, few: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(watched(many), watched(few)) for _ in range(count)]
    return np.stack([one for one, _ in pairs]), np.stack([other for _, other in pairs])


def _answers(crowds: np.ndarray, nulls: np.ndarray, ways: list[np.ndarray]) -> float:
    """How plainly answers to a crowd differ from those to none: along some ways, or in their spread."""
    spreads = [_spread(answers - nulls.mean(axis=0)) for answers in (crowds, nulls)]
    return max(_apart(*spreads), *(_apart(crowds @ way, nulls @ way) for way in ways))


def _refuse_state(how: str) -> None:
    raise DpsumError(
        f"release keeps state: its answer to the same contributions {how} after a call with others; make what it keeps "
        "(momentum, an adaptive threshold) anew in each call, and have the audit see the private sum alone"
    )


def _unit(values: np.ndarray) -> np.ndarray:
    return np.asarray(values / max(float(np.linalg.norm(values)), 1e-300))


def _spread(rows: np.ndarray) -> np.ndarray:
    """The log of each row's spread."""
    return 0.5 * np.log(np.maximum((rows**2).mean(axis=1), 1e-300))


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """How many standard errors the means of two sets of numbers are apart."""
    gap = abs(float(one.mean() - other.mean()))
    error = math.sqrt(float(one.var(ddof=1)) / len(one) + float(other.var(ddof=1)) / len(other))
    scale = max(float(np.abs(one).max()), float(np.abs(other).max()))
    return 0.0 if gap <= 1e-9 * scale else gap / max(error, 1e-300)
