"""The ledger: an append-only file with one JSON line for each release.

Accountants read the ledger alone. The mechanism appends a release after it drew the
noise and before anything else uses the release. It writes the values that it used, so
that the ledger records what was done and not what was planned.

The lines form a chain: each line begins with the SHA-256 of the line before it. The
digest of the last line therefore covers all lines. `training.json` holds that digest
and the number of lines.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsum.errors import DpsumError
from dpsum.files import writing
from dpsum.group_clipping import CoordinateGroups, joint_noise_multiplier
from dpsum.parameters import LARGEST
from dpsum.sampling import Sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """One line of the ledger.

    Attributes:
        round: number of the round, from 0; for local steps, a running number over all
            rounds.
        name: name of the released sum, e.g. "query-gradient-sum".
        mechanism: kind of noise, and its correlation over rounds. "gaussian": normal
            noise of deviation `noise_std` on each coordinate, independent of that of
            every other coordinate, release and round. "correlated-gaussian": see
            `combines`. "skellam": discrete noise on whole numbers, see `secure`.
        unit: whose contribution is protected: "client" or "record".
        adjacency: "zero-out": one unit's contribution replaced by zero; "replace-one":
            by any other.
        observer: who sees the release: "everyone" or "server".
        noise_multiplier: z.
        threshold, sensitivity, noise_std: C, the L2 sensitivity under the adjacency,
            and the deviation of the noise on each coordinate; lists where each client
            makes the release over its own records.
        dimension: number of released coordinates.
        sampler: how the cohort was drawn (`participation`); a mapping is converted to a
            `Sampling`.
        denominator: public number by which the sum is divided afterwards.
        noise_stream: name of the random stream of the noise. Where the name holds a
            seed, the noise can be drawn again, and privacy is simulated.
        counted_by_paper: whether the method's paper counts this release in its
            accounting.
        data_dependent_threshold: whether C, or something published with the release (a
            vocabulary), was computed from private data without a release of its own.
        reason: why `data_dependent_threshold` is true.
        combines: for noise that is correlated over rounds, the weights of the
            independent draws of rounds 0 to this one, each of deviation `noise_std`.
            None: an independent draw.
        part: for sums over a part of the records, where each record is in one part
            alone, the part that was read; None: all records.
        adds: number of clients' releases, each with its own noise, that are added up
            before anyone but the observer sees more than the own release; None: they
            are not added up.
        secure: for a sum under secure aggregation, its granularity, bits, coordinates,
            clients, counted shares, and the variance of a share in units (module
            `secure`); None for other sums.
        groups: for a sum that is clipped by groups of coordinates, their boundaries,
            thresholds, deviations and names; None for other sums.
        claimed_multiplier: the noise multiplier that the paper counts; None if it is
            `noise_multiplier`.
        follows_loss: true where the noise may follow a loss (`Noise.follows_loss`),
            whether or not it changed in this run; None where it may not.
        thresholds_may_differ: true for added releases of clients whose thresholds
            follow their own releases (`ClippingRule.moves`), whether or not they
            differed in this run; None for other releases.
    """

    round: int
    name: str
    mechanism: str
    unit: str
    adjacency: str
    observer: str
    noise_multiplier: float
    threshold: float | list[float]
    sensitivity: float | list[float]
    noise_std: float | list[float]
    dimension: int
    sampler: Sampling
    denominator: float
    noise_stream: str
    counted_by_paper: bool
    data_dependent_threshold: bool
    reason: str
    combines: list[float] | None = None
    part: str | None = None
    adds: int | None = None
    secure: dict[str, Any] | None = None
    groups: dict[str, Any] | None = None
    claimed_multiplier: float | None = None
    follows_loss: bool | None = None
    thresholds_may_differ: bool | None = None

    def __post_init__(self) -> None:
        """Refuse values that no mechanism can have written, so that no accountant reads
        them.

        Raises:
            ValueError: a value is of another type or out of range.
        """
        if isinstance(self.sampler, Mapping):
            object.__setattr__(self, "sampler", Sampling.from_mapping(self.sampler))
        for name, (expected, called) in _TYPES.items():
            if type(getattr(self, name)) is not expected:
                raise ValueError(
                    f"{name} is {_shown(getattr(self, name))}, not {called}"
                )
        for name in (
            "threshold",
            "sensitivity",
            "noise_std",
            "noise_multiplier",
            "denominator",
        ):
            value = getattr(self, name)
            for number in (
                value if isinstance(value, list) and name in _LISTS else [value]
            ):
                _check_number(name, number, LARGEST)
        for number in self.combines or ():
            _check_number(
                "combines",
                abs(number) if isinstance(number, (int, float)) else number,
                LARGEST,
                least=0.0,
            )
        for name, number in (self.secure or {}).items():
            _check_number(f"secure.{name}", number, LARGEST)
        if self.claimed_multiplier is not None:
            _check_number("claimed_multiplier", self.claimed_multiplier, LARGEST)
        for name in ("follows_loss", "thresholds_may_differ"):
            mark = getattr(self, name)
            if mark is not None and mark is not True:
                raise ValueError(f"{name} is {_shown(mark)}: it is true or missing")
        if self.groups is not None:
            self._check_groups(self.groups)
        if self.round < 0 or self.dimension < 1:
            raise ValueError(
                f"round is {self.round} and dimension {self.dimension}: round must be"
                " at least 0 and dimension at least 1"
            )
        if not isinstance(self.sampler.kind, str) or not self.sampler.kind:
            raise ValueError("sampler has no kind")
        if not isinstance(self.sampler.draw, (str, type(None))):
            raise ValueError(f"sampler.draw is {_shown(self.sampler.draw)}, not text")
        for name, most in _SAMPLED.items():
            if name in self.sampler:
                _check_number(f"sampler.{name}", self.sampler[name], most, least=0.0)

    def _check_groups(self, groups: dict[str, Any]) -> None:
        """Refuse groups that contradict the release's own threshold and multiplier.

        Raises:
            ValueError: they contradict it.
        """
        if self.mechanism != "gaussian":
            raise ValueError(
                f"{self.mechanism} noise has groups, which no proof covers"
            )
        if not {"boundaries", "thresholds", "noise_stds"} <= set(groups):
            raise ValueError("groups lack boundaries, thresholds or noise_stds")
        thresholds = groups["thresholds"]
        stds = groups["noise_stds"]
        for number in (*thresholds, *stds):
            _check_number("a threshold or deviation of groups", number, LARGEST)
        layout = CoordinateGroups(tuple(groups["boundaries"]))
        if layout.dimension != self.dimension:
            raise ValueError(
                f"groups cover {layout.dimension} of {self.dimension} coordinates"
            )
        if not len(thresholds) == len(stds) == layout.count:
            raise ValueError(
                f"{layout.count} groups have {len(thresholds)} thresholds and"
                f" {len(stds)} deviations"
            )
        reach = {"zero-out": 1.0, "replace-one": 2.0}[self.adjacency]
        proven = joint_noise_multiplier([reach * c for c in thresholds], stds)
        norm = math.hypot(*thresholds)
        if not math.isclose(self.noise_multiplier, proven, rel_tol=1e-9):
            raise ValueError(
                f"noise_multiplier is {self.noise_multiplier}, but the thresholds and"
                f" deviations of its groups make {proven}"
            )
        if isinstance(self.threshold, list) or not math.isclose(
            self.threshold, norm, rel_tol=1e-9
        ):
            raise ValueError(
                f"threshold is {_shown(self.threshold)}, but its groups make {norm}"
            )

    @property
    def counted_multiplier(self) -> float:
        """Noise multiplier that the method's paper counts."""
        if self.claimed_multiplier is None:
            return self.noise_multiplier
        return self.claimed_multiplier

    def line(self, previous: str) -> str:
        """Return the line of the ledger.

        Args:
            previous: digest of the line before it; "" for the first line.
        """
        fields = {
            _NAMES_IN_FILES.get(key, key): value
            for key, value in vars(self).items()
            if value is not None
        }
        return (
            json.dumps(
                {_CHAIN: previous} | fields | {"sampler": dict(self.sampler)},
                allow_nan=False,
            )
            + "\n"
        )


