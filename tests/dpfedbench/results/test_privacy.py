"""The table of privacy: a row for each private configuration, no empty cell, infinite
epsilons with their reason.
"""

import dataclasses
import io
import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.experiments.plan import Plan
from dpfedbench.results import formats, privacy, privacy_figure
from dpfedbench.results.configurations import (
    configurations,
    read_configurations,
)
from dpfedbench.results.summary import each_row
from dpfedbench.results.table_columns import csv_columns
from dpsum.ledger import Ledger, Release

from .conftest import (
    Cells,
    is_repaired,
    name_of,
    private_configurations,
    runs_of,
    with_values,
)


def csv_text(rows: pd.DataFrame) -> str:
    return formats.csv_text(csv_columns(rows, "privacy"), "none")


def read(entries: list[Cells], results: Path, published: Path) -> pd.DataFrame:
    cells = [cell for entry in entries for cell in entry]
    return privacy.explain(read_configurations(cells, results), results, published)


def in_table(entry: Cells) -> bool:
    return any(cell["kind"] == "table" for cell in entry)


def in_figures_alone(entry: Cells) -> Cells:
    """Return the cells as if no table showed them."""
    return with_values(entry, kind="sweep")


LETTERS = ("glyphs", "5-way 1-shot")


@pytest.fixture(scope="module")
def entries(plan: Plan) -> list[Cells]:
    """The client-level configurations, whose runs the fixture has made."""
    return [
        entry
        for entry in private_configurations(plan)
        if entry[0]["paper"] == "dp-fedmeta" and entry[0]["method"] != "dp-transfer"
    ]


def test_configurations_have_one_row_and_all_seeds(plan: Plan) -> None:
    rows = configurations(plan.cell_records())
    rows = [row for row in rows if row["private"]]
    keys = {str(Path(run.folder).parent) for run in plan.runs.values() if run.private}
    assert {str(Path(row["run"]).parent) for row in rows} == keys
    assert len({row["cell"] for row in rows}) == len(keys)
    assert sorted(row["run"] for row in rows) == sorted(
        run.folder for run in plan.runs.values() if run.private
    )


def test_configurations_are_named_as_in_their_first_table(
    entries: list[Cells],
) -> None:
    cells = [cell for entry in entries for cell in entry]
    named: dict[str, list[dict[str, Any]]] = {}
    for row in configurations(cells):
        if (row["dataset"], row["task"]) == LETTERS:
            named.setdefault(row["variant"], []).append(row)
    published = named["dp-agr"]
    shown_in = published[0]["shown_in"]
    assert [item for _, item, kind, *_ in shown_in if kind == "table"] == [
        "table2",
        "table2-by-tensor",
        "repairs",
    ]
    assert [row["seed"] for row in published] == [0, 1, 2]
    assert {kind for _, _, kind, *_ in named["z=2"][0]["shown_in"]} <= {
        *("sweep", "history", "frontier")
    }
    repair = named["balls-and-bins, proven ε = 1.5"][0]["shown_in"][0]
    assert repair[-1] == "published"


def two_fold(entries: list[Cells]) -> int:
    """How many protect a client and its records, and so have two rows."""
    return sum(entry[0]["method"] == "dp-agrlr" for entry in entries)


def test_privacy_table_has_a_row_for_each_unit(
    entries: list[Cells], results: Path, published: Path
) -> None:
    table = read(entries, results, published)
    rows = csv_columns(table, "privacy").loc[
        lambda table: table["method"] == "dp-agrlr"
    ]
    assert (
        set(rows.groupby("runs")["unit"].agg(tuple)) == {("client", "record")}
        and two_fold(entries) > 1
    )
    assert set(
        csv_columns(privacy.rows_of_figure(table), "privacy figure").loc[
            lambda shown: shown["method"] == "dp-agrlr", "unit"
        ]
    ) == {
        "client",
        "record",
    }


def test_privacy_table_has_no_empty_cell(
    entries: list[Cells], results: Path, published: Path
) -> None:
    rows = read(entries, results, published)
    table = csv_columns(rows, "privacy")
    assert len(table) == len(entries) + two_fold(entries)
    csv_rows = pd.read_csv(
        io.StringIO(csv_text(rows)), keep_default_na=False, dtype=str
    )
    assert (csv_rows != "").all().all()
    row = table[
        (table["variant"] == "dp-agr") & (table["task"] == "5-way 1-shot")
    ].iloc[0]
    assert (
        row["epsilon_printed"],
        row["epsilon_claimed"],
        row["epsilon_proven_high"],
    ) == (1.5, 1.5, 4.887)
    assert (row["epsilon_audited"], row["audit"], row["seeds"]) == (
        0.8,
        "f-DP by ranks, 95 % confidence",
        3,
    )
    assert row["epsilon_ideal"] == 0.9
    # The paper prints an epsilon for z = 1 alone, and none for a repair.
    assert math.isnan(table[table["variant"] == "z=2"].iloc[0]["epsilon_printed"])
    assert table[table["role"] == "repaired"]["epsilon_printed"].isna().all()


