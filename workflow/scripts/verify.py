"""Say what of a results folder is not as its rules wrote it."""

import logging
from pathlib import Path

from dpfedbench.errors import BenchError
from dpfedbench.jobs import job
from dpfedbench.verification import faults


def verify(results: Path, logger: logging.Logger) -> None:
    """Print what does not hold, one line each, and fail if anything does not."""
    checks = wrong = 0
    for fault in faults(results):
        checks += 1
        if fault is not None:
            wrong += 1
            logger.info("%s", fault)
    if not checks:
        raise BenchError(f"{results} has nothing that a rule wrote: give the folder that it is in with --directory")
    if wrong:
        raise BenchError(f"{wrong} of {checks} checks of files and runs in {results} failed, see above")
    logger.info("all %d files and runs in %s are as they were written", checks, results)


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "verify") as logger:
        verify(Path("results"), logger)
