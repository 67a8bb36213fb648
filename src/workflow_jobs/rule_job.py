"""Run the script of a rule as a job, in a fork of the warm process if there is one."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from workflow_jobs.hand_over import hand_over


@contextlib.contextmanager
def rule_job(
    snakemake: Any, name: str, *, timed: bool = True, is_answer: bool = False
) -> Iterator[logging.Logger]:
    """Run the script of a rule as a job.

    A script that waits for the warm process needs no other module, so that scripts
    import what they need in the body.

    Args:
        snakemake: Snakemake's object for scripts.
        name: name of the job in messages.
        timed: as for `manifests.sealed_job`.
        is_answer: as for `jobs.job`.

    Yields:
        The job's logger.
    """
    hand_over()
    from workflow_jobs.manifests import sealed_job

    with sealed_job(snakemake, name, timed=timed, is_answer=is_answer) as logger:
        yield logger
