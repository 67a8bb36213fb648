"""Print where the time of a run of the workflow goes, by stage, and how it fills cores.

uv run python tools/stage_times.py [--preset NAME] [--results]

The plan is that of `snakemake --forceall --dry-run`. A job takes as long as the
reference's rates say. With `--results`, a job that has run in this folder takes
the processor time in its benchmark file, and a training that tells its time takes that;
private trainings with secret cohorts tell none.

Then the plan is simulated on 2, 8 and 16 cores: whenever a core is free, the ready job
of the highest priority starts (`workflow_jobs.start.order_jobs`).
"""

import argparse
import csv
import heapq
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dpfedbench.experiments.configuration import (
    Configuration,
    read_shipped,
    shipped_files,
)
from dpfedbench.experiments.datasets import known_datasets, read_holdings
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.job_descriptions import REFERENCE_RATES, JobDescriptions

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 0.6
"""Processor time with which a job starts: an interpreter, and a fork of the warm one."""

_JOB = re.compile(r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", re.MULTILINE)
_SO_FAR = re.compile(r"so-far/(\d+)/page\.json")


@dataclass
class PlannedJob:
    """A job of a dry run.

    Attributes:
        rule: name of its rule.
        wildcards: its wildcards.
        inputs: paths of its input files.
        outputs: paths of its output files.
        log: path of its log; None without one.
        seconds: how long it takes on one core.
        stage: number of the first page that needs it; later than all for the others.
        seconds_to_end: seconds of the longest row of jobs that begins with it.
        needs: the jobs whose outputs it reads.
    """

    rule: str
    wildcards: dict[str, str]
    inputs: list[str]
    outputs: list[str]
    log: Path | None
    seconds: float = 0.0
    stage: int = 10_000
    seconds_to_end: float = 0.0
    needs: list["PlannedJob"] = field(default_factory=list)


def main() -> None:
    """Print the seconds of each stage, and the simulated runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", action="store_true", help="use measured times")
    parser.add_argument("--preset", help="name of a preset")
    arguments = parser.parse_args()
    command = ["snakemake", "--cores", "2", "--forceall", "--dry-run"]
    if arguments.preset:
        preset = ROOT / "config" / "presets" / f"{arguments.preset}.yaml"
        command += ["--configfile", str(preset)]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    jobs = read_jobs(done.stdout + done.stderr)
    connect(jobs)
    set_seconds(jobs, arguments.preset, measured=arguments.results)
    set_order(jobs)
    print_stages(jobs)
    for cores in (2, 8, 16):
        print_simulation(jobs, cores)


def read_jobs(text: str) -> list[PlannedJob]:
    """Return the jobs that a dry run prints."""
    jobs = []
    for rule, lines in _JOB.findall(text):
        values = dict(re.findall(r"^    (\w+): (.*)$", lines, flags=re.MULTILINE))
        pairs = _listed(values.get("wildcards"))
        jobs.append(
            PlannedJob(
                rule=rule,
                wildcards=dict(pair.split("=", 1) for pair in pairs),
                inputs=_listed(values.get("input")),
                outputs=_listed(values.get("output")),
                log=Path(values["log"]) if "log" in values else None,
            )
        )
    return jobs


def _listed(text: str | None) -> list[str]:
    return text.split(", ") if text else []


def connect(jobs: list[PlannedJob]) -> None:
    """Find the jobs that each job waits for."""
    made_by = {
        path.removesuffix(" (update)"): job for job in jobs for path in job.outputs
    }
    for job in jobs:
        needed = {
            id(made_by[path]): made_by[path] for path in job.inputs if path in made_by
        }
        job.needs = list(needed.values())


def set_seconds(jobs: list[PlannedJob], preset: str | None, *, measured: bool) -> None:
    """Set how long each job takes, from the reference's rates or from results."""
    descriptions = read_descriptions(preset)
    for job in jobs:
        if job.rule == "all":
            continue
        job.seconds = descriptions.seconds(job.rule, job.wildcards)
        if not measured or job.log is None:
            continue
        benchmark = job.log.parent.with_name("benchmark") / f"{job.log.stem}.tsv"
        if benchmark.exists():
            with open(benchmark, encoding="utf-8", newline="") as file:
                row = next(csv.DictReader(file, delimiter="\t"))
            job.seconds = START_SECONDS + float(row["cpu_time"])
        elif job.rule == "train":
            job.seconds = training_seconds(job) or job.seconds


def training_seconds(job: PlannedJob) -> float | None:
    """Return the time that a finished training tells; None without one."""
    for path in job.outputs:
        if path.endswith("training.json") and Path(path).exists():
            seconds = json.loads(Path(path).read_text(encoding="utf-8"))["seconds"]
            return START_SECONDS + seconds if seconds is not None else None
    return None


def read_descriptions(preset: str | None) -> JobDescriptions:
    """Return the estimated times of a preset's jobs, on the reference machine."""
    configuration = Configuration.read(read_shipped(ROOT / "config", preset))
    plan = make_plan(
        configuration,
        datasets=known_datasets(configuration),
        holdings=read_holdings(configuration),
        files=shipped_files(ROOT / "config", preset),
    )
    titles = {
        name: paper.title
        for name, paper in configuration.experiments.items()
        if paper is not None
    }
    return JobDescriptions(plan, titles, (REFERENCE_RATES,))


def set_order(jobs: list[PlannedJob]) -> None:
    """Set what `workflow_jobs.start.order_jobs` orders the jobs by."""
    for job in jobs:
        for path in job.outputs:
            if match := _SO_FAR.search(path):
                set_stage(job, int(match[1]))
    later: dict[int, list[PlannedJob]] = {id(job): [] for job in jobs}
    for job in jobs:
        for needed in job.needs:
            later[id(needed)].append(job)
    known: set[int] = set()

    def measure(job: PlannedJob) -> float:
        if id(job) not in known:
            following = (measure(other) for other in later[id(job)])
            job.seconds_to_end = job.seconds + max(following, default=0.0)
            known.add(id(job))
        return job.seconds_to_end

    for job in jobs:
        measure(job)


def set_stage(job: PlannedJob, stage: int) -> None:
    """Note that a page needs a job, and all that the job needs."""
    if job.stage > stage:
        job.stage = stage
        for needed in job.needs:
            set_stage(needed, stage)


def print_stages(jobs: list[PlannedJob]) -> None:
    """Print the jobs and seconds of each rule, and the longest row of jobs."""
    seconds: dict[str, list[float]] = {}
    for job in jobs:
        seconds.setdefault(job.rule, []).append(job.seconds)
    print(f"{'rule':20} {'jobs':>5} {'seconds':>8}")
    for rule, times in sorted(seconds.items(), key=lambda item: -sum(item[1])):
        print(f"{rule:20} {len(times):5} {sum(times):8.0f}")
    total = sum(job.seconds for job in jobs)
    print(f"{'total':20} {len(jobs):5} {total:8.0f}\n")
    job = max(jobs, key=lambda job: job.seconds_to_end)
    print(f"longest row of jobs, {job.seconds_to_end:.0f} s:")
    while True:
        print(f"{job.seconds:8.0f}  {job.rule} {' '.join(job.wildcards.values())}")
        following = [
            other for other in jobs if any(job is need for need in other.needs)
        ]
        if not following:
            break
        job = max(following, key=lambda other: other.seconds_to_end)


def simulate(jobs: list[PlannedJob], cores: int) -> dict[int, float]:
    """Return when each job ends on some cores, in seconds, by the job's `id`."""
    ends: dict[int, float] = {}
    ready = [job for job in jobs if not job.needs]
    waiting = [job for job in jobs if job.needs]
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        ready.sort(key=lambda job: (-job.stage, job.seconds_to_end))
        while ready and len(running) < cores:
            job = ready.pop()
            heapq.heappush(running, (now + job.seconds, id(job)))
        now, finished = heapq.heappop(running)
        ends[finished] = now
        ready += [job for job in waiting if all(id(need) in ends for need in job.needs)]
        waiting = [
            job for job in waiting if any(id(need) not in ends for need in job.needs)
        ]
    return ends


def print_simulation(jobs: list[PlannedJob], cores: int) -> None:
    """Print how long the plan takes on some cores, and how much of them is idle."""
    ends = simulate(jobs, cores)
    total = max(ends.values())
    idle = 1 - sum(job.seconds for job in jobs) / (cores * total)
    pages = sorted(ends[id(job)] for job in jobs if job.rule == "page_so_far")
    text = ", ".join(f"{seconds:.0f} s" for seconds in pages)
    print(
        f"{cores:3} cores: {total:.0f} s, {100 * idle:.0f} % idle; pages after {text}"
    )


if __name__ == "__main__":
    main()
