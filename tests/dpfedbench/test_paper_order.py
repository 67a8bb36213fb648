"""Order of the papers in a run of the workflow."""

import pytest

from dpfedbench.experiments.paper_order import order_papers
from dpfedbench.experiments.plan import Plan, PlannedCell, PlannedItem
from tests.dpfedbench.training.conftest import make_config

SECONDS = {"prepare": 5.0, "meta_test": 1.0, "account": 1.0}


@pytest.fixture(scope="module")
def runs():
    """Return runs of one data set, by the seconds that their training takes."""
    return {
        seconds: make_config({"method": "maml", "seed": seconds})
        for seconds in (4, 9, 20)
    }


def table_of(paper, runs):
    cells = tuple(
        PlannedCell(
            series=str(run.seed),
            label="",
            variant="",
            repairs="",
            x=None,
            runs=(run,),
            published_dataset="omniglot",
            mismatch="",
        )
        for run in runs
    )
    return PlannedItem(paper=paper, name="table", kind="table", spec={}, cells=cells)


def seconds(rule, wildcards):
    if rule == "train":
        return float(wildcards["seed"])
    return SECONDS[rule]


def plan_of(**papers):
    tables = [table_of(paper, runs) for paper, runs in papers.items()]
    return Plan(
        items={(table.paper, table.name): table for table in tables},
        runs={run.folder: run for runs in papers.values() for run in runs},
    )


def test_order_of_papers_takes_the_least_work_first(runs):
    """A run has its training, and 2 s of test and account."""
    plan = plan_of(long=[runs[20]], short=[runs[4]], middle=[runs[9]])
    assert order_papers(plan, seconds) == ["short", "middle", "long"]


def test_order_of_papers_counts_shared_work_once(runs):
    """By hand: `alone` has 9 + 2 s, `first` 4 + 2 s, `both` the same run and 4 + 2 s
    more: less than `alone` after `first` is finished, and more without it.
    """
    other = make_config({"method": "maml", "seed": 5})
    plan = plan_of(alone=[runs[9]], both=[runs[4], other], first=[runs[4]])
    assert order_papers(plan, seconds) == ["first", "both", "alone"]
