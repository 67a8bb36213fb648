"""What the workflow does before its first job."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from workflow_jobs.start import niceness_of, order_jobs

SECONDS = {"train": 10.0, "table": 1.0, "page_so_far": 1.0, "page": 1.0}


class FakeJob:
    """A job of Snakemake, as far as the order of jobs needs it."""

    HIGHEST_PRIORITY = 1000

    def __init__(self, rule, name):
        self.rule = SimpleNamespace(name=rule)
        self.wildcards_dict = {"name": name}
        self.output = [name]


class FakeDag:
    """A plan of jobs: the jobs that each job needs."""

    def __init__(self, dependencies):
        self.dependencies = dependencies
        self.depending = {job: set() for job in dependencies}
        for job, needed in dependencies.items():
            for other in needed:
                self.depending[other].add(job)
        self._priority = dict.fromkeys(dependencies, 0)

    def needrun_jobs(self):
        return iter(self.dependencies)

    def priority(self, job):
        return self._priority[job]

    def toposorted(self, jobs):
        levels = []
        placed = set()
        while len(placed) < len(jobs):
            level = {
                job
                for job in jobs
                if job not in placed and set(self.dependencies[job]) <= placed
            }
            levels.append(level)
            placed |= level
        return levels


@pytest.fixture
def planned():
    """Two papers of two trainings each; the second paper shares one of the first."""
    jobs = {
        name: FakeJob(rule, name)
        for rule, name in [
            ("train", "of-second"),
            ("train", "shared"),
            ("train", "of-first"),
            ("train", "start"),
            ("table", "second-table"),
            ("table", "first-table"),
            ("page_so_far", "so-far"),
            ("page", "index"),
        ]
    }
    needed = {
        "of-first": ["start"],
        "first-table": ["shared", "of-first"],
        "second-table": ["shared", "of-second"],
        "so-far": ["first-table"],
        "index": ["so-far", "first-table", "second-table"],
    }
    dag = FakeDag(
        {
            job: [jobs[other] for other in needed.get(name, ())]
            for name, job in jobs.items()
        }
    )
    descriptions = SimpleNamespace(seconds=lambda rule, wildcards: SECONDS[rule])
    return jobs, SimpleNamespace(dag=dag), descriptions


def names_in_order(jobs, workflow):
    """Return the names of jobs, that of the highest priority first."""
    names = sorted(jobs, key=lambda name: -workflow.dag.priority(jobs[name]))
    assert len({workflow.dag.priority(job) for job in jobs.values()}) == len(jobs)
    return names


def test_order_of_jobs_puts_the_first_papers_page_before_other_trainings(planned):
    """By hand: `start` has 10 + 10 + 1 + 1 + 1 s of jobs in a row, `shared` 13 s."""
    jobs, workflow, descriptions = planned
    order_jobs(workflow, descriptions, ["so-far"])
    names = names_in_order(jobs, workflow)
    assert names[:5] == ["start", "of-first", "shared", "first-table", "so-far"]
    assert names[5:] == ["of-second", "second-table", "index"]


def test_order_of_jobs_without_milestones_follows_the_longest_row_of_jobs(planned):
    jobs, workflow, descriptions = planned
    order_jobs(workflow, descriptions, ["not-in-the-plan"])
    assert names_in_order(jobs, workflow)[0] == "start"
    assert names_in_order(jobs, workflow)[-1] == "index"


def test_order_of_jobs_keeps_what_the_user_prioritizes(planned):
    jobs, workflow, descriptions = planned
    workflow.dag._priority[jobs["of-second"]] = FakeJob.HIGHEST_PRIORITY
    order_jobs(workflow, descriptions, ["so-far"])
    assert names_in_order(jobs, workflow)[0] == "of-second"


def niceness_of_a_job(niceness, outside=0):
    """Return the niceness of a process that a workflow starts, above its caller's."""
    code = (
        f"import os, sys; os.nice({outside});"
        " from workflow_jobs.start import lower_priority;"
        f" lower_priority({niceness}); os.execvp('nice', ['nice'])"
    )
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    return int(shown)


def test_jobs_stand_back_for_other_programs():
    here = os.nice(0)
    assert niceness_of_a_job(niceness_of(None)) == max(10, here)
    assert niceness_of_a_job(0) == here
    # Whoever calls the workflow by `nice -n 15` keeps that.
    assert niceness_of_a_job(niceness_of(None), outside=15 - here) == max(15, here)


@pytest.mark.parametrize("value", [-5, 20, "low", 2.5, True])
def test_niceness_of_another_value_is_refused(value):
    with pytest.raises(SystemExit, match=f"configuration: nice is {value}"):
        niceness_of(value)
    assert niceness_of("0") == 0
