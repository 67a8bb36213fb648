"""Figures: what is drawn equals what was measured, and says what it is."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from dpfedbench.results import figures
from dpfedbench.results.summary import each_row, read_rows

from .conftest import change_accounts, changed_cells, runs_of


def texts(figure):
    """Return the texts of a figure's legend and marks, in one line."""
    (legend,) = figure.legends
    labels = [*legend.get_texts(), legend.get_title(), *figure.axes[0].texts]
    return " ".join(" ".join(label.get_text() for label in labels).split())


def measured_points(drawn):
    return drawn[drawn["source"] == "measured"]


def test_sweep_draws_the_cells_accuracies_and_intervals(described, results, published):
    item = described("figure4a")
    _, drawn = figures.make(item, results, published)
    rows = read_rows(results, item.cells)
    names = ["accuracy", "accuracy_low", "accuracy_high", "x"]
    np.testing.assert_array_equal(
        measured_points(drawn)[["value", "low", "high", "x"]].to_numpy(float),
        rows[names].to_numpy(float),
    )


def test_published_points_are_comparable_on_the_papers_data_alone(
    described, results, published
):
    figure, drawn = figures.make(described("figure4b"), results, published)
    shown = texts(figure)
    assert "noise seed is public" in shown
    assert "published: 93.9 (z=1), not comparable" in shown
    assert "published: 73 (approximate, at large z), not comparable" in shown
    points = drawn[drawn["source"] != "measured"]
    assert set(points["dataset"]) == {"omniglot"}
    assert sorted(points["value"]) == [73.0, 93.9]
    item = changed_cells(described("figure4a"), mismatch="")
    shown = texts(figures.make(item, results, published)[0])
    assert "published: 93.9 (k=90)" in shown
    assert "not comparable" not in shown


def over(item, epsilon):
    """Return a sweep over an epsilon in place of its key."""
    x = {**item.spec["x"], "show": epsilon, "scale": "log"}
    return dataclasses.replace(item, spec={**item.spec, "x": x})


@pytest.mark.parametrize(
    ("epsilon", "at_one"), [("epsilon_claimed", 1.5), ("epsilon_proven", 4.887)]
)
def test_sweep_over_an_epsilon(described, results, published, epsilon, at_one):
    item = described("figure4b")
    figure, drawn = figures.make(over(item, epsilon), results, published)
    line = measured_points(drawn).dropna(subset="x")
    expected = sorted(
        (at_one / row.x, row.accuracy)
        for row in each_row(read_rows(results, item.cells))
        if row.x > 0
    )
    assert line[["x", "value"]].to_numpy() == pytest.approx(np.array(expected))
    xs = figure.axes[0].lines[0].get_xdata().tolist()
    assert xs == pytest.approx([x for x, _ in expected])
    assert "ε at δ = 1e-06." in texts(figure)


def test_sweep_over_an_epsilon_draws_no_point_at_infinity(
    described, results_to_change, published
):
    """It is in the CSV and in the text, and in no place of the axis."""
    item = described("figure4b")
    infinite = {"epsilon_high": "inf"}
    change_accounts(results_to_change, runs_of(item.cells, 0), proven=infinite)
    item = over(item, "epsilon_proven")
    figure, drawn = figures.make(item, results_to_change, published)
    assert np.isinf(drawn["x"]).sum() == 1
    assert np.isfinite(figure.axes[0].lines[0].get_xdata()).all()
    assert "3 / ∞" in texts(figure)


@pytest.mark.parametrize("name", ["figure2b", "figure4a"])
def test_figure_numbers_have_their_epsilons(described, results, published, name):
    item = described(name)
    _, drawn = figures.make(item, results, published)
    series = {cell["series"] for cell in item.cells if cell["method"] == "dp-agr"}
    is_private = drawn["series"].isin(series)
    names = ["epsilon_claimed", "epsilon_proven", "delta", "unit"]
    private = drawn.loc[is_private, names].drop_duplicates()
    assert private.to_numpy().tolist() == [[1.5, 4.887, 1e-6, "client"]]
    rest = drawn[~is_private]
    assert len(rest)
    assert rest[names[:3]].isna().all().all()


def test_history_draws_means_over_seeds_until_the_first_stopped(
    described, results_to_change, published
):
    item = described("figure2b")
    _, drawn = figures.make(item, results_to_change, published)
    runs = [cell["run"] for cell in item.cells if cell["series"] == "dp-agr"]
    paths = [results_to_change / "runs" / run / "history.csv" for run in runs]
    histories = [pd.read_csv(path) for path in paths]
    norms = [history["released_norm"] / history["clients"] for history in histories]
    releases = drawn[drawn["curve"] == "released_norm"]
    assert releases["value"].to_numpy() == pytest.approx(np.mean(norms, axis=0))
    assert releases["value"].between(releases["low"], releases["high"]).all()
    maml = drawn[drawn["curve"] == "norm_q50"]
    assert (maml["high"] / maml["value"]).to_numpy() == pytest.approx(1.7)
    histories[0].head(7).to_csv(paths[0], index=False)
    _, drawn = figures.make(item, results_to_change, published)
    assert (drawn["curve"] == "threshold").sum() == 7
