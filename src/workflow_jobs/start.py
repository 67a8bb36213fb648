"""What the workflow does once, before it starts its first job.

Each function takes Snakemake's `workflow` object, whose plan of jobs (`workflow.dag`)
is complete by then.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from dpfedbench.errors import BenchError
from dpfedbench.experiments.job_descriptions import JobDescriptions
from dpfedbench.parts.compatibility import check_processes
from dpfedbench.run import Run
from workflow_jobs.cluster import check_slurm
from workflow_jobs.hand_over import WARM
from workflow_jobs.terminal import JobTimes, TerminalHandler, duration_text
from workflow_jobs.warm import FEWEST

NICENESS = 10
"""By how much the workflow and its jobs stand back for other programs, 0 to 19."""

_DEFAULT_RATE = (100, 1)
"""Snakemake's default limit: so many jobs in so many seconds."""


def niceness_of(value: Any) -> int:
    """Return the niceness that `--config nice=` asks for, or the default for None.

    It ends the process with one line for a value that is no niceness.
    """
    if value is None:
        return NICENESS
    text = str(value)
    if not text.isdecimal() or int(text) > 19:
        sys.exit(f"configuration: nice is {value}: expected a whole number, 0 to 19")
    return int(text)


def lower_priority(niceness: int) -> None:
    """Let other programs of this machine go before this process and its jobs.

    Jobs on the nodes of a cluster are not affected.

    Args:
        niceness: the niceness, as of the command `nice`. A process that already has
            a higher one keeps it.
    """
    if hasattr(os, "nice"):
        os.nice(max(0, niceness - os.nice(0)))


def show_progress(
    workflow: Any, handler: TerminalHandler, descriptions: JobDescriptions
) -> None:
    """Show the progress of all jobs on the terminal.

    Args:
        workflow: Snakemake's workflow.
        handler: the handler of the terminal.
        descriptions: texts and times of the jobs.
    """
    estimates = {}
    is_public = {}
    for job in workflow.dag.needrun_jobs():
        number = workflow.dag.jobid(job)
        estimates[number] = descriptions.seconds(job.rule.name, job.wildcards_dict)
        is_public[number] = descriptions.is_public(job.rule.name, job.wildcards_dict)
    times = JobTimes(estimates, is_public, workflow.cores or 1)
    handler.begin(descriptions.label, times)


def order_jobs(
    workflow: Any, descriptions: JobDescriptions, milestones: Sequence[str]
) -> None:
    """Give the jobs priorities: those of the first paper come first, and so on.

    Among the jobs for one paper, those that most work waits for come first.

    Args:
        workflow: Snakemake's workflow.
        descriptions: estimates the times of the jobs.
        milestones: a file for each of the first papers, in the order in which the
            papers are finished.
    """
    dag = workflow.dag
    waiting = list(dag.needrun_jobs())
    made_by = {str(path): job for job in waiting for path in job.output}
    stages = dict.fromkeys(waiting, len(milestones))
    for stage, milestone in reversed(list(enumerate(milestones))):
        pending = [made_by[milestone]] if milestone in made_by else []
        while pending:
            job = pending.pop()
            if stages.get(job, stage) > stage:
                stages[job] = stage
                pending.extend(dag.dependencies[job])
    seconds_to_end: dict[Any, float] = {}
    for level in reversed(list(dag.toposorted(set(waiting)))):
        for job in level:
            following = (
                seconds_to_end[later]
                for later in dag.depending[job]
                if later in seconds_to_end
            )
            seconds_to_end[job] = max(following, default=0.0) + descriptions.seconds(
                job.rule.name, job.wildcards_dict
            )
    waiting.sort(key=lambda job: (-stages[job], seconds_to_end[job]))
    for priority, job in enumerate(waiting, start=1):
        # Rules state priorities before the plan is known; afterwards Snakemake has no
        # public way. A job of the user's --prioritize keeps its own.
        if dag.priority(job) < job.HIGHEST_PRIORITY:
            dag._priority[job] = priority


