"""List the runs that nothing needs any more, and remove them if asked to."""

import logging
from collections.abc import Collection
from pathlib import Path

from dpfedbench.jobs import job
from dpfedbench.pruning import old_runs, remove_run, wanted_runs


def prune(runs: Path, root: Path, current: Collection[str], remove: bool, logger: logging.Logger) -> None:
    """Say what can go, and take it away where `remove` says so."""
    wanted = wanted_runs(root)
    found = old_runs(runs, wanted | set(current))
    count = size = 0
    for run in found:
        busy = run.busy or (remove and not remove_run(runs, run.folder))
        said = "kept, it is being trained" if busy else "removed" if remove else "not needed"
        logger.info("%s: %s (%.1f MB)", runs / run.folder, said, run.size / 1e6)
        if not busy:
            count, size = count + 1, size + run.size
    if remove:
        logger.info("%d runs removed, %.1f MB", count, size / 1e6)
    else:
        ask = "; --config prune=yes removes them" if count else ""
        logger.info("%d runs that no table or figure of any preset needs, %.1f MB%s", count, size / 1e6, ask)


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "prune") as logger:
        prune(
            Path("results/runs"),
            Path(snakemake.params.root),
            snakemake.params.current,
            snakemake.params.delete,
            logger,
        )
