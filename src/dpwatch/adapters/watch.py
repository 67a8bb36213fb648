"""Shared base of the adapters: it writes the ledger lines of another library's loop and
tests whether the noise has its declared distribution.

A line has the sensitivity that follows from what was seen and the noise that was seen.
Where something else was released beside it, or what was seen is not the mechanism, it
says so (`reason`) and no finite epsilon is proven for it.

Noise is judged by tests that hold exactly for independent normal draws, each at a
chance of a false alarm of at most `FALSE_ALARM`: its size (chi squared, array by array
and over all, of this release and of all so far), coordinates without any, and draws
that come again (the correlation of two vectors, by Student's t). So a run of a thousand
releases of a hundred arrays is called wrong by mistake less often than once in a
thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.stats import chi2, poisson, t

from dpsum.accounting.account import Account, account
from dpsum.accounting.claims import Claim
from dpsum.accounting.context import AccountContext
from dpsum.errors import DpsumError
from dpsum.ledger import Ledger, Release, chain_of, read_ledger
from dpsum.norms import usual_scale
from dpsum.parameters import LARGEST, check_range
from dpsum.sampling import Sampling
from dpwatch.audit.anything import Audited, audited

FALSE_ALARM = 1e-8
"""The chance that one test calls right noise wrong."""

_LARGEST_RATIO = 1e100
"""Noise that is more than so many deviations counts as so many: its square is a number.
"""

NO_NOISE = 1e-100
"""The deviation that a line has where no noise was seen: a ledger has none of 0."""

_ARRAYS, _KEPT = (
    4,
    512,
    # arrays of a release, the largest, and coordinates of each that are compared with
    # others
)
_LEAST = 16  # coordinates; fewer say too little


class NoiseSeen:
    """The noise that was seen in a series of releases."""

    def __init__(self) -> None:
        self._squares: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._draws: list[np.ndarray] = []

    def faults(
        self,
        noise: Sequence[np.ndarray],
        std: float,
        values: Sequence[np.ndarray] | None = None,
    ) -> list[str]:
        """Return the faults of the next release's noise, array by array, given its
        declared deviation `std`; empty where there are none.

        `values` are what it was added to and rounded with: where it is below their
        resolution, it may be lost.
        """
        if std <= 0:
            return ["no noise is added"]
        pieces = [np.asarray(array, dtype=np.float64).ravel() / std for array in noise]
        if not all(np.isfinite(piece).all() for piece in pieces):
            return ["its noise cannot be told: what was released is not finite"]
        values = pieces if values is None else values
        messages = (
            self._sizes(pieces, std)
            + self._missing(pieces, values, std)
            + self._repeats(pieces)
        )
        return list(dict.fromkeys(messages))

    def _sizes(self, pieces: Sequence[np.ndarray], std: float) -> list[str]:
        whole = np.concatenate(pieces)
        for number, piece in enumerate([*pieces, whole]):
            key = -1 if piece is whole else number
            capped = np.clip(piece, -_LARGEST_RATIO, _LARGEST_RATIO)
            square = float(capped @ capped)
            self._squares[key] = self._squares.get(key, 0.0) + square
            self._counts[key] = self._counts.get(key, 0) + piece.size
            for total, count in (
                (square, piece.size),
                (self._squares[key], self._counts[key]),
            ):
                if (
                    not min(chi2.cdf(total, count), chi2.sf(total, count)) * 2
                    >= FALSE_ALARM
                ):
                    measured = std * (total / count) ** 0.5
                    where = "the noise" if key < 0 else f"the noise of array {number}"
                    return [
                        f"{where} is said to have deviation {std:.4g} and has"
                        f" {measured:.4g}"
                    ]
        return []

    @staticmethod
    def _missing(
        pieces: Sequence[np.ndarray], values: Sequence[np.ndarray], std: float
    ) -> list[str]:
        zeros = sum(int(np.sum(piece == 0.0)) for piece in pieces)
        # coordinates whose noise rounds to nothing: |noise| below half the distance of
        # two numbers there
        lost = 0.0
        for value in values:
            lost += float(
                np.sum(np.minimum(spacing(value) / (std * (2 * np.pi) ** 0.5), 1.0))
            )
        size = sum(piece.size for piece in pieces)
        if zeros and poisson.sf(zeros - 1, lost) < FALSE_ALARM:
            return [f"{zeros:,} of {size:,} coordinates have no noise"]
        return []

    def _repeats(self, pieces: Sequence[np.ndarray]) -> list[str]:
        faults = list[str]()
        earlier_draws = len(self._draws)
        largest = sorted(range(len(pieces)), key=lambda number: -pieces[number].size)[
            :_ARRAYS
        ]
        for number in sorted(largest):
            piece = pieces[number][:_KEPT].astype(np.float32)
            if piece.size < _LEAST:
                continue
            comparable = [
                at for at in range(len(self._draws)) if self._draws[at].size >= _LEAST
            ]
            chances = _chances(piece, [self._draws[at] for at in comparable])
            if comparable and np.min(chances) * len(comparable) < FALSE_ALARM:
                before = (
                    "in this release"
                    if comparable[int(np.argmin(chances))] >= earlier_draws
                    else "in a release before"
                )
                faults.append(f"the noise of array {number} was drawn already {before}")
            self._draws.append(piece)
        return faults[:1]


def _chances(own: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """The chance of the correlation r of n normal draws with each other vector, or of a
    larger one.

    r ((n - 2) / (1 - r^2))^1/2 is Student's t of n - 2 degrees of freedom. Of vectors
    of different lengths the first coordinates of both are compared.
    """
    chances = np.ones(len(others))
    for size in {min(own.size, vector.size) for vector in others}:
        at = [
            number
            for number, vector in enumerate(others)
            if min(own.size, vector.size) == size
        ]
        rows = np.stack([others[number][:size] for number in at]).astype(np.float64)
        rows -= rows.mean(axis=1, keepdims=True)
        row = own[:size].astype(np.float64) - own[:size].mean()
        norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(row)
        r = np.clip(rows @ row / np.maximum(norms, 1e-30), -1 + 1e-7, 1 - 1e-7)
        chances[at] = 2 * t.sf(np.abs(r) * np.sqrt((size - 2) / (1 - r * r)), size - 2)
    return chances


class Watch:
    """The ledger of a loop that another library runs.

    Args:
        ledger: its file, which must not be there yet.
        metrics: "released": what the loop hands out beside its private releases
            (losses, accuracies) is seen by whoever sees these; "kept": nobody but the
            server sees it.
        go_on: whether the file may have lines of this loop already, also of another
            process.

    Attributes:
        adaptive: whether the noise follows what was released before; see
            `AccountContext`.
        unit: whose contribution is protected.

    Raises:
        DpsumError: the file has lines, or `metrics` is another word.
    """

    adaptive: bool | None = False
    unit: ClassVar[str] = "client"

    def __init__(
        self, ledger: Path | str, metrics: str = "released", *, go_on: bool = False
    ) -> None:
        if metrics not in ("released", "kept"):
            raise DpsumError(
                f"metrics is {metrics!r}: give 'released', or 'kept' if nobody but the"
                " server sees them"
            )
        self.path = Path(ledger)
        self.metrics = metrics
        self._go_on = go_on
        self.round = 0
        if self.path.exists() and self.path.stat().st_size:
            if not go_on:
                raise DpsumError(
                    f"{self.path} has the lines of another run: name a new file, or"
                    " move it away"
                )
            self.round = read_ledger(self.path)[-1].round + 1
        self.ledger = Ledger(self.path)
        if self.round:
            self.ledger.chain = chain_of(
                self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            )
        self._undo: list[Callable[[], object]] = []
        self._noise: dict[str, NoiseSeen] = {}

    def replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        """Have `by` called in place of a method of `owner`, with that method before its
        arguments, until `stop`.
        """
        method = getattr(owner, name)
        self.put(owner, name, lambda *args, **kwargs: by(method, *args, **kwargs))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of `owner` until `stop`, past what its class makes of
        attributes.
        """
        attributes = dict(vars(owner))
        if name in attributes:
            self._undo.append(lambda: object.__setattr__(owner, name, attributes[name]))
        else:
            self._undo.append(lambda: object.__delattr__(owner, name))
        object.__setattr__(owner, name, value)

    def stop(self) -> None:
        """Stop watching: the library's objects become as they were."""
        while self._undo:
            self._undo.pop()()

    def write(
        self,
        *,
        name: str,
        threshold: float,
        sensitivity: float,
        deviation: float,
        sampler: Mapping[str, Any],
        denominator: float,
        reasons: Sequence[str],
        draws: Sequence[Sequence[np.ndarray]] | None = None,
        values: Sequence[np.ndarray] | None = None,
        scale: float = 1.0,
        dimension: int = 1,
        observer: str = "everyone",
        combines: list[float] | None = None,
        noise_stream: str = "of the library that was watched",
        groups: Mapping[str, Any] | None = None,
    ) -> None:
        """Append the line of a release of this round; `reasons` say why no finite
        epsilon holds of it.

        Args:
            deviation: that the noise is said to have; the line is of the release times
                `scale`.
            draws: the noise that was seen, each draw array by array; None: whoever
                calls has judged it.
            values: see `NoiseSeen.faults`.
            dimension: where no draws tell it.
            groups: `boundaries`, `thresholds` and perhaps `names` of groups of
                coordinates, each clipped to its own threshold. All have noise of the
                same deviation, and `sensitivity` is the L2 norm of the thresholds.

        Raises:
            DpsumError: a release that no mechanism makes.
        """
        if draws is not None:
            noise_seen = self._noise.setdefault(name, NoiseSeen())
            faults = [
                fault
                for noise in draws
                for fault in noise_seen.faults(noise, deviation, values)
            ]
            faults += [] if draws else ["no noise is added"]
            reasons = [*faults, *reasons]
            dimension = sum(array.size for noise in draws[-1:] for array in noise) or 1
            if faults:
                deviation = rms(draws[-1]) if draws else 0.0
                # The reasons make epsilon infinite, whatever the line says of noise.
                if not deviation * scale <= LARGEST * min(sensitivity, 1.0):
                    deviation = 0.0
        # A ledger's smallest multiplier is 1 / LARGEST.
        least = max(NO_NOISE, 10 * float(sensitivity) / LARGEST)
        std = max(scale * float(deviation), least)
        by_group = None
        if groups is not None:
            by_group = {**groups, "noise_stds": [std] * len(groups["thresholds"])}
        try:
            release = Release(
                round=self.round,
                name=name,
                mechanism="gaussian" if combines is None else "correlated-gaussian",
                unit=self.unit,
                adjacency="zero-out",
                observer=observer,
                noise_multiplier=std / sensitivity,
                threshold=float(threshold),
                sensitivity=float(sensitivity),
                noise_std=std,
                dimension=int(dimension),
                sampler=Sampling.of(sampler),
                denominator=float(denominator),
                noise_stream=noise_stream,
                counted_by_paper=True,
                data_dependent_threshold=bool(reasons),
                reason="; ".join(dict.fromkeys(reasons)),
                combines=combines,
                groups=by_group,
            )
        except ValueError as error:
            raise DpsumError(
                f"release {self.round + 1} is no private one: {error}"
            ) from error
        self.ledger.append(release)

    def releases(self) -> list[Release]:
        """The releases so far; DpsumError where there are none, or the ledger was cut
        off or changed.
        """
        releases = read_ledger(self.path, None if self._go_on else self.ledger.chain)
        if not releases:
            raise DpsumError(
                "nothing was released yet: there is nothing to account for, and nothing"
                " to audit"
            )
        return releases

    def claim(self) -> Claim | None:
        """The library's own epsilon; None where it says none."""
        return None

    def account(self, delta: float) -> Account:
        """The account of what was released so far, with the library's own epsilon as
        the claim.

        Raises:
            DpsumError: the sampler is unknown, or the lines are not of one mechanism;
                see `releases` too.
        """
        releases = self.releases()
        claim = self.claim()
        claims = (
            {}
            if claim is None
            else {event.sampler["kind"]: claim for event in releases}
        )
        return account(
            releases,
            delta=delta,
            claims=claims,
            given=AccountContext(adaptive=self.adaptive),
        )

    def release_of(self) -> Callable[[np.ndarray], np.ndarray]:
        """The loop's own clipping, sum and noise, for an audit to call: contributions
        [n, d] to what leaves it [d].
        """
        raise DpsumError(
            f"{type(self).__name__} has no release that an audit could call"
        )

    def declared(self, last: Release) -> dict[str, Any]:
        """Return the declared mechanism, as arguments of `audit.anything.audited`, from
        the ledger's last line.
        """
        return {
            "dimension": 100,
            "adjacency": "zero-out",
            "cohort": max(int(last.denominator), 2),
        }

    def audit(self, delta: float, **how: Any) -> Audited:
        """Attack the release as it is now, declared to be what the ledger's last line
        says.

        Args:
            delta: of epsilon.
            how: further arguments of `audit.anything.audited`.

        Raises:
            DpsumError: a release that cannot be called, or bad input; see `releases`
                too.
        """
        last = self.releases()[-1]
        declared: dict[str, Any] = {
            "noise_multiplier": last.noise_multiplier,
            "participation": last.sampler,
            **self.declared(last),
        }
        return audited(self.release_of(), delta=delta, **declared | how)