class DryRunEstimate(logging.Filter):
    """Filter of Snakemake's logger that adds the estimated time to the table of jobs.

    At the end of a dry run Snakemake writes the table again, when all jobs count as
    finished, so that the estimate is made once.

    Args:
        workflow: Snakemake's workflow.
        descriptions: texts and times of the jobs.
    """

    def __init__(self, workflow: Any, descriptions: JobDescriptions) -> None:
        super().__init__()
        self._workflow = workflow
        self._descriptions = descriptions

    def filter(self, record: logging.LogRecord) -> bool:
        """Add a line to the record that has the table; pass all records."""
        if getattr(record, "event", None) == LogEvent.RUN_INFO:
            record.msg = f"{record.msg}\n{self._line}\n"
        return True

    @functools.cached_property
    def _line(self) -> str:
        jobs = list(self._workflow.dag.needrun_jobs())
        training = 0.0
        total = 0.0
        for job in jobs:
            seconds = self._descriptions.seconds(job.rule.name, job.wildcards_dict)
            total += seconds
            if job.rule.name == "train":
                training += seconds
        cores = max(1, self._workflow.cores or 1)
        noun = "core" if cores == 1 else "cores"
        share = round(100 * training / total) if total else 0
        return (
            f"Estimated time: {duration_text(total / cores)} on {cores} {noun}, if they"
            f" have nothing else to do; {share} % of it is training. Where the target"
            " `cost` has not timed a kind of work here, a reference machine's rates"
            " count."
        )


def remove_default_rate_limit(workflow: Any) -> None:
    """Remove Snakemake's default limit of 100 started jobs a second.

    Snakemake 9.27 enforces the limit with a timer that searches all ready jobs and is
    set again after each search. Every finished job adds one timer; after 200 jobs they
    took 40 % of a core. A limit that the user sets stays.
    """
    limit = workflow.scheduling_settings.max_jobs_per_timespan
    if limit and (limit.max_jobs, limit.timespan) == _DEFAULT_RATE:
        workflow.scheduler.job_rate_limiter = None


def allow_warm_process(workflow: Any) -> None:
    """Allow the jobs a warm process if there are enough of them."""
    if len(list(workflow.dag.needrun_jobs())) >= FEWEST:
        os.environ[WARM] = "yes"


def continue_after_failed_library(workflow: Any) -> None:
    """Continue with other jobs if one library of the table cannot be installed."""
    for job in workflow.dag.needrun_jobs():
        if job.rule.name.startswith("library_"):
            workflow.scheduler.keepgoing = True


def check_trainings(
    workflow: Any, run_of: Callable[[Any], Run], processes: int
) -> None:
    """Check that each training can run in the requested processes.

    Args:
        workflow: Snakemake's workflow.
        run_of: returns the run of a job's wildcards.
        processes: processes of each training (`machine.processes`).

    Raises:
        BenchError: a run cannot be trained by several processes, or there are fewer
            GPUs than processes.
    """
    for job in workflow.dag.needrun_jobs():
        if job.rule.name != "train":
            continue
        check_processes(run_of(job.wildcards), processes)
        if job.resources.get("gpu") not in (0, processes):
            raise BenchError(
                "machine.gpu is 1, a GPU for each of a training's processes: allow as"
                f" many with --resources gpu={processes}"
            )


def check_cluster(workflow: Any) -> None:
    """Check that Slurm has the partitions, accounts and GPUs that jobs request.

    It does nothing if the workflow does not run through Slurm.

    Raises:
        BenchError: as for `cluster.check_slurm`.
    """
    if workflow.executor_plugin.name != "slurm":
        return
    requests = set()
    for job in workflow.dag.needrun_jobs():
        if not job.is_local:
            resources = job.resources
            requests.add(
                (
                    resources.get("slurm_partition"),
                    resources.get("slurm_account"),
                    resources.get("gpu"),
                )
            )
    for partition, account, gpus in requests:
        check_slurm(partition, account, gpus)
