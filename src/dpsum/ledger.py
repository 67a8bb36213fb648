"""The ledger: an append-only record of every release, one JSON line each, that
accountants read.

A release is written down after the noise was drawn and before anything else uses it,
from the mechanism's own values, so that the ledger says what was done and not what was
planned.

It is a chain: each line begins with the SHA-256 of the line before it. So the last
line's stands for all of them, and `training.json` has it, with their number.
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
    """One release.

    Attributes:
        round: from 0; of local steps, all of them in a row.
        name: what was released, e.g. "query-gradient-sum".
        mechanism: what was added, and how the noise of two rounds is correlated.
            "gaussian": normal noise of deviation `noise_std` on each coordinate,
            independent of that of every other coordinate, release and round.
            "correlated-gaussian": see `combines`. "skellam": discrete noise on whole
            numbers, see `secure`.
        unit: whose contribution is protected: "client" or "record".
        adjacency: "zero-out": one unit's contribution replaced by zero; "replace-one":
            by any other.
        observer: who sees it: "everyone" or "server".
        noise_multiplier: z.
        threshold, sensitivity, noise_std: C, the L2 sensitivity under the adjacency,
            and the deviation of the noise on each coordinate; a list where each client
            makes the release over its own records.
        dimension: coordinates released.
        sampler: how the cohort was drawn (`participation`); a mapping is made a
            `Sampling`.
        denominator: public number the sum is divided by afterwards.
        noise_stream: name of the random stream of the noise; known, so privacy is
            simulated.
        counted_by_paper: whether the method's paper counts this release, or makes it
            and leaves it out.
        data_dependent_threshold: C, or what is handed out with the release (a
            vocabulary), was computed from private data without a release of its own;
            `reason` says why.
        combines: of noise that is correlated over rounds: the weights of independent
            draws of rounds 0 to this one, each of deviation `noise_std`, whose
            combination was added; None: a draw of its own.
        part: of records of which each is in one part alone: the part that it reads;
            None: it reads all.
        adds: how many clients' releases, each with noise of its own, are added up
            before anyone but the observer sees more than his own; None: they are not.
        secure: of a sum that secure aggregation shows: granularity, bits, coordinates,
            clients, shares that are counted, and the variance of a share in units
            (`secure`); None: of no such sum.
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

    def __post_init__(self) -> None:
        """Refuse what no mechanism can have written (ValueError), so that no accountant
        meets it.
        """
        if isinstance(self.sampler, Mapping):
            object.__setattr__(self, "sampler", Sampling.of(self.sampler))
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
        if self.groups is not None:
            self._check_groups(self.groups)
        if self.round < 0 or self.dimension < 1:
            raise ValueError(
                f"round is {self.round} and dimension {self.dimension}: from 0 and from"
                " 1 on"
            )
        if not isinstance(self.sampler.kind, str) or not self.sampler.kind:
            raise ValueError("sampler has no kind")
        for name, most in _SAMPLED.items():
            if name in self.sampler:
                _check_number(f"sampler.{name}", self.sampler[name], most, least=0.0)

    def _check_groups(self, groups: dict[str, Any]) -> None:
        """Refuse groups that do not add up to the sum's own numbers (ValueError)."""
        if self.mechanism != "gaussian":
            raise ValueError(f"{self.mechanism} noise has groups, which no proof is of")
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
        """The noise multiplier that the method's paper counts."""
        if self.claimed_multiplier is None:
            return self.noise_multiplier
        return self.claimed_multiplier

    def line(self, previous: str) -> str:
        """The ledger's line, after one whose `digest` is given."""
        fields = {key: value for key, value in vars(self).items() if value is not None}
        return (
            json.dumps(
                {_CHAIN: previous} | fields | {"sampler": dict(self.sampler)},
                allow_nan=False,
            )
            + "\n"
        )


_CHAIN = "previous"
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
    """Return the SHA-256 of a line, its line break included, which the next line begins
    with.
    """
    return hashlib.sha256(line.encode()).hexdigest()


