"""Draw, fetch or unpack a data set."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workflow_jobs.manifests import rule_job


def reporter(
    logger: logging.Logger, every: float = 5.0
) -> Callable[[str, int, int], None]:
    """A callback that logs progress: at each new stage, at its end, and every so many
    seconds.
    """
    state: dict[str, Any] = {"what": None, "time": 0.0}

    def report(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != state["what"] or done >= total or now - state["time"] >= every:
            state.update(what=what, time=now)
            logger.info("%s: %d of %d", what, done, total)

    return report


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, f"prepare {snakemake.wildcards.dataset}") as logger:
        from dpfedbench.data.registry import prepare

        prepare(
            snakemake.wildcards.dataset,
            Path(snakemake.output.images).parent,
            snakemake.config["data"]["local_dir"],
            reporter(logger),
            own=snakemake.config["datasets"],
        )
