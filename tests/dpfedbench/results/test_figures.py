"""Figures: what is drawn equals what was measured or accounted for, and says what it
is.
"""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from dpfedbench.papers import METHODS
from dpfedbench.results import figures
from dpfedbench.results.curves import account_points, sweep_points
from dpfedbench.results.summary import read_rows
from dploss.gaussian import gaussian_delta
from dpsum.accounting.calibration import epsilon_after

from .conftest import change_accounts, changed_cells, runs_of


def texts(figure):
    """Return the texts of a figure's legend, in one line."""
    (legend,) = figure.legends
    labels = [*legend.get_texts(), legend.get_title()]
    return " ".join(" ".join(label.get_text() for label in labels).split())


def measured_points(drawn):
    return drawn[drawn["source"] == "measured"]


def test_sweep_draws_the_cells_accuracies_and_intervals(described, results, published):
    item = described("figure4a")
    _, drawn = figures.make(item, results, published)
    rows = read_rows(results, item.cells)
    points = measured_points(drawn)[["value", "low", "high", "x"]]
    expected = rows[["accuracy", "accuracy_low", "accuracy_high", "x"]]
    np.testing.assert_array_equal(points.astype(float), expected.astype(float))


def test_interval_of_a_sweep_ends_at_0_and_100_percent(described, results):
    item = described("figure4a")
    rows = read_rows(results, item.cells)
    points = sweep_points(item, rows.assign(accuracy_low=-3.8, accuracy_high=104.0))
    assert len(points) == len(rows)
    assert set(points["low"]) == {0.0}
    assert set(points["high"]) == {100.0}


def test_published_points_are_comparable_on_the_papers_data_alone(
    described, results, published
):
    figure, drawn = figures.make(described("figure4b"), results, published)
    shown = texts(figure)
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
    x = item.spec["x"] | {"show": epsilon, "scale": "log"}
    return dataclasses.replace(item, spec=item.spec | {"x": x})


@pytest.mark.parametrize(
    ("epsilon", "at_one"), [("epsilon_claimed", 1.5), ("epsilon_proven", 4.887)]
)
def test_sweep_over_an_epsilon(described, results, published, epsilon, at_one):
    item = described("figure4b")
    figure, drawn = figures.make(over(item, epsilon), results, published)
    points = measured_points(drawn).dropna(subset="x")[["x", "value"]]
    rows = read_rows(results, item.cells).sort_values("x", ascending=False)
    rows = rows[rows["x"] > 0]
    expected = np.column_stack([at_one / rows["x"], rows["accuracy"]])
    assert points.to_numpy() == pytest.approx(expected)
    assert figure.axes[0].lines[0].get_xydata() == pytest.approx(expected)
    assert "ε at δ = 1e-06." in texts(figure)


def test_sweep_over_an_epsilon_draws_no_point_at_infinity(
    described, results_to_change, published
):
    """It is in the CSV and in the text, and in no place of the axis."""
    item = described("figure4b")
    infinite = {"epsilon_high": "inf"}
    change_accounts(results_to_change, runs_of(item.cells, 0), proven=infinite)
    sweep = over(item, "epsilon_proven")
    figure, drawn = figures.make(sweep, results_to_change, published)
    assert np.isinf(drawn["x"]).sum() == 1
    assert np.isfinite(figure.axes[0].lines[0].get_xdata()).all()
    assert "3 / ∞" in texts(figure)


@pytest.mark.parametrize("name", ["figure2b", "figure4a"])
def test_figure_numbers_have_their_epsilons(described, results, published, name):
    item = described(name)
    _, drawn = figures.make(item, results, published)
    series = {cell["series"] for cell in item.cells if cell["method"] == "dp-agr"}
    is_private = drawn["series"].isin(series)
    names = ["epsilon_claimed", "epsilon_proven", "delta"]
    assert (drawn.loc[is_private, names] == [1.5, 4.887, 1e-6]).all().all()
    assert set(drawn.loc[is_private, "unit"]) == {"client"}
    assert set(is_private) == {True, False}
    assert drawn.loc[~is_private, names].isna().all().all()


def test_history_draws_means_over_seeds_until_the_first_stopped(
    described, results_to_change, published
):
    item = described("figure2b")
    _, drawn = figures.make(item, results_to_change, published)
    runs = [cell["run"] for cell in item.cells if cell["series"] == "dp-agr"]
    paths = [results_to_change / "runs" / run / "history.csv" for run in runs]
    histories = list(map(pd.read_csv, paths))
    norms = [history["released_norm"] / history["clients"] for history in histories]
    releases = drawn[drawn["curve"] == "released_norm"]
    assert releases["value"].to_numpy() == pytest.approx(np.mean(norms, axis=0))
    assert releases["value"].between(releases["low"], releases["high"]).all()
    maml = drawn[drawn["curve"] == "norm_q50"]
    assert (maml["high"] / maml["value"]).to_numpy() == pytest.approx(1.7)
    histories[1].head(7).to_csv(paths[1], index=False)
    _, drawn = figures.make(item, results_to_change, published)
    assert (drawn["curve"] == "threshold").sum() == 7


# Figures of accounts, which read no run


def curves_of(item):
    points = account_points(item).astype({"x": float, "value": float})
    return dict(list(points.groupby("series")))


def test_account_points_over_tasks_are_the_accountants_deltas(
    described, published, tmp_path
):
    """The claim falls with N, as in print, and crosses 1e-6 within the range: at
    N = 400,000 epsilon 1.5 is not quite kept.

    Known lots: one Gaussian, for any N; raw norms: nothing; secret rounds: far below
    the claim.
    """
    item = described("figure12", "dp-maml")
    curves = curves_of(item)
    claimed = curves["claimed"]
    assert claimed.x.tolist() == [380800, 400000, 440000, 480000, 520000, 560000]
    assert (np.diff(claimed.value) < 0).all()
    assert claimed.value.iloc[1] == pytest.approx(1.18e-6, rel=0.02)
    known_lots = curves["quantile"].value.to_numpy()
    assert known_lots == pytest.approx(gaussian_delta(1.0, 1.5), rel=2e-3)
    assert (curves["published"].value == 1).all()
    assert (curves["secret"].value < 1e-9).all()
    _, drawn = figures.make(item, tmp_path / "nowhere", published)
    assert len(drawn) == 24
    assert set(drawn["curve"]) == {"delta"}


@pytest.mark.parametrize(
    ("series", "z", "epsilon"), [("z1", 1.0, 1.5), ("z2", 2.0, 0.34), ("z3", 3.0, 0.23)]
)
def test_account_points_over_rounds_are_the_least_delta_that_keeps_epsilon(
    described, series, z, epsilon
):
    """The paper: "the final delta values are around 1e-6"."""
    item = described("figure7b", "dp-maml")
    sampler = item.cells[0]["mechanism"]["sampler"]
    curve = curves_of(item)[series]
    assert (curve.x.iloc[0], curve.x.iloc[-1]) == (1, 250)
    assert (np.diff(curve.value) > 0).all()
    last = float(curve.value.iloc[-1])
    assert 1e-6 < last < 2e-6
    claims = METHODS["dp-maml"].claims
    for delta, is_kept in ((last, True), (last / 1.01, False)):
        spent = epsilon_after("claimed", sampler, z, 250, delta, claims=claims)
        assert (spent <= epsilon) == is_kept
