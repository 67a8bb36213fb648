"""The frontier: what a point is follows from its account; marks, arrows and curves
stand where the accounts say.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Annotation
from scipy.stats import norm

from dpfedbench.experiments.plan import Plan
from dpfedbench.results import figures, formats, frontier
from dpfedbench.results.items import Item
from dpfedbench.results.table_columns import csv_columns
from dpsum.accounting.calibration import calibrate


def cell(
    results: Path,
    series: str,
    accuracy: float,
    x: float | None = None,
    **units: tuple[Any, ...],
) -> dict[str, Any]:
    """A cell of one finished run of two tasks; for each unit (claimed, low and high end
    of what is proven, δ).
    """
    run = f"dp-agr/glyphs/5way-1shot/{series}-{x}/seed0"
    folder = results / "runs" / run
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("method: dp-agr\n")
    (folder / "metrics.json").write_text(
        json.dumps(
            {
                "accuracy": accuracy,
                "ci_low": accuracy - 12.706,
                "ci_high": accuracy + 12.706,
                "per_task": [accuracy - 1, accuracy + 1],
            }
        )
    )
    (folder / "training.json").write_text(json.dumps({"notices": []}))
    accounts = [
        {
            "delta": delta,
            "unit": unit,
            "reasons": {},
            "profiles": {
                name: {
                    "epsilon_low": ends[0],
                    "epsilon_high": ends[1],
                    "delta": delta,
                    "unit": unit,
                    "adjacency": "zero-out",
                    "observer": "everyone",
                    "status": "proved",
                    "explanation": "",
                }
                for name, ends in (
                    ("claimed", (claimed, claimed)),
                    ("proven", (low, high)),
                )
                if ends[0] is not None
            },
        }
        for unit, (claimed, low, high, delta) in units.items()
    ]
    first = (
        accounts[0]
        if accounts
        else {
            "delta": 1e-6,
            "unit": None,
            "profiles": {},
            "reasons": {"proven": "nothing"},
        }
    )
    (folder / "privacy.json").write_text(json.dumps(first | {"also": accounts[1:]}))
    return {
        "paper": "dp-fedmeta",
        "item": "frontier",
        "kind": "frontier",
        "series": series,
        "label": f"the {series}",
        "variant": "",
        "repairs": "",
        "x": x,
        "seed": 0,
        "run": run,
        "audited_run": "",
        "method": "dp-agr",
        "title": "DP-AGR",
        "private": bool(units),
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


def with_cells(item: Item, cells: Any) -> Item:
    """Return the item with other cells, which are numbered."""
    numbered = [
        {**cell_record, "cell": number} for number, cell_record in enumerate(cells)
    ]
    return dataclasses.replace(item, cells=numbered)


@pytest.fixture
def item(tmp_path: Path) -> Item:
    """A curve whose account is below what was asked, a claim that holds nowhere, one
    that holds higher, and a level.
    """
    cells = (
        cell(tmp_path, "repair", 80, 4.0, client=(3.0, 3.8, 3.9, 1e-6)),
        cell(tmp_path, "repair", 70, 1.5, client=(1.2, 1.4, 1.49, 1e-6)),
        cell(tmp_path, "raw", 75, client=(2.0, "inf", "inf", 1e-6)),
        cell(
            tmp_path,
            "published",
            72,
            client=(1.5, 4.887, 4.887, 1e-6),
            record=(2.5, 2.5, 2.5, 1e-5),
        ),
        cell(tmp_path, "plain", 90),
    )
    spec = {
        "title": "a frontier",
        "x": {"label": "proven ε"},
        "y": {"label": "accuracy, %"},
    }
    item = Item(
        paper="dp-fedmeta", name="frontier", kind="frontier", spec=spec, cells=()
    )
    return with_cells(item, cells)


def test_frontier_roles_follow_from_the_accounts(item: Item, tmp_path: Path) -> None:
    table = csv_columns(frontier.read(item, tmp_path), "frontier")
    numbers = table[
        [
            "series",
            "role",
            "unit",
            "epsilon_asked",
            "epsilon_claimed",
            "epsilon_proven_low",
            "epsilon_proven",
        ]
    ]
    nothing = -1.0  # in place of NaN, which equals nothing
    assert [tuple(row) for row in numbers.fillna(nothing).itertuples(index=False)] == [
        ("repair", "curve", "client", 4.0, 3.0, 3.8, 3.9),
        ("repair", "curve", "client", 1.5, 1.2, 1.4, 1.49),
        ("raw", "claim", "client", nothing, 2.0, math.inf, math.inf),
        ("published", "claim", "client", nothing, 1.5, 4.887, 4.887),
        ("published", "claim", "record", nothing, 2.5, 2.5, 2.5),
        ("plain", "level", "", nothing, nothing, nothing, nothing),
    ]
    assert list(table["value"]) == [80, 70, 75, 72, 72, 90]
    assert table["low"][0] == pytest.approx(80 - 12.706, abs=1e-3)


def test_frontier_curve_has_no_point_without_a_finite_epsilon(
    item: Item, tmp_path: Path
) -> None:
    worse = cell(tmp_path, "repair", 85, 8.0, client=(8.0, 3.0, "inf", 1e-6))
    points = frontier.read(with_cells(item, (*item.cells, worse)), tmp_path)
    repairs = points[points["series"] == "repair"]
    assert repairs["role"].tolist() == ["curve", "curve", "claim"]


def test_frontier_curve_is_of_the_unit_that_the_sweep_moves(
    item: Item, tmp_path: Path
) -> None:
    of_two_units = tuple(
        cell(
            tmp_path,
            "both",
            60,
            epsilon,
            client=(1.5, 4.887, 4.887, 1e-6),
            record=(epsilon, epsilon, epsilon, 1e-5),
        )
        for epsilon in (1.0, 2.0)
    )
    points = frontier.read(with_cells(item, of_two_units), tmp_path)
    assert points["unit"].tolist() == ["record", "record"]
    assert points["epsilon_proven_high"].tolist() == [1.0, 2.0]


def test_frontier_marks_arrows_and_curves_stand_at_the_accounts_epsilons(
    item: Item, tmp_path: Path
) -> None:
    figure, _ = figures.make(item, tmp_path, "not read")
    clients, records = figure.axes
    assert (
        "of a client" in clients.get_xlabel() and "of a record" in records.get_xlabel()
    )
    drawn = [
        (list(np.asarray(line.get_xdata())), list(np.asarray(line.get_ydata())))
        for line in clients.lines
    ]
    assert ([1.49, 3.9], [70, 80]) in drawn
    marks = {
        (float(bars[0].get_xdata()[0]), float(bars[0].get_ydata()[0])): bars[0]
        for bars in clients.containers
    }
    assert set(marks) == {(2.0, 75.0), (1.5, 72.0)}
    assert {mark.get_markerfacecolor() for mark in marks.values()} == {"white"}
    # From the claim to what is proven; without a finite ε beyond every finite one, with a
    # sign that says so.
    texts = [text for text in clients.texts if isinstance(text, Annotation)]
    arrows = {text.xyann: text.xy for text in texts if text.arrow_patch is not None}
    assert arrows[1.5, 72.0] == (4.887, 72.0)
    edge = arrows[2.0, 75.0][0]
    assert edge > 4.887
    signs = [text for text in clients.texts if text.get_text() == " ∞"]
    assert [text.get_position() for text in signs] == [(edge, 75.0)]
    # A claim that holds has no arrow.
    assert len(records.containers) == 1 and not records.texts
    assert all(
        any(list(np.asarray(line.get_ydata())) == [90, 90] for line in axes.lines)
        for axes in figure.axes
    )


@pytest.mark.parametrize(("more", "columns"), [(0, 4), (28, 2), (80, 1)])
def test_legend_has_as_many_columns_as_fit(
    item: Item, tmp_path: Path, more: int, columns: int
) -> None:
    cells = [{**cell, "label": cell["label"] + "m" * more} for cell in item.cells]
    figure, _ = figures.make(with_cells(item, cells), tmp_path, "not read")
    (legend,) = figure.legends
    assert legend._ncols == columns
    if columns > 1:
        assert legend.get_window_extent().width <= figure.bbox.width


def test_frontier_listing_reads_its_own_csv(item: Item, tmp_path: Path) -> None:
    import io

    import pandas as pd

    text = formats.csv_text(csv_columns(frontier.read(item, tmp_path), "frontier"))
    lines = frontier.listing(pd.read_csv(io.StringIO(text))).markdown("it").splitlines()
    (raw,) = [line for line in lines if line.startswith("| the raw |")]
    assert "| 2 | ∞ | client |" in raw
    (repair, _) = [line for line in lines if line.startswith("| the repair |")]
    assert "| 3 | 3.8 to 3.9 |" in repair
    (plain,) = [line for line in lines if line.startswith("| the plain |")]
    assert "| level |" in plain and plain.count("–") == 4  # neither ε, nor unit, nor δ


def test_frontier_noise_is_the_least_that_keeps_epsilon(plan: Plan) -> None:
    """One pass with known blocks is one Gaussian release a client, whose exact curve is
    Balle and Wang's (2018).
    """
    cells = [
        cell
        for cell in plan.items["dp-fedmeta", "frontier"].cells
        if cell.x is not None and cell.runs[0].participation.kind == "one-pass"
    ]
    assert [cell.x for cell in cells] == [
        0.5,
        1.5,
        8,
    ] * 2  # independent and correlated noise
    for cell in cells:
        run: Any = cell.runs[0]
        budget = run.budget
        rounds = run.participation
        epsilon = cell.x or 0.0
        assert budget.epsilon == epsilon
        assert budget.profile == "proven"
        assert run.noise.multiplier is None
        sampler = {
            "kind": "one-pass",
            "rate": rounds.cohort / run.clients.count,
            "rounds": rounds.rounds,
        }
        calibrated = calibrate(
            "proven",
            sampler,
            budget.epsilon,
            budget.delta,
            mechanism=run.sums()[-1].noise.mechanism,
        )
        for z, keeps in (
            (calibrated, True),
            (0.998 * calibrated, False),
        ):  # rounded up to four digits
            near, far = (norm.logcdf(sign / (2 * z) - epsilon * z) for sign in (1, -1))
            delta = math.exp(near) - math.exp(epsilon + far)
            assert (delta <= 1e-6) == keeps, (cell.series, epsilon)
