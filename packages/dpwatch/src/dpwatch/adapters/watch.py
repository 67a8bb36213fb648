"""Shared base of the adapters: ledger lines of another library's loop, and noise tests.

A line has the observed noise, and the sensitivity that follows from the observations.
Where the loop released something else as well, or the observations contradict the
mechanism, the line has a reason, and no finite epsilon is proven.

Tests judge the noise. They are exact for independent normal draws, and each has a
false-alarm probability of at most `FALSE_ALARM`. They test the size of the noise (chi
squared, array by array and over all, of this release and of all so far), coordinates
without noise, and repeated draws (the correlation of two vectors, by Student's t, and
equal digits). A run of a thousand releases of a hundred arrays is rejected by mistake
less often than once in a thousand.

Every account names its adjacency. The lines are for zero-out: neighbours have the same
number of units, which is public. Loops divide by numbers that follow the number of
units, so that nothing is proven where a unit more or less changes it. A library's claim
for add-or-remove adjacency is void, unless the caller declares the number public.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr
from scipy.stats import chi2, poisson, t

from dpsum.accounting.account import Account, account
from dpsum.accounting.claims import Claim
from dpsum.accounting.context import AccountContext
from dpsum.errors import DpsumError
from dpsum.ledger import Ledger, Release, chain_of, read_ledger
from dpsum.parameters import LARGEST, check_range
from dpsum.private_sum import usual_scale
from dpsum.sampling import Sampling
from dpwatch.audit.anything import Audited, audited

FALSE_ALARM = 1e-8
"""Probability that one test rejects correct noise."""

_LARGEST_RATIO = 1e100
"""Cap of the noise in declared deviations, so that its square is finite."""

NO_NOISE = 1e-100
"""Deviation of a line without observed noise: a ledger cannot hold 0."""

_ARRAYS, _KEPT = (
    4,
    512,
    # arrays of a release, the largest, and coordinates of each that are compared with
    # others
)
_LEAST = 16  # least coordinates for the test of repeated draws
_SINGLE_PRECISION_ZERO = 2.0**-24
"""Largest probability that a generator of single-precision normal draws returns 0.