def parse(text: str, where: str) -> list[Release]:
    """Releases from a ledger's text; DpsumError where a line is none, or not the one
    that the next follows.
    """
    releases = []
    previous = ""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        try:
            values = json.loads(line)
            if (before := values.pop(_CHAIN)) == "" and previous:
                raise DpsumError(
                    f"{where}, line {number}, is written as the first of a run: the"
                    " line before it is not the one that it was written after, and a"
                    " ledger is of one run; delete the file and run again, each run"
                    " with a file of its own"
                )
            if before != previous:
                raise ValueError(
                    "the line before it is not the one that it was written after"
                )
            previous = digest(line)
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
    """The releases of a finished run, in order.

    Args:
        path: of the ledger.
        chain: as training.json has it (`Ledger.chain`), to be compared.

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
                f"{path} is missing: name a ledger that a training wrote"
            ) from error
        raise DpsumError(
            f"{path} {fault}: delete the run's folder and train again"
        ) from error
    releases = parse(text, str(path))
    written = chain_of(text.splitlines(keepends=True))
    if chain is not None and chain != written:
        raise DpsumError(
            f"{path} has {written['lines']} lines, and training.json beside it tells of"
            f" {chain.get('lines')} that end otherwise: lines were cut off or changed"
        )
    return releases


def chain_of(lines: Sequence[str]) -> dict[str, Any]:
    """Return the number of lines of a ledger, and the digest of the last."""
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
)


def check_same_mechanism(
    ran: Sequence[Release],
    audited: Sequence[Release],
    *,
    whose: str = "the code as it is now",
    mend: str = "train the run again",
) -> None:
    """Raise where the ledger that was audited says another mechanism than that of the
    run.

    Compared are names, mechanism, unit, adjacency, observer, z, denominator, sampler,
    and sensitivity and noise over C, release by release. C itself follows the releases,
    and the number of clients is not compared where records are the unit.

    Args:
        ran: the run's.
        audited: that of the audit's own run, or of the run (`whose`) whose audit is to
            stand for this one too.
        mend: what to do.

    Raises:
        DpsumError: at the first difference.
    """
    if len(ran) != len(audited):
        raise DpsumError(
            f"the run's ledger has {len(ran)} releases, {whose} {len(audited)}: {mend}"
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
                    f"{prefix} {name} {value}, {whose} {expected}: the mechanisms differ,"
                    f" {mend}"
                )
        samplers = [
            {key: value for key, value in event.sampler.items() if key != "clients"}
            for event in (run_event, audited_event)
        ]
        if samplers[0] != samplers[1] or (
            run_event.unit == "client" and run_event.sampler != audited_event.sampler
        ):
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
                    f"{prefix} {name} of {ratios[0]:g} C, {whose} {ratios[1]:g} C: {mend}"
                )


def _same_groups(
    own: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> bool:
    """Return whether both releases are clipped by as many groups, or both by none.

    An audit has coordinates of its own, so that boundaries differ.
    """
    if own is None or other is None:
        return own is other
    return len(own["thresholds"]) == len(other["thresholds"])


class Ledger:
    """The ledger of a run in progress.

    Args:
        path: its file; made if missing.

    Attributes:
        chain: how many lines were written, and the digest of the last; see `chain_of`.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.chain = chain_of(())
        self._streams = set[str]()
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()

    def claim(self, stream: str) -> None:
        """Keep a stream of noise, "seed/purpose", for one mechanism; DpsumError where
        another draws from it.
        """
        if stream in self._streams:
            raise DpsumError(
                f"two mechanisms of {self.path} draw their noise from the stream"
                f" {stream}: give one of them another `stream` or `seed`"
            )
        self._streams.add(stream)

    def append(self, release: Release) -> None:
        """Write a release down; it is with the operating system before this returns, so
        a killed run keeps it.
        """
        line = release.line(self.chain["head"])
        with writing(self.path), open(self.path, "a", encoding="utf-8") as handle:
            handle.write(line)
        self.chain = {"lines": self.chain["lines"] + 1, "head": digest(line)}

    def sync(self) -> None:
        """Have the disk hold what was appended: before a checkpoint that knows of it,
        so that it survives the power.
        """
        with writing(self.path), open(self.path, "rb") as handle:
            os.fsync(handle.fileno())

    def go_on_after(self, chain: Mapping[str, Any]) -> None:
        """Keep the lines that a checkpoint knows of, whose `chain` is given.

        Lines after them, the last of which was perhaps being written when the process
        died, are dropped: their rounds are run again with the same noise, and so are
        the same releases, not further ones. DpsumError where lines that the checkpoint
        knows of are not there.
        """
        lines = self.path.read_bytes().splitlines(keepends=True)[: chain["lines"]]
        known_lines = [line.decode("utf-8", "replace") for line in lines]
        if chain_of(known_lines) != chain:
            raise DpsumError(
                f"{self.path} is not the ledger that the checkpoint beside it was"
                f" written with: delete the folder {self.path.parent} to train from the"
                " start"
            )
        parse("".join(known_lines), str(self.path))
        with writing(self.path):
            os.truncate(self.path, sum(map(len, lines)))
        self.chain = dict(chain)