def test_privacy_table_gives_the_reason_of_an_infinite_epsilon(
    entries: list[Cells], results: Path, published: Path, tmp_path: Path
) -> None:
    entry = next(entry for entry in entries if name_of(entry) == "z=2")
    for folder in runs_of(entry):
        shutil.copytree(results / "runs" / folder, tmp_path / "runs" / folder)
        path = tmp_path / "runs" / folder / "privacy.json"
        account = json.loads(path.read_text())
        account["profiles"]["proven"] |= {
            "epsilon_high": "inf",
            "explanation": "a release without an event: raw norms",
        }
        path.write_text(json.dumps(account))
    row = next(each_row(read([entry], tmp_path, published)))
    assert (
        math.isinf(row.epsilon_proven_high)
        and "a release without an event: raw norms" in row.reason
    )
    assert "inf" in csv_text(read([entry], tmp_path, published))


def test_privacy_table_refuses_a_missing_audit(
    entries: list[Cells], results: Path, published: Path, tmp_path: Path
) -> None:
    entry = entries[0]
    for folder in set(runs_of(entry)):
        shutil.copytree(results / "runs" / folder, tmp_path / "runs" / folder)
        (tmp_path / "runs" / folder / "audit.json").unlink()
    with pytest.raises(BenchError, match=r"audit\.json is missing"):
        read([entry], tmp_path, published)


def test_privacy_table_marks_an_audit_of_another_mechanism(
    entries: list[Cells], results: Path, published: Path, tmp_path: Path
) -> None:
    """Beside its number in the table and on the page, in the CSV, and nowhere else."""
    entry, note = entries[0], "of another mechanism than the ledger's"
    for folder in {*runs_of(entry), entry[0]["audited_run"]}:
        shutil.copytree(results / "runs" / folder, tmp_path / "runs" / folder)
    audit_path = tmp_path / "runs" / entry[0]["audited_run"] / "audit.json"
    for another in (False, True):
        audit_path.write_text(
            json.dumps(
                json.loads(audit_path.read_text()) | {"another_mechanism": another}
            )
        )
        rows = read([entry], tmp_path, published)
        (line,) = (
            line
            for line in privacy.listing(rows).markdown("it").splitlines()
            if line.startswith("| dp-fedmeta |")
        )
        assert (f" ({note}) |" in line) == another
        assert (f"f-DP by ranks, 95 % confidence, {note}" in csv_text(rows)) == another


def test_privacy_table_names_a_shared_audit_and_refuses_one_of_another_ledger(
    entries: list[Cells], results: Path, published: Path, tmp_path: Path
) -> None:
    entry = next(
        entry for entry in entries if entry[0]["audited_run"] != runs_of(entry)[0]
    )
    row = next(each_row(read([entry], results, published)))
    assert (
        f"audit: made for {Path(entry[0]['audited_run']).parent}, whose mechanism is the same"
        in row.reason
    )
    for folder in {*runs_of(entry), entry[0]["audited_run"]}:
        shutil.copytree(results / "runs" / folder, tmp_path / "runs" / folder)
    (tmp_path / "runs" / runs_of(entry)[0] / "audit.json").unlink()  # not needed
    read([entry], tmp_path, published)
    texts = dict.fromkeys(
        (
            "name",
            "mechanism",
            "unit",
            "adjacency",
            "observer",
            "noise_stream",
            "reason",
        ),
        "x",
    )
    flags = {
        "sampler": {"kind": "x"},
        "counted_by_paper": True,
        "data_dependent_threshold": False,
        "combines": None,
        "groups": None,
        "claimed_multiplier": None,
    }
    flags |= {"part": None, "secure": None}
    release: dict[str, Any] = (
        dict.fromkeys((field.name for field in dataclasses.fields(Release)), 1)
        | texts
        | flags
    )
    ledger = Ledger(tmp_path / "runs" / entry[0]["audited_run"] / "ledger.jsonl")
    ledger.append(Release(**release))
    with pytest.raises(BenchError, match="lines were removed or changed"):
        read([entry], tmp_path, published)
    training = ledger.path.with_name("training.json")
    training.write_text(
        json.dumps(json.loads(training.read_text()) | {"ledger": ledger.chain})
    )
    with pytest.raises(
        BenchError,
        match=(
            "the run's ledger has 0 releases, but that of the audited"
            f" {entry[0]['audited_run']} has 1: delete"
        ),
    ):
        read([entry], tmp_path, published)