Torch draws pairs by Box and Muller's method, and both are 0 where its uniform number of
24 bits is. JAX inverts the distribution function at a number of 23 bits and a sign.
"""
_DIGITS = 32
_LEVELS = 16
"""Coordinates of a draw that are compared by their digits, and values of a digit: two
independent draws of `_LEAST` coordinates agree with probability 2^-63.
"""


class NoiseSeen:
    """Observed noise of a series of releases.

    Args:
        window: number of earlier draws that are compared by their correlation; None:
            all. Equal draws are found whatever their age.
    """

    def __init__(self, window: int | None = None) -> None:
        self._squares: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._zeros = _ZeroCounts()
        self._draws: deque[np.ndarray] = deque(maxlen=window)
        self._digits: set[bytes] = set()

    def faults(
        self,
        noise: Sequence[np.ndarray],
        std: float,
        values: Sequence[np.ndarray] | None = None,
    ) -> list[str]:
        """Return the faults of the next release's noise; empty if there are none.

        Args:
            noise: the observed noise, array by array.
            std: its declared deviation.
            values: the values to which the noise was added, in their own precision.
                Noise below their floating-point resolution may be lost, and a generator
                of single-precision numbers returns 0 now and then.
        """
        if std <= 0:
            return ["no noise is added"]
        pieces = [np.asarray(array, dtype=np.float64).ravel() / std for array in noise]
        if not all(np.isfinite(piece).all() for piece in pieces):
            return ["its noise cannot be measured: the release is not finite"]
        values = pieces if values is None else values
        messages = (
            self._sizes(pieces, std)
            + self._missing(pieces, values, std)
            + self.repeats(pieces)
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
                        f"{where} has deviation {measured:.4g}, but the mechanism"
                        f" states {std:.4g}"
                    ]
        return []

    def _missing(
        self, pieces: Sequence[np.ndarray], values: Sequence[np.ndarray], std: float
    ) -> list[str]:
        seen = _ZeroCounts()
        for piece, value in zip(pieces, values, strict=True):
            seen.zeros += int(np.sum(piece == 0.0))
            # Coordinates whose noise rounds to zero: |noise| is below half the spacing
            # of floating-point numbers there.
            lost = spacing(value) / (std * (2 * np.pi) ** 0.5)
            seen.rounded += float(np.sum(np.minimum(lost, 1.0)))
            if np.asarray(value).dtype.itemsize <= 4:
                seen.drawn += piece.size * _SINGLE_PRECISION_ZERO
        self._zeros.add(seen)
        size = sum(piece.size for piece in pieces)
        if seen.zeros and (seen.is_too_many() or self._zeros.is_too_many()):
            return [f"{seen.zeros:,} of {size:,} coordinates have no noise"]
        return []

    def repeats(
        self, pieces: Sequence[np.ndarray], level: float = FALSE_ALARM
    ) -> list[str]:
        """Return the first array whose noise was used before, as a fault; or nothing.

        Args:
            pieces: the noise of a release in deviations, array by array.
            level: false-alarm probability of the comparison of an array.
        """
        faults = list[str]()
        earlier = list(self._draws)
        of_this_release = list[np.ndarray]()
        by_size = sorted(range(len(pieces)), key=lambda number: -pieces[number].size)
        largest = set(by_size[:_ARRAYS])
        for number, whole in enumerate(pieces):
            if whole.size < _LEAST:
                continue
            before = ""
            digits = _digits(whole)
            if digits in self._digits:
                before = "with equal digits"
            self._digits.add(digits)
            if number in largest:
                piece = whole[:_KEPT].astype(np.float32)
                comparable = [*earlier, *of_this_release]
                chances = _chances(piece, comparable)
                if comparable and np.min(chances) * len(comparable) < level:
                    before = "in an earlier release"
                    if int(np.argmin(chances)) >= len(earlier):
                        before = "in this release"
                of_this_release.append(piece)
            if before:
                faults.append(f"the noise of array {number} was used before: {before}")
        self._draws.extend(of_this_release)
        return faults[:1]


@dataclasses.dataclass
class _ZeroCounts:
    """Coordinates without observed noise, and those that right noise explains.

    Attributes:
        zeros: number of coordinates whose noise is 0.
        rounded: expected number of those whose noise is lost to rounding.
        drawn: bound on the expected number of times that a generator of
            single-precision numbers returns 0, for two coordinates at most.
    """

    zeros: int = 0
    rounded: float = 0.0
    drawn: float = 0.0

    def add(self, other: _ZeroCounts) -> None:
        """Add the counts of a further release."""
        self.zeros += other.zeros
        self.rounded += other.rounded
        self.drawn += other.drawn

    def is_too_many(self) -> bool:
        """Return whether right noise has so many zeros with less than `FALSE_ALARM`."""
        by_generator = 0
        if self.drawn:
            by_generator = 2 * int(poisson.isf(FALSE_ALARM / 2, self.drawn))
        by_rounding = self.zeros - by_generator
        if by_rounding <= 0:
            return False
        return bool(poisson.sf(by_rounding - 1, self.rounded) < FALSE_ALARM / 2)


def _digits(piece: np.ndarray) -> bytes:
    """Return the digits of a draw's first coordinates, equal for a draw and its negative.

    The `_LEVELS` digits are equally likely for normal noise. Rounding moves a digit
    only where a coordinate is close to the border of two.
    """
    values = piece[:_DIGITS] * (1.0 if piece[0] >= 0 else -1.0)
    return np.floor(ndtr(values) * _LEVELS).astype(np.uint8).tobytes()


def _chances(vector: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Return the p-value of the correlation r of n normal draws with each other vector.

    r ((n - 2) / (1 - r^2))^1/2 is Student's t of n - 2 degrees of freedom. Vectors of
    different lengths are compared in the first coordinates of both.
    """
    chances = np.ones(len(others))
    for size in {min(vector.size, other.size) for other in others}:
        at = [
            number
            for number, other in enumerate(others)
            if min(vector.size, other.size) == size
        ]
        rows = np.stack([others[number][:size] for number in at]).astype(np.float64)
        rows -= rows.mean(axis=1, keepdims=True)
        row = vector[:size].astype(np.float64) - vector[:size].mean()
        norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(row)
        r = np.clip(rows @ row / np.maximum(norms, 1e-30), -1 + 1e-7, 1 - 1e-7)
        chances[at] = 2 * t.sf(np.abs(r) * np.sqrt((size - 2) / (1 - r * r)), size - 2)
    return chances


