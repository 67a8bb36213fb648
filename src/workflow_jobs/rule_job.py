"""Run the script of a rule as a job, in a fork of the warm process if there is one."""

import logging
from contextlib import AbstractContextManager
from typing import Any

from workflow_jobs.hand_over import hand_over


def rule_job(
    snakemake: Any, name: str, *, timed: bool = True, is_answer: bool = False
) -> AbstractContextManager[logging.Logger]:
    """Return a context that runs the script of a rule as a job.

    A script that waits for the warm process needs no other module, so that scripts
    import what they need in the body.

    Args:
        snakemake: Snakemake's object for scripts.
        name: name of the job in messages.
        timed: as for `manifests.sealed_job`.
        is_answer: as for `jobs.job`.

    Returns:
        The context, which gives the job's logger.
    """
    hand_over()
    from workflow_jobs.manifests import sealed_job

    return sealed_job(snakemake, name, timed=timed, is_answer=is_answer)
