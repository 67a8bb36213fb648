"""Planned cells of all presets: configurations, folders, meta-tests and labels."""

import json

import pytest

from dpfedbench.config.yaml_files import read_file
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from tests.shipped import ROOT
from tools import same_cells

DIGESTS = json.loads(same_cells.DIGESTS.read_text(encoding="utf-8"))


def test_planned_cells_have_digests_of_every_preset() -> None:
    assert set(same_cells.presets_of(same_cells.HERE)) == set(DIGESTS)


@pytest.mark.parametrize("preset", DIGESTS)
def test_planned_cells_are_those_of_the_digests(preset: str) -> None:
    """All six presets take about 20 seconds of processor time.

    The digests are no expected values: they were written by the code under test. They
    tell a change of the structure from a change of a result's settings.
    """
    entries = same_cells.list_entries(same_cells.HERE, preset)
    digests = same_cells.digests_of(entries)
    changed = {
        item
        for item in digests.keys() | DIGESTS[preset].keys()
        if digests.get(item) != DIGESTS[preset].get(item)
    }
    assert not changed, (
        "`python tools/same_cells.py BASE` shows what differs from the commit BASE; if"
        " each difference is meant, `python tools/same_cells.py --write` and name it"
    )


def test_first_look_keeps_each_table_and_figure_of_a_paper() -> None:
    full = same_cells.list_entries(same_cells.HERE, "full")
    first_look = same_cells.list_entries(same_cells.HERE, "default")
    # Tables of the project's own: rows that no paper prints, or further readings.
    left_out = {
        "clients-that-differ/letters",
        "clients-that-differ/records",
        "correlated-noise/participation",
        "dp-fedmeta/as-released",
        "dp-fedmeta/readings-gbml",
        "dp-fedmeta/table2-by-tensor",
        "dp-fnas/cells",
        "dp-maml/baselines",
        "dp-maml/table3-by-layer",
        "secure-aggregation/bits",
    }
    assert full.keys() - first_look.keys() <= left_out
    assert first_look.keys() <= full.keys()


def test_first_look_changes_the_runs_that_its_comments_name() -> None:
    full = same_cells.list_entries(same_cells.HERE, "full")[same_cells.RUNS]
    first_look = same_cells.list_entries(same_cells.HERE, "default")[same_cells.RUNS]
    changed = [first_look[folder]["values"] for folder in first_look.keys() - full]
    few_rounds = [run for run in changed if run["participation"]["rounds"] == 100]
    others = [run for run in changed if run not in few_rounds]
    assert {run["method"] for run in few_rounds} == {"adap-dp-fl", "dp-fl", "fedavg"}
    # MAML without validation, the vocabulary without a curve, one party's variance.
    assert sorted(run["method"] for run in others) == ["dp-fnas", "dp-reptile", "maml"]


def test_referee_lies_over_the_preset_of_real_data() -> None:
    files = [*same_cells.list_files(ROOT, "real"), ROOT / "config/referee.yaml"]
    plan = make_plan(Configuration.read(overlaid(*map(read_file, files))))
    refining = plan.items["dp-meta-learning-gbml", "refining"]
    steps = {cell.tests[0].evaluation.steps for cell in refining.cells if cell.tests}
    # Epochs of three minibatches of 20 of a task's 60 records; six are the run's own.
    assert steps == {3, 6, 9}
    fragments = plan.items["adap-dp-fl", "accuracy-a-fragments"]
    assert {cell.runs[0].clients.fragments for cell in fragments.cells} == {40}
