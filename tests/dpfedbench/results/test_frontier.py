"""The frontier: roles, marks, arrows and curves follow from the accounts."""

import dataclasses
import math

import numpy as np
import pytest
from matplotlib.text import Annotation

from dpfedbench.results import figures, frontier
from dpfedbench.results.items import Item
from dpfedbench.results.table_columns import csv_columns

from .conftest import make_profile, write_files

CELL = {
    "paper": "dp-fedmeta",
    "item": "frontier",
    "kind": "frontier",
    "variant": "",
    "repairs": "",
    "seed": 0,
    "audited_run": "",
    "method": "dp-agr",
    "title": "DP-AGR",
    "dataset": "glyphs",
    "published_dataset": "omniglot",
    "task": "5-way 1-shot",
    "tested": "5-way 1-shot",
    "test": "",
    "mismatch": "",
    "searched": 0,
    "start": "",
    "configured_multiplier": None,
}


def make_account(unit, claimed, low, high, delta):
    profiles = {
        "claimed": make_profile("claimed", claimed, unit=unit),
        "proven": make_profile("proven", low, unit=unit, epsilon_high=high),
    }
    return {"delta": delta, "unit": unit, "profiles": profiles}


def make_cell(results, series, accuracy, x=None, **units):
    """Return a cell of one finished run of two tasks.

    Args:
        units: for each unit, claimed ε, both ends of the proven ε, and δ.
    """
    run = f"dp-agr/glyphs/5way-1shot/{series}-{x}/seed0"
    metrics = {
        "accuracy": accuracy,
        "ci_low": accuracy - 12.706,
        "ci_high": accuracy + 12.706,
        "per_task": [accuracy - 1, accuracy + 1],
    }
    accounts = [make_account(unit, *values) for unit, values in units.items()]
    nothing = {"delta": 1e-6, "unit": None, "profiles": {}}
    first, *others = accounts or [nothing]
    privacy = first | {"also": others}
    files = {"metrics": metrics, "training": {"notices": []}, "privacy": privacy}
    write_files(results, run, "method: dp-agr\n", **files)
    own = {"series": series, "label": f"the {series}", "x": x, "run": run}
    return {**CELL, **own, "private": bool(units)}


def with_cells(item, cells):
    numbered = [{**cell, "cell": number} for number, cell in enumerate(cells)]
    return dataclasses.replace(item, cells=numbered)


@pytest.fixture
def item(tmp_path):
    """A curve whose account is below what was asked, a claim that holds nowhere, one
    whose proven epsilon is higher, and a level.
    """
    client = (1.5, 4.887, 4.887, 1e-6)
    record = (2.5, 2.5, 2.5, 1e-5)
    cells = [
        make_cell(tmp_path, "repair", 80, 4.0, client=(3.0, 3.8, 3.9, 1e-6)),
        make_cell(tmp_path, "repair", 70, 1.5, client=(1.2, 1.4, 1.49, 1e-6)),
        make_cell(tmp_path, "raw", 75, client=(2.0, math.inf, math.inf, 1e-6)),
        make_cell(tmp_path, "published", 72, client=client, record=record),
        make_cell(tmp_path, "plain", 90),
    ]
    spec = {"title": "t", "x": {"label": "proven ε"}, "y": {"label": "accuracy, %"}}
    names = {"paper": "dp-fedmeta", "name": "frontier", "kind": "frontier"}
    return with_cells(Item(**names, spec=spec, cells=()), cells)


def test_frontier_roles_follow_from_the_accounts(item, tmp_path):
    table = csv_columns(frontier.read(item, tmp_path), "frontier")
    names = ["series", "role", "unit", "epsilon_asked", "epsilon_claimed"]
    names += ["epsilon_proven_low", "epsilon_proven"]
    nothing = -1.0  # in place of NaN, which equals nothing
    rows = table[names].fillna(nothing).itertuples(index=False)
    assert [tuple(row) for row in rows] == [
        ("repair", "curve", "client", 4.0, 3.0, 3.8, 3.9),
        ("repair", "curve", "client", 1.5, 1.2, 1.4, 1.49),
        ("raw", "claim", "client", nothing, 2.0, math.inf, math.inf),
        ("published", "claim", "client", nothing, 1.5, 4.887, 4.887),
        ("published", "claim", "record", nothing, 2.5, 2.5, 2.5),
        ("plain", "level", "", nothing, nothing, nothing, nothing),
    ]
    assert list(table["value"]) == [80, 70, 75, 72, 72, 90]
    assert table["low"][0] == pytest.approx(80 - 12.706, abs=1e-3)


def test_frontier_curve_has_no_point_without_a_finite_epsilon(item, tmp_path):
    worse = make_cell(tmp_path, "repair", 85, 8.0, client=(8.0, 3.0, math.inf, 1e-6))
    points = frontier.read(with_cells(item, [*item.cells, worse]), tmp_path)
    repairs = points[points["series"] == "repair"]
    assert repairs["role"].tolist() == ["curve", "curve", "claim"]


def test_frontier_curve_is_of_the_unit_that_the_sweep_moves(item, tmp_path):
    client = (1.5, 4.887, 4.887, 1e-6)
    cells = [
        make_cell(tmp_path, "both", 60, x, client=client, record=(x, x, x, 1e-5))
        for x in (1.0, 2.0)
    ]
    points = frontier.read(with_cells(item, cells), tmp_path)
    assert points["unit"].tolist() == ["record", "record"]
    assert points["epsilon_proven_high"].tolist() == [1.0, 2.0]


def points_of(line):
    return [list(np.asarray(line.get_xdata())), list(np.asarray(line.get_ydata()))]


def test_frontier_marks_arrows_and_curves_stand_at_the_accounts_epsilons(
    item, tmp_path
):
    """An arrow leads from the claim to what is proven; without a finite ε, beyond every
    finite one. A claim that is proven has no arrow.
    """
    figure, _ = figures.make(item, tmp_path, "not read")
    clients, records = figure.axes
    assert [[1.49, 3.9], [70, 80]] in [points_of(line) for line in clients.lines]
    notes = [text for text in clients.texts if isinstance(text, Annotation)]
    arrows = {note.xyann: note.xy for note in notes if note.arrow_patch is not None}
    assert arrows[1.5, 72.0] == (4.887, 72.0)
    assert arrows[2.0, 75.0][0] > 4.887
    assert not records.texts


def test_frontier_cells_have_the_proven_budget_of_their_place(plan):
    """The noise is calibrated to it."""
    cells = [
        cell
        for cell in plan.items["dp-fedmeta", "frontier"].cells
        if cell.x is not None and cell.runs[0].participation.kind == "one-pass"
    ]
    independent_and_correlated = [0.5, 1.5, 8] * 2
    assert [cell.x for cell in cells] == independent_and_correlated
    for cell in cells:
        run = cell.runs[0]
        budget = run.budget.epsilon, run.budget.delta, run.budget.profile
        assert budget == (cell.x, 1e-6, "proven")
        assert run.noise.multiplier is None
