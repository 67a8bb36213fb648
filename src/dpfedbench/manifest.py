"""Manifests: a rule writes the SHA-256 of each of its files beside them, and every
reader compares.

In each folder `manifest/RULE-NAME.sha256` has a line for each file that one job of a
rule put there, as `sha256sum` writes it, so that `sha256sum -c manifest/*` checks it
too. It is written last, and whole. Each job has a file of its own: jobs that write to
one folder at once do not meet.

Behind those lines it says what the job made its files from, in lines that `sha256sum`
passes over: the SHA-256 that each file that it read had then, by its path below the
results folder, and the hash of the code that the rule goes by.

It tells damage and hasty edits, not a forger, who can write a manifest as well.
"""

import contextlib
import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpfedbench import files, warm
from dpfedbench.errors import BenchError
from dpfedbench.jobs import job, measured

FOLDER = "manifest"
RESULTS = "results"
_LINE = re.compile(r"([0-9a-f]{64})  ([^/]+)")
_FROM = re.compile(r"# from ([0-9a-f]{64})  (.+)")
_SAID = "# made from the files and the code named here"


@contextlib.contextmanager
def rule_job(
    snakemake: Any, name: str, *, timed: bool = True
) -> Iterator[logging.Logger]:
    """Run a rule's script as a job: what it reads from the results is checked before,
    what it wrote is sealed after.

    The warm process runs it where there is one (`warm.hand_over`). What it cost stands
    in `benchmark/`, beside `logs/`, if it is `timed`. A training is not: how long it
    took tells of secret cohorts.
    """
    warm.hand_over()
    log = Path(snakemake.log[0])
    cost = (
        measured(log.parent.with_name("benchmark") / f"{log.stem}.tsv")
        if timed
        else contextlib.nullcontext()
    )
    with job(log, name) as logger, cost:
        read = [path for path in map(Path, snakemake.input) if path.parts[0] == RESULTS]
        made_from = {
            path.relative_to(RESULTS).as_posix(): digest_of(path) for path in read
        }
        outputs = [Path(path) for path in snakemake.output]
        for path in manifests(snakemake.rule, outputs):
            path.unlink(missing_ok=True)
        files.written.clear()
        yield logger
        # Files that no rule declares (a preview for people) stand beside those that it
        # does, or in a declared folder.
        made = {o for o in outputs if not o.is_dir()}
        made |= {
            path
            for path in files.written
            if any(path.parent == o.parent or o in path.parents for o in outputs)
        }
        code = getattr(snakemake.params, "code", None)
        seal(
            snakemake.rule,
            [*(o for o in outputs if o in made), *sorted(made - {*outputs})],
            made_from,
            code=code,
        )


def manifests(rule: str, paths: Iterable[Path]) -> dict[Path, list[Path]]:
    """The manifests of a job that writes these files: one for each folder, with its
    files, named after the first.
    """
    outputs: dict[Path, list[Path]] = {}
    for path in paths:
        outputs.setdefault(path.parent, []).append(path)
    return {
        folder / FOLDER / f"{rule}-{own[0].stem}.sha256": own
        for folder, own in outputs.items()
    }


def seal(
    rule: str,
    paths: Iterable[Path],
    made_from: Mapping[str, str] | None = None,
    *,
    code: str | None = None,
) -> None:
    """Write down the SHA-256 of files that a job of a rule has written, and the hash of
    the code that the rule goes by.

    `made_from` is the SHA-256 of what they were made from, by path below the results
    folder; None: it is not known.
    """
    said = (
        []
        if made_from is None
        else [
            _SAID,
            *(f"# from {digest}  {path}" for path, digest in made_from.items()),
        ]
    )
    said += [f"# code {code}"] * (code is not None)
    for manifest, own in manifests(rule, paths).items():
        lines = [f"{files.sha256(path)}  {path.name}" for path in own] + said
        files.write_text(manifest, "\n".join(lines) + "\n")


@dataclasses.dataclass(frozen=True)
class Sealed:
    """What a manifest says: the SHA-256 of the files of a job by their names, and of
    what they were made from by path.

    The latter is None in a manifest of a former version, which did not say it.
    """

    rule: str
    files: Mapping[str, str]
    made_from: Mapping[str, str] | None


def sealed(folder: Path) -> list[Sealed]:
    """What the manifests of a folder say.

    Raises:
        BenchError: one cannot be read.
    """
    manifests = []
    with files.reading(folder / FOLDER):
        for manifest in sorted((folder / FOLDER).glob("*.sha256")):
            with files.reading(manifest):
                files.check_file(manifest)
                lines = manifest.read_text(
                    encoding="utf-8", errors="replace"
                ).splitlines()
            own = {
                match[2]: match[1] for line in lines if (match := _LINE.fullmatch(line))
            }
            others = {
                match[2]: match[1] for line in lines if (match := _FROM.fullmatch(line))
            }
            manifests.append(
                Sealed(
                    manifest.name.partition("-")[0],
                    own,
                    others if _SAID in lines else None,
                )
            )
    return manifests


def listed(folder: Path) -> dict[str, tuple[str, str]]:
    """The SHA-256 of each file that a rule wrote to a folder, and that rule, by the
    file's name.
    """
    return {
        name: (digest, manifest.rule)
        for manifest in sealed(folder)
        for name, digest in manifest.files.items()
    }


def checked(path: Path) -> Path:
    """A file that is what its rule wrote.

    Raises:
        BenchError: it is missing or another one, or nothing vouches for it; says how to
            make it again.
    """
    digest_of(path)
    return path


def digest_of(path: Path) -> str:
    """The SHA-256 of a file that is what its rule wrote.

    Raises:
        BenchError: as `checked`.
    """
    digest, rule = listed(path.parent).get(path.name, ("", ""))
    with files.reading(path):
        present = files.sha256(path)
    if not digest:
        raise BenchError(
            f"{path} has no checksum in {FOLDER}/ beside it, so nothing vouches for it:"
            f" {mend(path)}"
        )
    if present != digest:
        raise BenchError(
            f"{path} is damaged or was edited, it is not what the rule {rule} wrote:"
            f" {mend(path, rule)}"
        )
    return digest


def mend(path: Path, rule: str = "") -> str:
    """How to have a file made again, for a message."""
    parts = path.parts
    start = len(parts) - 1 - parts[::-1].index(RESULTS) if RESULTS in parts else 0
    target = Path(*parts[start:])
    return (
        f"make it again with `snakemake --cores all {target} --forcerun"
        f" {rule or target}` (and the --configfile and --directory that it was made"
        " with); nothing was deleted"
    )
