"""List the runs that nothing needs any more, and remove them if asked to."""

import logging
from collections.abc import Collection
from pathlib import Path

from dpfedbench.jobs import job
from dpfedbench.pruning import old_runs, remove_run, wanted_runs


def prune(
    runs: Path,
    root: Path,
    current: Collection[str],
    remove: bool,
    logger: logging.Logger,
) -> None:
    """Say what can go, and take it away where `remove` says so."""
    count = size = 0
    for run in old_runs(runs, wanted_runs(root) | set(current)):
        busy = run.busy or (remove and not remove_run(runs, run.folder))
        said = (
            "kept, it is being trained"
            if busy
            else "removed"
            if remove
            else "not needed"
        )
        logger.info("%s: %s (%.1f MB)", runs / run.folder, said, run.size / 1e6)
        if not busy:
            count, size = count + 1, size + run.size
    what = "removed" if remove else "that no table or figure of any preset needs"
    ask = "; --config prune=yes removes them" if count and not remove else ""
    logger.info("%d runs %s, %.1f MB%s", count, what, size / 1e6, ask)


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "prune") as logger:
        given = snakemake.params
        prune(
            Path("results/runs"), Path(given.root), given.current, given.delete, logger
        )
