"""Planned cells of all presets: configurations, folders, meta-tests and labels."""

import json

import pytest

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
