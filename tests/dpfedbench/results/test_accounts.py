"""Figures of accounts, of validation and of two swept keys: what they draw, from the
default configuration.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfedbench.papers import METHODS
from dpfedbench.results import figures, page
from dpfedbench.results.curves import account_points
from dpfedbench.results.items import Item
from dpsum.accounting.calibration import epsilon_after
from dpsum.accounting.gaussian import gaussian_delta

Describe = Callable[..., Item]


def lines_of(description: Item) -> dict[str, Any]:
    points = account_points(description).astype({"x": float, "value": float})
    return dict(list(points.groupby("series")))


def test_account_points_over_tasks_are_the_accountants_deltas(
    described: Describe,
) -> None:
    curves = lines_of(described("figure12", "dp-maml"))
    assert curves["claimed"].x.tolist() == [
        380800,
        400000,
        440000,
        480000,
        520000,
        560000,
    ]
    # Falls with N, as in print, and crosses 1e-6 within the range: at N = 400,000
    # epsilon 1.5 is not quite kept.
    assert (np.diff(curves["claimed"].value) < 0).all()
    assert curves["claimed"].value.iloc[1] == pytest.approx(1.18e-6, rel=0.02)
    # Known lots: one Gaussian, for any N; raw norms: nothing; secret rounds: far below
    # the claim.
    assert curves["quantile"].value.to_numpy() == pytest.approx(
        gaussian_delta(1.0, 1.5), rel=2e-3
    )
    assert (curves["published"].value == 1).all()
    assert (curves["secret"].value < 1e-9).all()


def test_account_points_over_rounds_are_the_least_delta_that_keeps_epsilon(
    described: Describe,
) -> None:
    description = described("figure7b", "dp-maml")
    curves = lines_of(description)
    sampler = description.cells[0]["mechanism"]["sampler"]
    assert {cell["x"] for cell in description.cells} == {None}
    for series, z, epsilon in (("z1", 1.0, 1.5), ("z2", 2.0, 0.34), ("z3", 3.0, 0.23)):
        line = curves[series]
        assert (line.x.iloc[0], line.x.iloc[-1]) == (1, 250) and (
            np.diff(line.value) > 0
        ).all()
        last = float(line.value.iloc[-1])
        assert 1e-6 < last < 2e-6  # "the final delta values are around 1e-6"
        assert (
            epsilon_after(
                "claimed", sampler, z, 250, last, claims=METHODS["dp-maml"].claims
            )
            <= epsilon
        )
        assert (
            epsilon_after(
                "claimed",
                sampler,
                z,
                250,
                last / 1.01,
                claims=METHODS["dp-maml"].claims,
            )
            > epsilon
        )


def test_figure_of_accounts_reads_no_run(
    described: Describe, published: Path, tmp_path: Path
) -> None:
    drawing, drawn = figures.make(
        described("figure12", "dp-maml"), tmp_path / "nowhere", published
    )
    assert (
        len(drawn) == 24
        and set(drawn["curve"]) == {"delta"}
        and drawn["low"].isna().all()
    )
    drawing.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_page_shows_a_figure_of_accounts(
    described: Describe, site: Any, published: Path
) -> None:
    description = described("figure12", "dp-maml")
    figures_folder = site.folder / "figures" / "dp-maml"
    figures_folder.mkdir(parents=True)
    drawing, _ = figures.make(description, site.folder, published)
    drawing.savefig(figures_folder / "figure12.png")
    item = page.Product(
        path="figures/dp-maml/figure12.png", command="snakemake it", item=description
    )
    text = page.make([*site.items, item], **site.arguments)
    assert "DP-MAML, Figure 12" in text


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("figure7a", {"validation_accuracy"}),
        ("figure9", {"validation_loss"}),
        ("figure4", {"norm_q50", "released_norm", "threshold"}),
    ],
)
def test_history_points_of_public_tasks(
    described: Describe, results: Path, published: Path, name: str, columns: set[str]
) -> None:
    _, drawn = figures.make(described(name, "dp-maml"), results, published)
    assert set(drawn.loc[drawn["source"] == "measured", "curve"]) == columns


def test_sweep_of_two_keys_is_drawn_over_the_first(
    described: Describe, results: Path, published: Path
) -> None:
    _, drawn = figures.make(described("figure6b", "dp-maml"), results, published)
    assert drawn["x"].tolist() == [30, 100, 300]
