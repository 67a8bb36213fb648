"""Figures: what is drawn equals what was measured, and says what it is."""

import copy
import dataclasses
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.results import figure_style, figures, formats
from dpfedbench.results.items import Item
from dpfedbench.results.summary import each_row, read_rows

from .conftest import changed_cells

Describe = Callable[[str], Item]


def texts(figure: Any) -> str:
    axes = figure.axes[0]
    (legend_box,) = figure.legends
    legend = [
        text.get_text() for text in (*legend_box.get_texts(), legend_box.get_title())
    ]
    marks = [text.get_text() for text in axes.texts]
    return "\n".join([*legend, *marks, axes.get_xlabel(), axes.get_ylabel()])


@pytest.mark.parametrize("name", ["figure2b", "figure4a", "figure4b"])
def test_figure_has_labels_and_its_numbers(
    described: Describe, results: Path, published: Path, tmp_path: Path, name: str
) -> None:
    description = described(name)
    figure, drawn = figures.make(description, results, published)
    figure.savefig(tmp_path / "figure.png")
    image = matplotlib.image.imread(tmp_path / "figure.png")
    assert (
        image.shape[1] == round(figures.WIDTH * figure_style.DPI)
        and np.ptp(image) > 0.5
    )
    spec = description.spec
    shown_texts = texts(figure)
    for text in (
        spec["x"]["label"],
        spec["y"]["label"],
        "Measured on glyphs 5-way 1-shot",
        "noise seed is public",
    ):
        assert text in shown_texts
    assert {"x", "value", "low", "high", "source"} <= set(drawn.columns)
    measured = drawn[drawn["source"] == "measured"]
    assert len(measured) and measured["value"].notna().all()
    assert len(pd.read_csv(io.StringIO(formats.csv_text(drawn)))) == len(drawn)


def test_sweep_draws_the_cells_accuracies(
    described: Describe, results: Path, published: Path
) -> None:
    description = described("figure4a")
    _, drawn = figures.make(description, results, published)
    measured = drawn[drawn["source"] == "measured"]
    rows = read_rows(results, description.cells)
    names = ["value", "low", "high", "x"]
    expected = rows[["accuracy", "accuracy_low", "accuracy_high", "x"]]
    np.testing.assert_array_equal(
        measured[names].to_numpy(float), expected.to_numpy(float)
    )


def test_published_points_are_marked_and_not_comparable_on_a_stand_in(
    described: Describe, results: Path, published: Path
) -> None:
    figure, drawn = figures.make(described("figure4b"), results, published)
    shown_texts = texts(figure)
    assert "published: 93.9 (z=1), not comparable" in shown_texts
    assert "published: 73 (approximate, at large z), not comparable" in shown_texts
    assert "Not comparable: published on omniglot, measured on glyphs." in shown_texts
    points = drawn[drawn["source"] != "measured"]
    assert set(points["dataset"]) == {"omniglot"} and sorted(points["value"]) == [
        73.0,
        93.9,
    ]


def test_published_points_are_comparable_on_the_papers_data(
    described: Describe, results: Path, published: Path
) -> None:
    description = described("figure4a")
    description = changed_cells(description, mismatch="")
    figure, _ = figures.make(description, results, published)
    assert "published: 93.9 (k=90)" in texts(figure) and "not comparable" not in texts(
        figure
    )


def test_sweep_names_both_epsilons_where_it_moves_them(
    described: Describe, results: Path, published: Path
) -> None:
    with_noise, _ = figures.make(described("figure4b"), results, published)
    notes = " ".join(texts(with_noise).split())
    assert "claimed ε / proven ε = 3 / 9.77, 1.5 / 4.89, 0.75 / 2.44" in notes
    assert "δ = 1e-06" in texts(with_noise)
    ticks = [label.get_text() for label in with_noise.axes[0].get_xticklabels()]
    assert "1" in ticks and "4" in ticks


def over(item: Item, epsilon: str) -> Item:
    return dataclasses.replace(
        item,
        spec={**item.spec, "x": {**item.spec["x"], "show": epsilon, "scale": "log"}},
    )


