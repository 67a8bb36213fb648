"""Check the files of a results folder, and compute its accounts again."""

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.verification import check_accounts, check_files
from workflow_jobs.jobs import job


def verify(results: Path, logger: logging.Logger, searches: Mapping[str, Any]) -> None:
    """Check files and accounts, and log a line for each fault.

    Args:
        results: the results folder.
        logger: where the faults are logged.
        searches: the declared searches, which the accounts depend on.

    Raises:
        BenchError: the folder is empty, or there is a fault.
    """
    checks = faults = 0
    for fault in itertools.chain(
        check_files(results), check_accounts(results, searches)
    ):
        checks += 1
        if fault is not None:
            faults += 1
            logger.info("%s", fault)
    if not checks:
        raise BenchError(
            f"{results} has no results: give the folder that it is in with --directory"
        )
    if faults:
        raise BenchError(
            f"{faults} of {checks} files and accounts in {results} have a fault, see"
            " above"
        )
    logger.info("all %d files and accounts in %s are as written", checks, results)


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "verify", is_answer=True) as logger:
        verify(Path("results"), logger, snakemake.params.searches)
