"""The simulation of a plan on some cores."""

import pytest

from tools.stage_times import PlannedJob, connect, read_jobs, set_order, simulate

DRY_RUN = """
rule train:
    input: results/runs/a/config.yaml
    output: results/runs/a/model.safetensors
    log: results/runs/a/logs/train.log
    wildcards: method=a, seed=0

rule page_so_far:
    input: results/runs/a/model.safetensors
    output: results/so-far/1/page.json

rule page:
    input: results/so-far/1/page.json, results/runs/a/model.safetensors
    output: results/index.html (update)

localrule all:
    input: results/index.html
"""


def planned_job(name, seconds, needs=()):
    return PlannedJob(
        rule=name,
        wildcards={},
        inputs=[],
        outputs=[],
        log=None,
        seconds=seconds,
        needs=list(needs),
    )


def test_read_jobs_finds_what_each_job_waits_for():
    jobs = read_jobs(DRY_RUN)
    connect(jobs)
    train, so_far, page, everything = jobs
    assert train.wildcards == {"method": "a", "seed": "0"}
    assert train.needs == []
    assert so_far.needs == [train]
    assert page.needs == [so_far, train]
    assert everything.needs == [page]
    set_order(jobs)
    assert [job.stage == 1 for job in jobs] == [True, True, False, False]


@pytest.mark.parametrize(("cores", "end"), [(1, 10.0), (2, 7.0), (8, 7.0)])
def test_simulation_fills_cores_in_the_order_of_jobs(cores, end):
    """By hand: `long` and `after` take 7 s in a row, and `short` fits beside them."""
    long = planned_job("long", 5.0)
    short = planned_job("short", 3.0)
    after = planned_job("after", 2.0, [long])
    jobs = [short, after, long]
    set_order(jobs)
    ends = simulate(jobs, cores)
    assert max(ends.values()) == end
    assert ends[id(long)] == 5.0


def test_simulation_starts_the_jobs_of_the_first_page_first():
    other = planned_job("other", 9.0)
    first = planned_job("first", 1.0)
    first.stage = 1
    jobs = [other, first]
    set_order(jobs)
    ends = simulate(jobs, 1)
    assert (ends[id(first)], ends[id(other)]) == (1.0, 10.0)