def test_sweep_over_an_epsilon(
    described: Describe, results: Path, published: Path, tmp_path: Path
) -> None:
    """The accounts of the runs made by hand say 1.5 / z as claimed and 4.887 / z as it
    holds.
    """
    item = described("figure4b")
    for epsilon, at_one in (("epsilon_claimed", 1.5), ("epsilon_proven", 4.887)):
        figure, drawn = figures.make(over(item, epsilon), results, published)
        line = drawn[(drawn["source"] == "measured") & drawn["x"].notna()]
        expected = sorted(
            (at_one / row.x, row.accuracy)
            for row in each_row(read_rows(results, item.cells))
            if row.x > 0
        )
        assert line[["x", "value"]].to_numpy() == pytest.approx(np.array(expected))
        assert figure.axes[0].lines[0].get_xdata().tolist() == pytest.approx(
            [x for x, _ in expected]
        )
        assert "ε at δ = 1e-06." in texts(figure) and not figure.axes[0].texts
    # A point of which no finite ε is proven is in the CSV, and in no place of the axis.
    shutil.copytree(results / "runs", tmp_path / "runs")
    for cell in item.cells:
        if cell["cell"] != 0:
            continue
        path = tmp_path / "runs" / cell["run"] / "privacy.json"
        account = json.loads(path.read_text(encoding="utf-8"))
        account["profiles"]["proven"]["epsilon_high"] = "inf"
        path.write_text(json.dumps(account), encoding="utf-8")
    figure, drawn = figures.make(over(item, "epsilon_proven"), tmp_path, published)
    assert (
        np.isinf(drawn["x"]).sum() == 1
        and np.isfinite(figure.axes[0].lines[0].get_xdata()).all()
    )
    assert "3 / ∞" in " ".join(texts(figure).split())


def test_sweep_over_an_epsilon_draws_public_series_level(
    described: Describe, results: Path, published: Path
) -> None:
    item = described("table2")
    cells = [
        {**cell, "label": cell["series"]}
        for cell in item.cells
        if cell["series"] in ("maml", "dp-agr") and cell["task"] == "5-way 1-shot"
    ]
    spec = {
        "title": "t",
        "x": {"label": "proven ε", "show": "epsilon_proven", "scale": "log"},
        "y": {"label": "%"},
    }
    figure, drawn = figures.make(
        dataclasses.replace(item, kind="sweep", cells=cells, spec=spec),
        results,
        published,
    )
    placed = drawn[drawn["source"] == "measured"].set_index("series")["x"]
    assert np.isnan(placed["maml"]) and placed["dp-agr"] == 4.887
    assert "maml: claims no privacy." in " ".join(texts(figure).split())


@pytest.mark.parametrize("name", ["figure2b", "figure4a"])
def test_figure_numbers_have_their_epsilons(
    described: Describe, results: Path, published: Path, name: str
) -> None:
    _, drawn = figures.make(described(name), results, published)
    private = drawn[
        drawn["series"].isin(
            [
                cell["series"]
                for cell in described(name).cells
                if cell["method"] == "dp-agr"
            ]
        )
    ]
    epsilons = (
        private[["epsilon_claimed", "epsilon_proven", "delta", "unit"]]
        .drop_duplicates()
        .to_numpy()
        .tolist()
    )
    assert epsilons == [[1.5, 4.887, 1e-6, "client"]]
    rest = drawn.drop(private.index)
    assert (
        len(rest)
        and rest[["epsilon_claimed", "epsilon_proven", "delta"]].isna().all().all()
        and not rest["unit"].fillna("").any()
    )


def test_history_draws_means_over_seeds_and_divides_by_a_column(
    described: Describe, results: Path, published: Path
) -> None:
    description = described("figure2b")
    _, drawn = figures.make(description, results, published)
    tables = [
        pd.read_csv(results / "runs" / cell["run"] / "history.csv")
        for cell in description.cells
        if cell["series"] == "dp-agr"
    ]
    expected = np.mean(
        [table["released_norm"] / table["clients"] for table in tables], axis=0
    )
    releases = drawn[drawn["curve"] == "released_norm"]
    assert releases["value"].to_numpy() == pytest.approx(expected)
    assert (releases["low"] <= releases["value"]).all() and (
        releases["value"] <= releases["high"]
    ).all()
    maml = drawn[drawn["curve"] == "norm_q50"]
    assert (maml["high"] / maml["value"]).to_numpy() == pytest.approx(1.7)


