"""Draw, fetch or unpack a data set."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workflow_jobs.rule_job import rule_job


def make_reporter(
    logger: logging.Logger, seconds: float = 5.0
) -> Callable[[str, int, int], None]:
    """Return a callback that logs progress.

    It logs at the start and the end of each stage, and in between at most once in so
    many seconds.

    Args:
        logger: where progress is logged.
        seconds: least time between two lines of one stage.
    """
    state: dict[str, Any] = {"stage": None, "time": 0.0}

    def report(stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        is_due = now - state["time"] >= seconds
        if stage != state["stage"] or done >= total or is_due:
            state.update(stage=stage, time=now)
            logger.info("%s: %d of %d", stage, done, total)

    return report


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, f"prepare {snakemake.wildcards.dataset}") as logger:
        from dpfedbench.data.registry import prepare

        prepare(
            snakemake.wildcards.dataset,
            Path(snakemake.output.images).parent,
            snakemake.config["data"]["local_dir"],
            make_reporter(logger),
            own=snakemake.config["datasets"],
        )
