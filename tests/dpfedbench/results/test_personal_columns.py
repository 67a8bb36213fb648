"""Accuracies of the clients' own models in tables and figures."""

import dataclasses

import numpy as np
import pytest

from dpfedbench.results import figures, tables

from .conftest import change_json, runs_of

MEASURED = {
    "personal_accuracy": 50.0,
    "personal_worst_tenth": 20.0,
    "personal_spread": 12.0,
    "personal_clients": 5,
}


def measure(results, item):
    """Write accuracies of own models into the runs; seed s has s points more."""
    for cell in item.cells:
        seed = int(cell["run"].rpartition("seed")[2])
        values = {name: value + seed for name, value in MEASURED.items()}
        change_json(results / "runs" / cell["run"] / "training.json", **values)


def with_spec(item, **values):
    return dataclasses.replace(item, spec=item.spec | values)


def test_table_has_means_over_seeds_of_own_models(
    described, results_to_change, published
):
    item = with_spec(described("table2"), columns=["personal"])
    measure(results_to_change, item)
    table = tables.read(item, results_to_change, published)
    rows = tables.tidy(table)
    for number, row in rows.iterrows():
        runs = runs_of(item.cells, number)
        seeds = np.array([int(run.rpartition("seed")[2]) for run in runs])
        assert row["personal_accuracy"] == pytest.approx(50 + seeds.mean())
        assert row["personal_worst_tenth"] == pytest.approx(20 + seeds.mean())
        assert row["personal_spread"] == pytest.approx(12 + seeds.mean())
    shown = tables.listing(table)
    assert {"own models, %", "worst tenth, %", "spread, points"} <= set(shown.rows[0])
    assert any("no ε covers them" in note for note in shown.notes)


def test_table_without_the_option_has_no_such_column(described, results, published):
    table = tables.read(described("table2"), results, published)
    assert not [name for name in tables.tidy(table) if name.startswith("personal")]
    assert "own models, %" not in tables.listing(table).rows[0]


def test_sweep_draws_own_models_and_dashed_their_worst_tenth(
    described, results_to_change, published
):
    item = described("figure4a")
    item = with_spec(item, y=item.spec["y"] | {"show": "personal"})
    measure(results_to_change, item)
    figure, drawn = figures.make(item, results_to_change, published)
    points = drawn[drawn["source"] == "measured"].set_index("curve")
    by_curve = {"personal_accuracy": 50, "personal_worst_tenth": 20}
    seeds = {int(cell["run"].rpartition("seed")[2]) for cell in item.cells}
    for curve, value in by_curve.items():
        expected = value + np.mean(list(seeds))
        assert points.loc[curve, "value"].to_numpy() == pytest.approx(expected)
    solid, dashed = figure.axes[0].lines[:2]
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert solid.get_color() == dashed.get_color()
    assert dashed.get_label() == f"{solid.get_label()}, worst tenth"
