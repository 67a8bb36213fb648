"""Check the manifests of a job's input files, and write those of its output files.

A manifest has the SHA-256 of each file that the job wrote to one folder.
`dpfedbench.manifests` reads it. It is written last, and completely or not at all. Each
job has its own manifests, so several jobs can write to one folder at the same time.

After the checksums, the manifest lists the origin of the files in comments, which
`sha256sum` ignores: the SHA-256 of each input file, by its path below the results
folder, and the rule's code hash.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpfedbench import files
from dpfedbench.manifests import FOLDER, RESULTS, digest_of
from workflow_jobs.jobs import job, measured


@contextlib.contextmanager
def sealed_job(
    snakemake: Any, name: str, *, timed: bool = True, is_answer: bool = False
) -> Iterator[logging.Logger]:
    """Run a job whose input files are checked and whose output files get manifests.

    Before the body, the input files are compared with their manifests. After the body,
    the manifests of the output files are written.

    Args:
        snakemake: Snakemake's object for scripts.
        name: name of the job in messages.
        timed: whether time and memory are written to `benchmark/`, beside `logs/`. A
            training is not timed, because its time depends on secret cohorts.
        is_answer: as for `job`.

    Yields:
        The job's logger.
    """
    log = Path(snakemake.log[0])
    measurement: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if timed:
        measurement = measured(log.parent.with_name("benchmark") / f"{log.stem}.tsv")
    with job(log, name, is_answer=is_answer) as logger, measurement:
        made_from = {
            path.relative_to(RESULTS).as_posix(): digest_of(path)
            for path in map(Path, snakemake.input)
            if path.parts[0] == RESULTS
        }
        outputs = [Path(path) for path in snakemake.output]
        for manifest in manifests(snakemake.rule, outputs):
            manifest.unlink(missing_ok=True)
        files.written.clear()
        yield logger
        seal(
            snakemake.rule,
            _written_files(outputs),
            made_from,
            code=getattr(snakemake.params, "code", None),
        )


def _written_files(outputs: list[Path]) -> list[Path]:
    """Return the declared output files, then the undeclared files that the job wrote.

    An undeclared file, such as a preview, counts if it lies beside a declared one.
    """
    folders = {path.parent for path in outputs}
    undeclared = {path for path in files.written if path.parent in folders}
    return [*outputs, *sorted(undeclared - {*outputs})]


def manifests(rule: str, paths: Iterable[Path]) -> dict[Path, list[Path]]:
    """Return the manifests of a job, each with the files that it covers.

    There is one manifest for each folder, named after the folder's first file.
    """
    by_folder: dict[Path, list[Path]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, []).append(path)
    return {
        folder / FOLDER / f"{rule}-{members[0].stem}.sha256": members
        for folder, members in by_folder.items()
    }


def seal(
    rule: str,
    paths: Iterable[Path],
    made_from: Mapping[str, str] | None = None,
    *,
    code: str | None = None,
) -> None:
    """Write the manifests of files that a job of a rule has written.

    Args:
        rule: the rule's name.
        paths: the files.
        made_from: the SHA-256 of each input file, by its path below the results folder;
            None if it is not known.
        code: the hash of the code that the rule depends on.
    """
    comments = []
    if made_from is not None:
        comments.append("# made from the files and the code named here")
        for path, digest in made_from.items():
            comments.append(f"# from {digest}  {path}")
    if code is not None:
        comments.append(f"# code {code}")
    for manifest, members in manifests(rule, paths).items():
        lines = [f"{files.sha256(path)}  {path.name}" for path in members]
        files.write_text(manifest, "\n".join([*lines, *comments]) + "\n")