def test_history_ends_where_the_first_seed_stopped(
    described: Describe, results: Path, published: Path, tmp_path: Path
) -> None:
    description = described("figure2b")
    shutil.copytree(results / "runs", tmp_path / "runs")
    (run, *_) = [cell["run"] for cell in description.cells if cell["cell"] == 1]
    path = tmp_path / "runs" / run / "history.csv"
    pd.read_csv(path).head(7).to_csv(path, index=False)
    _, drawn = figures.make(description, tmp_path, published)
    assert (drawn["curve"] == "threshold").sum() == 7


def test_history_names_a_missing_column(
    described: Describe, results: Path, published: Path, tmp_path: Path
) -> None:
    description = described("figure2b")
    shutil.copytree(results / "runs", tmp_path / "runs")
    (run, *_) = [cell["run"] for cell in description.cells if cell["cell"] == 1]
    path = tmp_path / "runs" / run / "history.csv"
    table = pd.read_csv(path)
    table["threshold"] = np.nan
    table.to_csv(path, index=False)
    named = r"has no threshold to draw: name one of round"
    with pytest.raises(BenchError, match=named):
        figures.make(description, tmp_path, published)
    table.drop(columns="round").to_csv(path, index=False)
    with pytest.raises(BenchError):
        figures.make(description, tmp_path, published)
    path.write_text("", encoding="utf-8")
    with pytest.raises(BenchError, match="cannot be read"):
        figures.make(description, tmp_path, published)


@pytest.mark.parametrize("missing", ["column", "axis"])
def test_history_without_an_axis_or_divisor_is_one_line(
    described: Describe,
    results: Path,
    published: Path,
    missing: str,
) -> None:
    """A misspelt column of an item, in its axis and in `per` of a curve."""
    item = described("figure2b")
    spec = copy.deepcopy(dict(item.spec))
    if missing == "axis":
        spec["x"]["column"] = "rounds"
    else:
        curves = next(
            series["curves"] for series in spec["series"].values() if "curves" in series
        )
        next(iter(curves.values()))["per"] = "rounds"
    with pytest.raises(BenchError, match="has no rounds to draw: name one of round"):
        figures.make(dataclasses.replace(item, spec=spec), results, published)


@pytest.mark.parametrize(("last", "is_level"), [(2.07941, True), (1.5, False)])
def test_history_that_hardly_moves_is_drawn_level(
    described: Describe, last: float, is_level: bool
) -> None:
    """The entropy of a search that learns nothing: ln 8 to six digits, which an axis of
    its own range makes a slope.
    """
    item = described("figure2b")
    item = dataclasses.replace(item, spec={**item.spec, "y": {"label": "nats"}})
    points = pd.DataFrame({"x": [0.0, 1.0], "value": [2.07944, last]})
    points = points.assign(low=points["value"], high=points["value"], is_dashed=False)
    points = points.assign(series="s", curve="c", label="a")
    figure = figures.draw(item, points, pd.DataFrame(), "")
    low, high = figure.axes[0].get_ylim()
    assert (1.9 < low < 2.04 and high > 2.12) == is_level


def test_colours_are_okabe_and_itos() -> None:
    """The eight colours of Okabe and Ito (2008), as Wong prints them in Nature Methods
    8, 441 (2011).
    """
    wong = {
        (0, 0, 0),
        (230, 159, 0),
        (86, 180, 233),
        (0, 158, 115),
        (240, 228, 66),
        (0, 114, 178),
        (213, 94, 0),
    }
    wong |= {(204, 121, 167)}
    for colour in (*figure_style.COLOURS, figures.PUBLISHED):
        assert tuple(int(colour[start : start + 2], 16) for start in (1, 3, 5)) in wong


def test_notice_sentences_name_the_cells_of_a_notice_that_not_all_have() -> None:
    public = "simulated privacy: the noise seed is public"
    notices = [(public,), (public, "reads raw norms"), ()]
    assert formats.notice_sentences("abc", notices) == [
        "Simulated privacy: the noise seed is public.",
        "b: reads raw norms.",
    ]
