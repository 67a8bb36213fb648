"""The frontier: roles, marks, arrows and curves follow from the accounts."""

import math
from unittest import mock

import pandas as pd
import pytest
from matplotlib.text import Annotation

from dpfedbench.results import figures, frontier
from dpfedbench.results.formats import csv_text
from dpfedbench.results.items import Item
from dpfedbench.results.table_columns import csv_columns

NAN = math.nan
INF = math.inf
SPEC = {"title": "t", "x": {"label": "proven ε"}, "y": {"label": "accuracy, %"}}
ITEM = Item(paper="dp-fedmeta", name="frontier", kind="frontier", spec=SPEC, cells=())
COLUMNS = ["series", "accuracy", "x", "unit", "epsilon_claimed"]
COLUMNS += ["epsilon_proven_low", "epsilon_proven_high"]
POINTS = [
    ("repair", 80, 4.0, "client", 3.0, 3.8, 3.9),
    ("repair", 70, 1.5, "client", 1.2, 1.4, 1.49),
    ("raw", 75, NAN, "client", 2.0, INF, INF),
    ("published", 72, NAN, "client", 1.5, 4.887, 4.887),
    ("published", 72, NAN, "record", 2.5, 2.5, 2.5),
    ("plain", 90, NAN, "", NAN, NAN, NAN),
]
"""A curve whose account is below what was asked, a claim that holds nowhere, one whose
proven epsilon is higher, and a level.
"""


@pytest.fixture
def read(monkeypatch):
    """Return a function that reads a frontier of some rows, each of one unit."""

    def read(points):
        rows = pd.DataFrame(points, columns=COLUMNS)
        rows["accuracy_low"] = rows["accuracy"] - 12.5
        rows["accuracy_high"] = rows["accuracy"] + 12.5
        rows = rows.assign(label=rows["series"], delta=1e-6, seeds=1, notices="")
        rows = rows.assign(client_origin="", unit_label=rows["unit"])
        read_rows = mock.Mock(return_value=rows)
        monkeypatch.setattr(frontier, "read_rows", read_rows)
        table = frontier.read(ITEM, "not read")
        read_rows.assert_called_once_with("not read", (), by_unit=True)
        return table

    return read


def test_frontier_roles_follow_from_the_accounts(read):
    table = csv_columns(read(POINTS), "frontier")
    names = ["series", "role", "unit", "epsilon_asked", "epsilon_claimed"]
    names += ["epsilon_proven_low", "epsilon_proven"]
    nothing = -1.0  # in place of NaN, which equals nothing
    rows = table[names].fillna(nothing).itertuples(index=False)
    assert [tuple(row) for row in rows] == [
        ("repair", "curve", "client", 4.0, 3.0, 3.8, 3.9),
        ("repair", "curve", "client", 1.5, 1.2, 1.4, 1.49),
        ("raw", "claim", "client", nothing, 2.0, INF, INF),
        ("published", "claim", "client", nothing, 1.5, 4.887, 4.887),
        ("published", "claim", "record", nothing, 2.5, 2.5, 2.5),
        ("plain", "level", "", nothing, nothing, nothing, nothing),
    ]
    assert list(table["value"]) == [80, 70, 75, 72, 72, 90]
    assert table["low"][0] == 67.5


def test_frontier_labels_survive_their_csv_file(read, tmp_path):
    labels = ["None", "NA", "null", "nan", "007", "True"]
    points = csv_columns(read(POINTS).assign(label=labels), "frontier")
    path = tmp_path / "frontier.csv"
    path.write_text(csv_text(points), encoding="utf-8")
    table = frontier.read_points(path)
    assert table["label"].tolist() == labels
    assert csv_text(table) == path.read_text(encoding="utf-8")
    listed = frontier.listing(table).markdown("snakemake")
    assert all(f"| {label} |" in listed for label in labels)


def test_frontier_curve_has_no_point_without_a_finite_epsilon(read):
    points = read([*POINTS, ("repair", 85, 8.0, "client", 8.0, 3.0, INF)])
    repairs = points[points["series"] == "repair"]
    assert repairs["role"].tolist() == ["curve", "curve", "claim"]


def test_frontier_curve_is_of_the_unit_that_the_sweep_moves(read):
    accounts = [
        ("both", 60, 1.0, "client", 1.5, 4.887, 4.887),
        ("both", 60, 1.0, "record", 1.0, 1.0, 1.0),
        ("both", 60, 2.0, "client", 1.5, 4.887, 4.887),
        ("both", 60, 2.0, "record", 2.0, 2.0, 2.0),
    ]
    points = read(accounts)
    assert points["unit"].tolist() == ["record", "record"]
    assert points["epsilon_proven_high"].tolist() == [1.0, 2.0]


def test_frontier_marks_arrows_and_curves_stand_at_the_accounts_epsilons(
    read, monkeypatch
):
    """An arrow leads from the claim to what is proven; without a finite ε, beyond every
    finite one. A claim that is proven has no arrow. A bar is the interval. The marks at
    1.49 and 1.5 are a factor of 1.06 apart. The axis has 0.1 and 20.
    """
    read(POINTS)
    figure, _ = figures.make(ITEM, "not read", "not read")
    clients, records = figure.axes
    lines = [line.get_xydata().tolist() for line in clients.lines]
    beside = 1.06**0.5
    (curve,) = [line for line in lines if len(line) == 2 and line[1] == [3.9, 80]]
    assert curve[0] == pytest.approx([1.49 / beside, 70])
    low, high = clients.get_xlim()
    assert low <= 0.1
    assert high >= 20
    notes = [text for text in clients.texts if isinstance(text, Annotation)]
    arrows = {note.xyann: note.xy for note in notes if note.arrow_patch is not None}
    assert arrows[1.5 * beside, 72.0] == (4.887, 72.0)
    assert arrows[2.0, 75.0][0] > 20
    assert not records.texts
    bars = [
        segment.tolist()
        for container in clients.containers
        for segment in container.lines[2][0].get_segments()
    ]
    place = 1.5 * beside
    assert [[place, 72 - 12.5], [place, 72 + 12.5]] in bars


def test_frontier_cells_have_the_proven_budget_of_their_place(plan):
    """The noise is calibrated to it."""
    cells = [
        cell
        for cell in plan.items["dp-fedmeta", "frontier"].cells
        if cell.x is not None and cell.runs[0].participation.kind == "one-pass"
    ]
    assert [cell.x for cell in cells] == [0.5, 1.5, 8]
    for cell in cells:
        budget = cell.runs[0].budget
        assert (budget.epsilon, budget.delta) == (cell.x, 1e-6)
        assert (budget.profile, cell.runs[0].noise.multiplier) == ("proven", None)
