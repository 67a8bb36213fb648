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
    """All five presets take about 15 seconds of processor time.

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


def test_referee_lies_over_the_preset_of_real_data() -> None:
    files = [*same_cells.list_files(ROOT, "real"), ROOT / "config/referee.yaml"]
    plan = make_plan(Configuration.read(overlaid(*map(read_file, files))))
    refining = plan.items["dp-meta-learning-gbml", "refining"]
    steps = {cell.tests[0].evaluation.steps for cell in refining.cells if cell.tests}
    # Epochs of three minibatches of 20 of a task's 60 records; six are the run's own.
    assert steps == {3, 6, 9}
    fragments = plan.items["adap-dp-fl", "accuracy-a-fragments"]
    assert {cell.runs[0].clients.fragments for cell in fragments.cells} == {40}