_CHAIN = "previous"
_NAMES_IN_FILES = {"round": "index"}
"""Names of fields in a file. `round` counts from 0, but rounds of other tables of a run
from 1, so that a merge of a file with them by `round` would be wrong.
"""
_KINDS: dict[Any, tuple[type, str]] = {
    "int": (int, "a whole number"),
    "str": (str, "text"),
    "bool": (bool, "true or false"),
    "Sampling": (Sampling, "a group of keys"),
}
_TYPES = {
    field.name: _KINDS[field.type]
    for field in dataclasses.fields(Release)
    if field.type in _KINDS
}
_LISTS = ("threshold", "sensitivity", "noise_std")
_SAMPLED = {
    "rate": 1.0,
    "rounds": LARGEST,
    "clients": LARGEST,
    "cohort": LARGEST,
    "records": LARGEST,
}


def _check_number(
    name: str, value: Any, most: float, *, least: float = 1 / LARGEST
) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not least <= value <= most
    ):
        raise ValueError(
            f"{name} is {_shown(value)}, not a number from {least:g} to {most:g}"
        )


def _shown(value: Any) -> str:
    return repr(value)[:40]


_FIELDS = {field.name for field in dataclasses.fields(Release)}
_OPTIONAL = {
    field.name for field in dataclasses.fields(Release) if field.default is None
}


