"""Files that vouch for themselves: the SHA-256 of all that a rule wrote stands beside it, and readers compare.

In each folder `manifest/RULE-NAME.sha256` has a line for each file that one job of a rule put there, as `sha256sum`
writes it, so that `sha256sum -c manifest/*` checks it too. It is written last, and whole. Each job has a file of its
own: jobs that write to one folder at once do not meet.

It tells damage and hasty edits, not a forger, who can write a manifest as well.
"""

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dpfedbench import files, warm
from dpfedbench.errors import BenchError
from dpfedbench.jobs import job, measured

FOLDER = "manifest"
RESULTS = "results"
_LINE = re.compile(r"([0-9a-f]{64})  ([^/]+)")


@contextlib.contextmanager
def rule_job(snakemake: Any, name: str) -> Iterator[logging.Logger]:
    """Run a rule's script as a job: what it reads from the results is checked before, what it wrote is sealed after.

    The warm process runs it where there is one (`warm.hand_over`). What it cost stands in `benchmark/`, beside `logs/`.

    Args:
        snakemake: what Snakemake hands to a script.
        name: of the job; see `jobs.job`.
    """
    warm.hand_over()
    log = Path(snakemake.log[0])
    with job(log, name) as logger, measured(log.parent.with_name("benchmark") / f"{log.stem}.tsv"):
        for path in map(Path, snakemake.input):
            if path.parts[0] == RESULTS:
                checked(path)
        outputs = [Path(path) for path in snakemake.output]
        for path in manifests(snakemake.rule, outputs):
            path.unlink(missing_ok=True)
        files.written.clear()
        yield logger
        # Files that no rule declares (a preview for people) stand beside those that it does, or in a declared folder.
        made = {o for o in outputs if not o.is_dir()}
        made |= {path for path in files.written if any(path.parent == o.parent or o in path.parents for o in outputs)}
        seal(snakemake.rule, [*(o for o in outputs if o in made), *sorted(made - {*outputs})])


def manifests(rule: str, paths: Iterable[Path]) -> dict[Path, list[Path]]:
    """The manifests of a job that writes these files, each with those of its folder; the first one's name is in its."""
    found: dict[Path, list[Path]] = {}
    for path in paths:
        found.setdefault(path.parent, []).append(path)
    return {folder / FOLDER / f"{rule}-{own[0].stem}.sha256": own for folder, own in found.items()}


def seal(rule: str, paths: Iterable[Path]) -> None:
    """Write down the SHA-256 of files that a job of a rule has written."""
    for manifest, own in manifests(rule, paths).items():
        files.write_text(manifest, "".join(f"{files.sha256(path)}  {path.name}\n" for path in own))


def listed(folder: Path) -> dict[str, tuple[str, str]]:
    """The SHA-256 of each file that a rule wrote to a folder, and that rule, by the file's name."""
    found = {}
    for manifest in sorted((folder / FOLDER).glob("*.sha256")):
        for line in manifest.read_text(encoding="utf-8", errors="replace").splitlines():
            if match := _LINE.fullmatch(line):
                found[match[2]] = match[1], manifest.name.partition("-")[0]
    return found


def checked(path: Path) -> Path:
    """A file that is what its rule wrote.

    Raises:
        BenchError: it is missing or another one, or nothing vouches for it; says how to make it again.
    """
    digest, rule = listed(path.parent).get(path.name, ("", ""))
    try:
        found = files.sha256(path)
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing: run the workflow again to make it") from error
    if not digest:
        raise BenchError(f"{path} has no checksum in {FOLDER}/ beside it, so nothing vouches for it: {mend(path)}")
    if found != digest:
        raise BenchError(f"{path} is damaged or was edited, it is not what the rule {rule} wrote: {mend(path, rule)}")
    return path


def mend(path: Path, rule: str = "") -> str:
    """How to have a file made again, for a message."""
    parts = path.parts
    start = len(parts) - 1 - parts[::-1].index(RESULTS) if RESULTS in parts else 0
    target = Path(*parts[start:])
    return (
        f"make it again with `snakemake --cores all {target} --forcerun {rule or target}` (and the --configfile "
        "and --directory that it was made with); nothing was deleted"
    )
