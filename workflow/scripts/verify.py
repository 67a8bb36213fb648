"""Say what of a results folder is not as its rules wrote it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.jobs import job
from dpfedbench.verification import Faults


def verify(
    results: Path, logger: logging.Logger, *, deep: bool, searches: Mapping[str, Any]
) -> None:
    """Print what does not hold, one line each, and fail if anything does not."""
    checks = wrong = 0
    faults = Faults(results, deep=deep, searches=searches)
    for fault in faults:
        checks += 1
        if fault is not None:
            wrong += 1
            logger.info("%s", fault)
    if not checks:
        raise BenchError(
            f"{results} has nothing that a rule wrote: give the folder that it is in"
            " with --directory"
        )
    if wrong:
        raise BenchError(
            f"{wrong} of {checks} checks of files and runs in {results} failed, see"
            " above"
        )
    former = (
        f"; {len(faults.former)} were made before it was written down from what"
        if faults.former
        else ""
    )
    logger.info(
        "all %d files and runs in %s are as they were written%s",
        checks,
        results,
        former,
    )


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "verify") as logger:
        verify(
            Path("results"),
            logger,
            deep=snakemake.params.deep,
            searches=snakemake.params.searches,
        )
