"""Texts and times of the workflow's jobs."""

import csv
from pathlib import Path

import pytest

from dpfedbench.config.yaml_files import read_file
from dpfedbench.experiments.configuration import (
    Configuration,
    overlaid,
    shipped_files,
)
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.job_descriptions import (
    REFERENCE_RATES,
    JobDescriptions,
    item_text,
)
from dpfedbench.experiments.plan import Plan, PlannedCell, PlannedItem
from dpfedbench.experiments.work import kind_key
from tests.dpfedbench.training.conftest import make_config
from tests.shipped import ROOT

SIZES = {
    "clients": {"count": 200},
    "participation": {"cohort": 20, "rounds": 10},
    "validation": {"every": 5, "tasks": 40},
    "evaluation": {"every": 0},
}


@pytest.fixture(scope="module")
def runs():
    """Return a public and a private run."""
    return [make_config({"method": method}, SIZES) for method in ("maml", "dp-agr")]


def wildcards_of(run):
    names = ("method", "dataset", "task", "key", "seed")
    parts = run.folder.replace("/seed", "/").split("/")
    return dict(zip(names, parts, strict=True))


@pytest.fixture
def describe(runs, tmp_path):
    """Return a function that describes the jobs of a plan with one table."""
    cells = tuple(
        PlannedCell(
            series=run.method,
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
    table = PlannedItem(
        paper="dp-fedmeta", name="table2", kind="table", spec={}, cells=cells
    )
    plan = Plan(
        items={("dp-fedmeta", "table2"): table}, runs={run.folder: run for run in runs}
    )

    def make(*rates: Path) -> JobDescriptions:
        return JobDescriptions(plan, {"dp-fedmeta": "DP-FedMeta"}, rates)

    return make


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table2", "Table 2"),
        ("figure4a", "Figure 4a"),
        ("table2-by-tensor", "Table 2 (by tensor)"),
        ("repairs", "repairs"),
    ],
)
def test_item_text_reads_like_the_paper(name, text):
    assert item_text(name) == text


def test_label_of_a_training_is_its_table_row(describe, runs):
    label = describe().label("train", wildcards_of(runs[1]))
    assert label == "DP-FedMeta, Table 2: DP-AGR on glyphs, seed 0"


def test_label_of_another_job_says_what_it_makes(describe, runs):
    descriptions = describe()
    test = descriptions.label("meta_test", wildcards_of(runs[0]))
    table = descriptions.label("table", {"paper": "dp-fedmeta", "item": "table2"})
    assert test.endswith("Non-private MAML on glyphs, seed 0, meta-test")
    assert table == "DP-FedMeta, Table 2"
    assert descriptions.label("page_of_paper", {"paper": "dp-fedmeta"}) == (
        "DP-FedMeta, page"
    )
    assert descriptions.label("prepare", {"dataset": "glyphs"}) == "prepare glyphs"


def test_seconds_of_a_training_follow_the_rate_of_its_kind(describe, runs, tmp_path):
    # By hand: 10 rounds of 20 clients of 0.5 s, two validations of 40 tasks of 0.1 s,
    # and a second for the start.
    rates = tmp_path / "cost_rates.csv"
    rates.write_text(
        "kind,method,seconds_per_unit,validation,test,lot\n"
        f"{kind_key(runs[0])},maml,0.5,0.1,0.0,\n",
        encoding="utf-8",
    )
    seconds = describe(rates).seconds("train", wildcards_of(runs[0]))
    assert seconds == pytest.approx(100 + 8 + 1)


def test_seconds_of_an_unknown_kind_follow_its_method(describe, runs, tmp_path):
    # By hand: 200 clients at the method's median rate, 0.2 s, and a second.
    rates = tmp_path / "cost_rates.csv"
    rates.write_text(
        "kind,method,seconds_per_unit,validation,test,lot\n"
        "a,maml,0.1,0,0,\nb,maml,0.2,0,0,\nc,maml,0.9,0,0,\n",
        encoding="utf-8",
    )
    seconds = describe(tmp_path / "missing.csv", rates).seconds(
        "train", wildcards_of(runs[0])
    )
    assert seconds == pytest.approx(41)


def test_no_private_training_may_be_timed(describe, runs):
    descriptions = describe()
    public, private = (
        descriptions.is_public("train", wildcards_of(run)) for run in runs
    )
    assert public
    assert not private
    assert descriptions.is_public("meta_test", wildcards_of(runs[1]))


def test_reference_rates_know_most_kinds_of_work_of_the_default_preset():
    # Where they do not, `snakemake cost` measures them: copy results/cost_rates.csv.
    files = shipped_files(ROOT / "config")
    plan = make_plan(Configuration.read(overlaid(*map(read_file, files))))
    text = REFERENCE_RATES.read_text(encoding="utf-8")
    known = {row["kind"] for row in csv.DictReader(text.splitlines())}
    kinds = {kind_key(run) for run in plan.runs.values() if run.trained}
    assert len(kinds & known) >= 0.8 * len(kinds)
