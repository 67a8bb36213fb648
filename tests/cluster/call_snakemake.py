"""Call Snakemake, asking the cluster for finished jobs each second.

Slurm's plugin waits ten seconds longer after each question that found no finished job,
so that it does not burden a cluster of many users. No option changes this, and most
jobs of `slurm.py` end a few seconds after the first question.
"""

from snakemake.cli import main
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

SECONDS = 1


def ignore(executor: RemoteExecutor, seconds: float) -> None:
    """Keep the time between two questions."""


if __name__ == "__main__":
    RemoteExecutor.next_seconds_between_status_checks = property(
        lambda executor: SECONDS, ignore
    )
    main()