class Watch:
    """The ledger of a loop that another library runs.

    Args:
        ledger: path of the ledger; the file must not exist.
        metrics: "released": everyone who sees the private releases also sees the loop's
            metrics (losses, accuracies); "kept": only the server sees them.
        go_on: whether the file may already have lines of this loop, possibly from
            another process.

    Attributes:
        adaptive: whether the noise follows earlier releases; see `AccountContext`.
        open_ended: whether the number of rounds was unknown when the watch began, so
            that the account is of the rounds that ran.
        on_fault: called with an error of the watch, instead of an end of the run; None:
            the error is raised.
        unit: whose contribution is protected.
        claimed_adjacency: adjacency of the library's own epsilon.
        follows_number: what depends on the number of units, as a clause; "": nothing.

    Raises:
        DpsumError: the file has lines, or `metrics` has another value.
    """

    adaptive: bool | None = False
    unit: ClassVar[str] = "client"
    claimed_adjacency: str = "add-or-remove"
    follows_number: str = "the cohort has a fixed number of units"

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
        self.open_ended = False
        self.on_fault: Callable[[Exception], None] | None = None

    def replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        """Replace a method of `owner` until `stop`.

        Args:
            owner: the object.
            name: name of the method.
            by: called instead, with the original method before the arguments.
        """
        method = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.on_fault is None:
                return by(method, *args, **kwargs)
            return guarded(by, method, self.on_fault, *args, **kwargs)

        self.put(owner, name, watched)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of `owner` until `stop`, past its class's `__setattr__`."""
        attributes = dict(vars(owner))
        if name in attributes:
            self._undo.append(lambda: object.__setattr__(owner, name, attributes[name]))
        else:
            self._undo.append(lambda: object.__delattr__(owner, name))
        object.__setattr__(owner, name, value)

    def stop(self) -> None:
        """Stop watching, and restore the library's objects."""
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
        """Append the line of a release of this round.

        Args:
            deviation: declared deviation of the noise.
            reasons: why no finite epsilon is proven for the release.
            draws: the observed noise, each draw array by array; None: the caller has
                tested it.
            values: see `NoiseSeen.faults`.
            scale: factor of the release in the line.
            dimension: number of coordinates, where there are no draws.
            groups: `boundaries`, `thresholds` and perhaps `names` of groups of
                coordinates, each clipped to its own threshold. All have noise of the
                same deviation, and `sensitivity` is the L2 norm of the thresholds.

        Raises:
            DpsumError: no mechanism makes such a release.
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
                # The reasons make epsilon infinite, whatever the line's noise is.
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
                # The releases of a round are of the library's one cohort.
                sampler=Sampling.from_mapping({**sampler, "draw": "of the library"}),
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
                f"release {self.round + 1} is not private: {error}"
            ) from error
        self.ledger.append(release)

    def releases(self) -> list[Release]:
        """Return the releases so far.

        Raises:
            DpsumError: there are none, or the ledger was truncated or changed.
        """
        releases = read_ledger(self.path, None if self._go_on else self.ledger.chain)
        if not releases:
            raise DpsumError("nothing was released yet: train at least one round first")
        return rounds_that_ran(releases) if self.open_ended else releases

    def claim(self) -> Claim | None:
        """Return the library's own epsilon as a claim; None if it has none."""
        return None

    def account(self, delta: float, *, units_public: bool = False) -> Account:
        """Return the account of the releases so far, with the library's claim.

        Each profile names its adjacency. A claim for add-or-remove adjacency is void,
        unless the number of units is public: it is then a claim for zero-out.

        Args:
            delta: delta at which epsilon is stated.
            units_public: whether the number of units (records or clients) is declared
                public, so that neighbouring data sets have the same number.

        Raises:
            DpsumError: the sampler is unknown, or the lines are not of one mechanism;
                see `releases` too.
        """
        account = self.compute_account(delta)
        private = ""
        if self.follows_number and not units_public:
            private = (
                f"{self.follows_number}: under add-or-remove adjacency, where the number"
                f" of {self.unit}s is private, nothing is proven"
            )
            notice = (
                f"{private}; zero-out and replace-one take the number of {self.unit}s as"
                " public"
            )
            notices = (*account.notices, notice)
            account = dataclasses.replace(account, notices=notices)
        claimed = account.profiles.get("claimed")
        if claimed is None:
            return account
        changes: dict[str, Any] = {"adjacency": self.claimed_adjacency}
        if self.claimed_adjacency == "add-or-remove" and private:
            changes["status"] = "void"
            changes["explanation"] = (
                f"{claimed.explanation}; {private}: declare it public by"
                " account(units_public=True) if it is"
            )
        elif self.claimed_adjacency == "add-or-remove" and units_public:
            changes["adjacency"] = "zero-out"
            changes["explanation"] = (
                f"{claimed.explanation}; the number of {self.unit}s is declared public"
            )
        claimed = dataclasses.replace(claimed, **changes)
        profiles = {**account.profiles, "claimed": claimed}
        return dataclasses.replace(account, profiles=profiles)

    def compute_account(self, delta: float) -> Account:
        """Return the account of the lines; see `account`."""
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
            context=AccountContext(adaptive=self.adaptive),
        )

    def release_of(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return the loop's clipping, sum and noise as a function for an audit.

        The function maps contributions [n, d] to the release [d].
        """
        raise DpsumError(
            f"{type(self).__name__} has no release that an audit could call"
        )

    def declared(self, last: Release) -> dict[str, Any]:
        """Return the mechanism of the last line, as arguments of `anything.audited`."""
        return {
            "dimension": 100,
            "adjacency": "zero-out",
            "cohort": max(int(last.denominator), 2),
        }

    def audit(self, delta: float, **how: Any) -> Audited:
        """Audit the release against the mechanism in the ledger's last line.

        Args:
            delta: delta at which epsilon is stated.
            how: further arguments of `audit.anything.audited`.

        Raises:
            DpsumError: the release cannot be called, or the input is invalid; see also
                `releases`.
        """
        last = self.releases()[-1]
        declared: dict[str, Any] = {
            "noise_multiplier": last.noise_multiplier,
            "participation": last.sampler,
            **self.declared(last),
        }
        return audited(self.release_of(), delta=delta, **declared | how)


def guarded(
    by: Callable[..., Any],
    method: Callable[..., Any],
    on_fault: Callable[[Exception], None],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return `by(method, ...)`, or what `method` alone returns where `by` fails.

    An error of `method` itself is raised. `method` is called once.

    Args:
        by: function that watches; it takes the method before the arguments.
        method: the library's own.
        on_fault: called with an error of `by`.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def original(*args: Any, **kwargs: Any) -> Any:
        try:
            results.append(method(*args, **kwargs))
        except BaseException as error:
            errors.append(error)
            raise
        return results[-1]

    try:
        return by(original, *args, **kwargs)
    except Exception as error:
        if errors:
            raise
        on_fault(error)
    return results[-1] if results else method(*args, **kwargs)


def rounds_that_ran(releases: Sequence[Release]) -> list[Release]:
    """Return the lines with the number of rounds that ran as the planned number.

    The account then assumes that the number of rounds did not follow the data.
    """
    rounds = releases[-1].round + 1
    lines = []
    for release in releases:
        participations = release.sampler.participations
        if participations is not None:
            participations = -(-rounds // (release.sampler.separation or 1))
        sampler = dataclasses.replace(
            release.sampler, rounds=rounds, participations=participations
        )
        lines.append(dataclasses.replace(release, sampler=sampler))
    return lines


def check_cohorts(cohorts: str) -> None:
    """Refuse a value of `cohorts` other than "secret" and "known"."""
    if cohorts not in ("secret", "known"):
        raise DpsumError(
            f"cohorts is {cohorts!r}: give 'secret', or 'known' if those who see the"
            " models can find them out"
        )


def spacing(values: np.ndarray) -> np.ndarray:
    """Return the distance from each number to the next floating-point one, float64."""
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
    """Return the differences of arrays in double precision, without warnings."""
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
    """Return the observed deviation of noise; infinite if the noise is not finite."""
    coordinates = sum(np.size(array) for array in noise)
    return norm(noise) / math.sqrt(max(coordinates, 1))


def check_scale(clipping_norm: float, deviation: float) -> None:
    """Check that a clipping norm and a deviation are in the range of the ledger.

    Raises:
        DpsumError: one of them is not a number from 1e-150 to 1e150.
    """
    check_range("the clipping norm", clipping_norm)
    check_range("the deviation of the noise", deviation)