def check_cohorts(cohorts: str) -> None:
    """Refuse a word that says neither that cohorts are secret nor that they are
    known.
    """
    if cohorts not in ("secret", "known"):
        raise DpsumError(
            f"cohorts is {cohorts!r}: give 'secret', or 'known' if whoever sees the"
            " models can tell them"
        )


def spacing(values: np.ndarray) -> np.ndarray:
    """The distance from each number to the next of its precision, float64."""
    values = np.asarray(values)
    floats = (
        values
        if np.issubdtype(values.dtype, np.floating)
        else values.astype(np.float64)
    )
    return np.spacing(np.abs(floats)).astype(np.float64)


def differences(
    after: Sequence[np.ndarray], before: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the differences of arrays in double precision, without warnings where
    they are not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return [
            np.asarray(new, np.float64) - np.asarray(old, np.float64)
            for new, old in zip(after, before, strict=True)
        ]


def norm(arrays: Sequence[np.ndarray]) -> float:
    """Return the L2 norm of all arrays together; infinite where one is not finite."""
    values = [np.asarray(array, np.float64) for array in arrays]
    if not all(np.isfinite(array).all() for array in values):
        return math.inf
    scale = usual_scale(
        max(
            (float(np.max(np.abs(array), initial=0.0)) for array in values), default=0.0
        )
    )
    square = sum(float(np.sum((array / scale) ** 2)) for array in values)
    return scale * math.sqrt(square)


def rms(noise: Sequence[np.ndarray]) -> float:
    """Return the deviation that noise was seen to have; infinite where it is not
    finite.
    """
    coordinates = sum(np.size(array) for array in noise)
    return norm(noise) / math.sqrt(max(coordinates, 1))


def check_scale(clipping_norm: float, deviation: float) -> None:
    """Refuse a clipping norm or a deviation of noise that no ledger can hold.

    Raises:
        DpsumError: one of them is not a number from 1e-150 to 1e150.
    """
    check_range("the clipping norm", clipping_norm)
    check_range("the deviation of the noise", deviation)