def digest(line: str) -> str:
    """Return the SHA-256 of a line with its line break; the next line begins with it."""
    return hashlib.sha256(line.encode()).hexdigest()


def parse(text: str, where: str) -> list[Release]:
    """Return the releases in a ledger's text.

    Args:
        text: the ledger.
        where: name of the ledger, for messages.

    Raises:
        DpsumError: a line is not a release, or the chain of lines is broken.
    """
    releases = []
    previous = ""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        try:
            values = json.loads(line)
            if (before := values.pop(_CHAIN)) == "" and previous:
                raise DpsumError(
                    f"{where}, line {number}, starts a second run, but a ledger has"
                    " one run: delete the file and run again, each run with its own"
                    " file"
                )
            if before != previous:
                raise ValueError("the line before it was changed, or lines are missing")
            previous = digest(line)
            for name, name_in_file in _NAMES_IN_FILES.items():
                if name_in_file in values and name not in values:
                    values[name] = values.pop(name_in_file)
            odd = _FIELDS.symmetric_difference(values) - _OPTIONAL.difference(values)
            if odd:
                raise ValueError(f"fields missing or unknown: {', '.join(sorted(odd))}")
            releases.append(Release(**values))
        except (
            ValueError,
            TypeError,
            AttributeError,
            KeyError,
            RecursionError,
        ) as error:
            raise DpsumError(
                f"{where}, line {number}, is not a release ({error}): delete the run's"
                " folder and train again"
            ) from error
    return releases