def test_privacy_listing_has_a_line_for_each_row(
    entries: list[Cells], results: Path, published: Path
) -> None:
    text = privacy.listing(read(entries, results, published)).markdown(
        "uv run snakemake"
    )
    assert sum(line.startswith("| dp-fedmeta |") for line in text.splitlines()) == len(
        entries
    ) + two_fold(entries)
    assert "(repaired)" in text and "uv run snakemake" in text


def first_task(entries: list[Cells]) -> list[Cells]:
    return [
        entry
        for entry in entries
        if in_table(entry) and (entry[0]["dataset"], entry[0]["task"]) == LETTERS
    ]


def test_privacy_figure_draws_the_first_task_of_each_table(
    entries: list[Cells], results: Path, published: Path
) -> None:
    table = read(entries, results, published)
    figure = privacy_figure.draw(table, {})
    shown = first_task(entries)
    assert len(shown) < sum(map(in_table, entries))
    (axes,) = figure.axes
    assert (
        len(axes.get_yticks())
        == len(shown) + two_fold(shown)
        == len(csv_columns(privacy.rows_of_figure(table), "privacy figure"))
    )
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0] == "dp-agr"
    repaired = [label for label in labels if label.endswith("(repaired)")]
    assert len(repaired) == sum(map(is_repaired, shown)) == 3


def test_privacy_figure_has_a_panel_for_each_paper(
    entries: list[Cells], results: Path, published: Path
) -> None:
    """As many rows as the default run has: 50 of seven papers, whose labels do not
    touch.
    """
    row = next(each_row(read(entries, results, published)))._asdict()
    counts = {"a": 18, "b": 4, "c": 8, "d": 12, "e": 3, "f": 3, "g": 2}
    table = pd.DataFrame(
        {**row, "paper": paper, "variant": f"variant {number}", "shown_in": ()}
        for paper in counts
        for number in range(counts[paper])
    ).drop(columns="Index")
    figure = privacy_figure.draw(table, {"a": "Paper A"})
    figure.draw_without_rendering()
    rows = [len(axes.get_yticks()) for axes in figure.axes]
    assert rows == list(counts.values())
    headings = [axes.get_title() for axes in figure.axes]
    assert headings[0].startswith("Paper A, ") and headings[1].startswith("b, ")
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
        assert all(
            upper.ymin >= lower.ymax for upper, lower in itertools.pairwise(boxes)
        )


def test_privacy_figure_draws_a_paper_without_tables(
    entries: list[Cells], results: Path, published: Path
) -> None:
    alone = [in_figures_alone(entry) for entry in entries]
    cells = [cell for entry in alone for cell in entry]
    table = privacy.explain(read_configurations(cells, results), results, published)
    (axes,) = privacy_figure.draw(table, {}).axes
    names = ["variant", "unit", "observer", "accounted_multiplier"]
    assert len(axes.get_yticks()) == len(table[["method", *names]].drop_duplicates())


def test_privacy_figure_draws_each_epsilon_in_its_row(
    entries: list[Cells], results: Path, published: Path
) -> None:
    """An infinite ε stands at the right edge, as a mark of its own."""
    table = read(entries, results, published)
    table["epsilon_claimed"] = 1.0 + table.index
    table.loc[0, "epsilon_proven_high"] = math.inf
    (axes,) = privacy_figure.draw(table, {}).axes
    shown = csv_columns(privacy.rows_of_figure(table), "privacy figure")
    lines = {line.get_label(): line for line in axes.lines}
    claimed = lines["claimed ε"]
    assert list(claimed.get_xdata()) == list(shown["epsilon_claimed"])
    assert list(claimed.get_ydata()) == list(range(len(shown)))
    infinite = np.asarray(lines["no finite ε is proven"].get_xdata(), float)
    is_infinite = np.isinf(shown["epsilon_proven_high"])
    assert is_infinite.sum() == 1
    assert (np.isfinite(infinite) == is_infinite).all()
    assert infinite[is_infinite] > shown["epsilon_claimed"].max()