def read_ledger(
    path: Path | str, chain: Mapping[str, Any] | None = None
) -> list[Release]:
    """Return the releases of a finished run, in order.

    Args:
        path: path of the ledger.
        chain: chain that training.json recorded (`Ledger.chain`), to compare with the
            file; None: no comparison.

    Raises:
        DpsumError: the file is missing, a line is not a release, or lines were cut off
            or changed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, ValueError):
            fault = "is not UTF-8 text"
        else:
            fault = f"cannot be read ({error.strerror})"
        if isinstance(error, FileNotFoundError):
            raise DpsumError(
                f"{path} is missing: name a ledger that training wrote"
            ) from error
        raise DpsumError(
            f"{path} {fault}: delete the run's folder and train again"
        ) from error
    releases = parse(text, str(path))
    written = chain_of(text.splitlines(keepends=True))
    if chain is not None and chain != written:
        raise DpsumError(
            f"{path} has {written['lines']} lines, but training.json beside it"
            f" records {chain.get('lines')} lines with another end: lines were"
            " removed or changed"
        )
    return releases


def chain_of(lines: Sequence[str]) -> dict[str, Any]:
    """Return the number of lines of a ledger and the digest of the last line."""
    if not lines:
        return {"lines": 0, "head": ""}
    return {"lines": len(lines), "head": digest(lines[-1])}


_COMPARED = (
    "name",
    "mechanism",
    "unit",
    "adjacency",
    "observer",
    "noise_multiplier",
    "denominator",
    "counted_by_paper",
    "data_dependent_threshold",
    "part",
    "follows_loss",
    "thresholds_may_differ",
)


def check_same_mechanism(
    ran: Sequence[Release],
    audited: Sequence[Release],
    *,
    whose: str = "the current code",
    mend: str = "train the run again",
) -> None:
    """Check that the audited ledger records the same mechanism as the run's ledger.

    The function compares, release by release, names, mechanism, unit, adjacency,
    observer, z, denominator, sampler, and sensitivity and noise over C. It does not
    compare C, which follows the releases, nor the number of clients where records are
    the unit.

    Args:
        ran: ledger of the run.
        audited: ledger of the audit's training, or of another run whose audit is to
            count for this run too.
        whose: name of the audited training, for messages.
        mend: remedy, for messages.

    Raises:
        DpsumError: the ledgers differ.
    """
    if len(ran) != len(audited):
        raise DpsumError(
            f"the run's ledger has {len(ran)} releases, but that of {whose} has"
            f" {len(audited)}: {mend}"
        )
    if _draws_in_order(ran) != _draws_in_order(audited):
        raise DpsumError(
            f"the run's ledger has other sums of one draw of cohorts than {whose}:"
            f" {mend}"
        )
    for number, (run_event, audited_event) in enumerate(zip(ran, audited, strict=True)):
        prefix = f"the ledger's release {number} has"
        for name in _COMPARED:
            value = getattr(run_event, name)
            expected = getattr(audited_event, name)
            if not (
                math.isclose(value, expected, rel_tol=1e-9)
                if name == "noise_multiplier"
                else value == expected
            ):
                raise DpsumError(
                    f"{prefix} {name} {value}, but {whose} has {expected}: the"
                    f" mechanisms differ, {mend}"
                )
        if _compared_sampler(run_event) != _compared_sampler(audited_event):
            raise DpsumError(f"{prefix} another sampler than {whose}: {mend}")
        if not _same_groups(run_event.groups, audited_event.groups):
            raise DpsumError(f"{prefix} another number of groups than {whose}: {mend}")
        for name in ("sensitivity", "noise_std"):
            ratios = [
                np.max(np.atleast_1d(getattr(e, name)) / np.atleast_1d(e.threshold))
                for e in (run_event, audited_event)
            ]
            if not math.isclose(*ratios, rel_tol=1e-9):
                raise DpsumError(
                    f"{prefix} {name} of {ratios[0]:g} C, but {whose} has"
                    f" {ratios[1]:g} C: {mend}"
                )


def _compared_sampler(event: Release) -> dict[str, Any]:
    """Return the numbers of a sampler that two ledgers of one mechanism share."""
    numbers = dict(event.sampler)
    numbers.pop("draw", None)
    if event.unit != "client":
        numbers.pop("clients", None)
    return numbers


def _draws_in_order(releases: Sequence[Release]) -> list[int]:
    """Return the draw of each line, numbered in the order of their first lines."""
    draws = [event.sampler.draw for event in releases]
    numbers = {draw: number for number, draw in enumerate(dict.fromkeys(draws))}
    return [numbers[draw] for draw in draws]


def _same_groups(
    own: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> bool:
    """Return whether both releases have the same number of groups, or both none.

    Boundaries are not compared: an audit has other coordinates than the run.
    """
    if own is None or other is None:
        return own is other
    return len(own["thresholds"]) == len(other["thresholds"])


class Ledger:
    """The ledger of a run in progress.

    Args:
        path: file of the ledger; created if missing.

    Attributes:
        chain: number of lines written, and the digest of the last; see `chain_of`.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.chain = chain_of(())
        self._streams = set[str]()
        self._last_rounds: dict[str, int] = {}
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()

    def claim(self, stream: str) -> None:
        """Reserve a stream of noise, "seed/purpose", for one mechanism.

        Raises:
            DpsumError: another mechanism draws from this stream.
        """
        if stream in self._streams:
            raise DpsumError(
                f"two mechanisms of {self.path} draw their noise from the stream"
                f" {stream}: give one of them another `stream` or `seed`"
            )
        self._streams.add(stream)

    def append(self, release: Release) -> None:
        """Append a release to the file.

        The operating system has the line before this returns, so that a killed process
        does not lose it.
        """
        line = release.line(self.chain["head"])
        with writing(self.path), open(self.path, "a", encoding="utf-8") as handle:
            handle.write(line)
        lines = self.chain["lines"] + 1
        self.chain = {"lines": lines, "head": digest(line)}
        self._last_rounds[release.name] = release.round

    def last_round(self, name: str) -> int:
        """Return the `round` of the last line of a sum; -1 without a line."""
        return self._last_rounds.get(name, -1)

    def sync(self) -> None:
        """Flush the appended lines to the disk, so that they survive a power failure.

        Call it before a checkpoint that records the chain.
        """
        with writing(self.path), open(self.path, "rb") as handle:
            os.fsync(handle.fileno())

    def go_on_after(self, chain: Mapping[str, Any]) -> None:
        """Truncate the ledger to the lines that a checkpoint recorded.

        Lines after them are dropped; the last one may be incomplete if the process died
        while it wrote. Their rounds run again with the same noise, and so make the same
        releases, not further ones.

        Args:
            chain: chain that the checkpoint recorded.

        Raises:
            DpsumError: lines that the checkpoint recorded are missing or changed.
        """
        lines = self.path.read_bytes().splitlines(keepends=True)
        lines = lines[: chain["lines"]]
        known_lines = [line.decode("utf-8", "replace") for line in lines]
        if chain_of(known_lines) != chain:
            raise DpsumError(
                f"{self.path} does not belong to the checkpoint beside it: delete the"
                f" folder {self.path.parent} to train from the start"
            )
        releases = parse("".join(known_lines), str(self.path))
        with writing(self.path):
            size = sum(map(len, lines))
            os.truncate(self.path, size)
        self.chain = dict(chain)
        self._last_rounds = {event.name: event.round for event in releases}
