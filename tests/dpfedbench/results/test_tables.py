"""Tables: the tidy columns, what is said to people, and damaged runs."""

import csv
import dataclasses
import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.results import formats, tables
from dpfedbench.results.items import Item
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row, read_rows

from .conftest import changed_cells, runs_of

Describe = Callable[..., Item]
# The columns that issue 2 asks for, in its order.
ASKED = (
    "dataset, task, method, variant, value, ci_low, ci_high, seeds, epsilon_claimed,"
    " epsilon_proven, delta, unit, published, comparable"
)

PROVEN = {
    "epsilon_low": 1,
    "epsilon_high": 1,
    "delta": 0.1,
    "unit": "client",
    "adjacency": "zero-out",
    "observer": "all",
    "status": "proved",
    "explanation": "",
}
OTHER_DELTA = json.dumps(
    {"profiles": {"proven": PROVEN}, "delta": 0.1, "unit": "client", "reasons": {}}
)


def made(
    described: Describe, results: Path, published: Path
) -> tuple[list[dict[str, str]], str]:
    table = tables.read(described("table2"), results, published)
    text = formats.csv_text(tables.tidy(table))
    return list(csv.DictReader(io.StringIO(text))), tables.listing(table).markdown(
        "snakemake it"
    )


def test_table_csv_has_its_columns(
    described: Describe, results: Path, published: Path
) -> None:
    rows, _ = made(described, results, published)
    assert list(rows[0]) == ASKED.split(", ")


def test_table_values_are_the_runs_means(
    described: Describe, results: Path, published: Path
) -> None:
    rows, _ = made(described, results, published)
    description = described("table2")
    for number, row in enumerate(rows):
        means = []
        folders = runs_of(description.cells, number)
        for folder in folders:
            metrics = json.loads(
                (results / "runs" / folder / "metrics.json").read_text(encoding="utf-8")
            )
            means.append(np.mean(metrics["per_task"]))
        assert float(row["value"]) == pytest.approx(np.mean(means), rel=1e-5)
        assert float(row["ci_low"]) < float(row["value"]) < float(row["ci_high"])
        assert row["seeds"] == str(len(folders))


def test_table_has_epsilons_of_private_rows_only(
    described: Describe, results: Path, published: Path
) -> None:
    rows, _ = made(described, results, published)
    for row in rows:
        private = row["method"] in ("dp-agr", "dp-agrlr", "dp-reptile")
        assert row["epsilon_claimed"] == ("1.5" if private else "")
        assert row["epsilon_proven"] == ("4.887" if private else "")
        assert row["delta"] == (
            {"dp-reptile": "0.001"}.get(row["method"], "1e-06") if private else ""
        )
        assert row["unit"] == ("client" if private else "")


def test_table_marks_published_values_not_comparable_on_a_stand_in(
    described: Describe, results: Path, published: Path
) -> None:
    rows, text = made(described, results, published)
    published_values = {
        (row["task"], row["method"]): (row["published"], row["comparable"])
        for row in rows
    }
    # Table 2 of the paper, Omniglot.
    assert published_values["5-way 1-shot", "dp-agr"] == ("93.9", "false")
    assert published_values["5-way 5-shot", "maml"] == ("99.8", "false")
    assert {row["dataset"] for row in rows} == {"glyphs"}
    assert "93.9 (not comparable)" in text
    assert (
        "Not comparable with the published value: published on omniglot, measured on"
        " glyphs." in text
    )


def test_table_values_are_comparable_on_the_papers_data_and_scale(
    described: Describe, results: Path, published: Path
) -> None:
    description = described("table2")

    def comparable(**changed: str) -> set[bool]:
        item = changed_cells(description, **changed)
        table = tables.read(item, results, published)
        return set(tables.tidy(table)["comparable"])

    assert comparable(mismatch="") == {True}
    assert comparable(mismatch="", published_dataset="none") == {False}


def test_table_listing_explains_its_numbers(
    described: Describe, results: Path, published: Path
) -> None:
    _, text = made(described, results, published)
    for sentence in (
        "The interval is over the per-seed means (Student's t",
        "Simulated privacy: the noise seed is public.",
        "Proven ε, DP-AGR: what proven rests on.",
        "Made by `snakemake it`.",
        "| 4.89 | 93.9 (not comparable) | 1e-06 | client |",
    ):
        assert sentence in text
    header = next(line for line in text.splitlines() if line.startswith("| method"))
    assert all(
        line.count("|") == header.count("|")
        for line in text.splitlines()
        if line.startswith("|")
    )


@pytest.mark.parametrize(
    ("low", "high", "status", "text"),
    [
        (1.5, 1.5, "proved", "1.5"),
        (1.2, 1.5, "proved", "1.2 to 1.5"),
        (4.44, math.inf, "lower bound only", "4.44 to ∞ (lower bound only)"),
        (math.inf, math.inf, "void", "∞ (void)"),
        (math.nan, math.nan, "none", "–"),
    ],
)
def test_epsilon_says_its_range_and_status(
    low: float, high: float, status: str, text: str
) -> None:
    row = {
        "epsilon_proven_low": low,
        "epsilon_proven_high": high,
        **dict.fromkeys(("proven_status", "claimed_status"), status),
        **dict.fromkeys(("proven_excess", "claimed_excess"), ""),
    }
    rows = formats.with_epsilon_texts(pd.DataFrame([row]))
    note = rows["proven_note"][0]
    assert formats.format_range(low, high, note).line == text


def test_summary_has_the_epsilon_of_the_worst_seed(
    described: Describe, results: Path, tmp_path: Path
) -> None:
    cells = [cell for cell in described("table2").cells if cell["cell"] == 2]
    folders = runs_of(cells)
    for index, folder in enumerate(folders):
        target = tmp_path / "runs" / folder
        shutil.copytree(results / "runs" / folder, target)
        account = json.loads((target / "privacy.json").read_text(encoding="utf-8"))
        account["profiles"]["claimed"]["epsilon_high"] = 1.0 + index
        account["profiles"]["proven"]["epsilon_high"] = "inf" if index else 5
        (target / "privacy.json").write_text(json.dumps(account), encoding="utf-8")
    (row,) = each_row(read_rows(tmp_path, cells))
    assert row.epsilon_claimed == len(folders)
    assert math.isinf(row.epsilon_proven_high)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("metrics.json", None, "metrics.json is missing"),
        ("metrics.json", "{", "is not valid JSON"),
        ("metrics.json", "{}", "lacks 'accuracy'"),
        (
            "privacy.json",
            '{"profiles": {"proven": {}}, "delta": 1, "unit": "client"}',
            "lacks 'adjacency'",
        ),
        ("privacy.json", OTHER_DELTA, "differ in delta or unit"),
        ("metrics.json", '{"per_task": [1, NaN]}', "NaN is not a number"),
    ],
)
def test_summary_refuses_a_damaged_run_in_one_line(
    described: Describe,
    results: Path,
    tmp_path: Path,
    name: str,
    content: str | None,
    part: str,
) -> None:
    cells = [cell for cell in described("table2").cells if cell["cell"] == 2]
    folders = runs_of(cells)
    for folder in folders:
        shutil.copytree(results / "runs" / folder, tmp_path / "runs" / folder)
    damaged = tmp_path / "runs" / folders[0] / name
    (
        damaged.unlink()
        if content is None
        else damaged.write_text(content, encoding="utf-8")
    )
    with pytest.raises(BenchError) as caught:
        read_rows(tmp_path, cells)
    assert part in str(caught.value) and "\n" not in str(caught.value)


def test_published_numbers_of_table_2_are_complete(
    published: Path, tmp_path: Path
) -> None:
    rows = read_published(published, "dp-fedmeta", "table2")
    # Six tasks, five columns (Table 2).
    assert len(rows) == 30
    assert len(rows[["dataset", "task", "method"]].drop_duplicates()) == 30
    assert rows["value"].between(20, 100, inclusive="neither").all()
    with pytest.raises(BenchError, match="is missing"):
        read_published(tmp_path / "published.csv", "dp-fedmeta", "table2")


def test_published_numbers_leave_out_other_quantities(
    published: Path, tmp_path: Path
) -> None:
    """Table 1 of DP-FNAS prints error, parameters, cost and operations of eight
    searches; Table 4 of DP-MAML prints two times and two batch sizes of three data
    sets. A table shows errors as accuracies, and times.
    """
    errors = (2.8, 2.9, 3.2, 3.3, 3.0, 3.0, 3.1, 3.4)
    accuracies = read_published(published, "dp-fnas", "table1")["value"].tolist()
    assert accuracies == pytest.approx([100 - error for error in errors])
    assert len(read_published(published, "dp-maml", "table4-time")) == 6
    path = tmp_path / "published.csv"
    path.write_text(
        "paper,item,dataset,task,method,variant,x,value,source,quantity,spread\n"
        "mine,table1,omniglot,5-way 1-shot,maml,,,99.5,Table 1\n"
        "mine,table1,omniglot,5-way 1-shot,maml,,,8,Table 1,batch size,\n"
        "mine,table1,omniglot,5-way 1-shot,maml,,,1; 2,Table 1,values searched,\n"
        "mine,table1,omniglot,5-way 1-shot,dp-maml,,,93.9,Table 1,,0.4\n",
        encoding="utf-8",
    )
    numbers = read_published(path, "mine", "table1")
    assert numbers["value"].tolist() == [99.5, 93.9]
    assert math.isnan(numbers["spread"][0]) and numbers["spread"][1] == 0.4


def test_table_shows_a_printed_spread(
    described: Describe, results: Path, published: Path, tmp_path: Path
) -> None:
    lines = published.read_text(encoding="utf-8").splitlines()
    row = "dp-fedmeta,table2,omniglot,5-way 1-shot,maml,,,99.4,Table 2"
    path = tmp_path / "published.csv"
    lines[lines.index(row)] = f"{row},,0.4"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = tables.read(described("table2"), results, path)
    fields = tables.listing(table).rows
    shown = {
        row.method: line["published, %"]
        for row, line in zip(each_row(table.rows), fields, strict=True)
        if row.task == "5-way 1-shot" and row.published_dataset == "omniglot"
    }
    assert (shown["maml"].text, shown["maml"].note) == ("99.4", "± 0.4, not comparable")
    assert (shown["dp-agr"].text, shown["dp-agr"].note) == ("93.9", "not comparable")


@pytest.mark.parametrize(
    ("paper", "name", "milliseconds"),
    [
        (
            "dp-fedmeta",
            "table3-time",
            [39.9, 54.7, 520.0, 68.7, 81.3, 1060.0, 112.3, 102.7, 1170.0],
        ),
        ("dp-maml", "table4-time", [39.9, 54.7, 68.7, 81.3]),
    ],
)
def test_time_table_shows_milliseconds(
    described: Describe,
    results: Path,
    published: Path,
    paper: str,
    name: str,
    milliseconds: list[float],
) -> None:
    table = tables.read(described(name, paper), results, published)
    tidy = tables.tidy(table)
    assert tidy["value"].tolist() == [10.0] * len(milliseconds)
    assert tidy["ci_low"].isna().all()
    assert tidy["published"].tolist() == milliseconds
    # Another machine's, whatever the data.
    assert not tidy["comparable"].any()
    text = tables.listing(table).markdown("snakemake it")
    assert "time, ms a task (95 % interval)" in text and "accuracy" not in text
    assert (
        "| 10 (no interval) |" in text
        and "published, ms" in text
        and "the papers used other machines" in text
    )


def test_time_table_names_a_run_without_a_time(
    described: Describe, results: Path, published: Path, tmp_path: Path
) -> None:
    description = described("table3-time")
    shutil.copytree(results, tmp_path / "results")
    path = tmp_path / "results" / "runs" / description.cells[0]["run"] / "training.json"
    training = json.loads(path.read_text(encoding="utf-8"))
    del training["milliseconds_per_client"]
    message = (
        r"table3-time shows milliseconds, which runs of .* do not have: leave out private runs with secret"
        r" cohorts"
    )
    for changed in (training, training | {"milliseconds_per_client": None}):
        path.write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(BenchError, match=message):
            tables.read(description, tmp_path / "results", published)


def test_table_shows_a_dash_for_a_secret_training_time(
    described: Describe, results: Path, published: Path
) -> None:
    """A private run whose cohorts are secret has none."""
    item = described("table2")
    item = dataclasses.replace(item, spec={**item.spec, "columns": ["seconds"]})
    table = tables.read(item, results, published)
    table.rows.loc[0, "seconds"] = math.nan
    fields = tables.listing(table).rows
    assert [row["training, s"].text for row in fields[:2]] == ["–", "30"]
    assert formats.csv_text(tables.tidy(table)).splitlines()[1].endswith(",")


def test_summary_has_no_training_time_where_one_seed_has_none(
    described: Describe, results: Path, tmp_path: Path
) -> None:
    cells = [cell for cell in described("table2").cells if cell["cell"] == 0]
    for run in runs_of(cells):
        shutil.copytree(results / "runs" / run, tmp_path / "runs" / run)
    path = tmp_path / "runs" / runs_of(cells)[1] / "training.json"
    training = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**training, "seconds": None}), encoding="utf-8")
    assert math.isnan(read_rows(tmp_path, cells)["seconds"][0])
    assert read_rows(results, cells)["seconds"][0] == 30.0


def test_table_shows_markup_and_formulas_as_text(
    described: Describe, results: Path, published: Path
) -> None:
    item = described("table2")
    hostile = "=cmd|' /C calc'!A1 <i>"
    cells = [
        {**cell, "variant": hostile} if cell["cell"] == 0 else cell
        for cell in item.cells
    ]
    spec = dict(item.spec) | {"title": "a <script>"}
    table = tables.read(
        dataclasses.replace(item, spec=spec, cells=cells),
        results,
        published,
    )
    text = tables.listing(table).markdown("it")
    assert (
        text.startswith("# a &lt;script>\n")
        and r"=cmd\|' /C calc'!A1 &lt;i>" in text
        and "<i>" not in text
    )
    row = next(csv.DictReader(io.StringIO(formats.csv_text(tables.tidy(table)))))
    assert row["variant"] == "'=cmd|' /C calc'!A1 <i>" and float(row["value"]) > 0


@pytest.mark.parametrize(
    ("again", "value"),
    [("1", "93.8"), ("1.0", "93.9")],
    ids=["same x", "x written otherwise"],
)
def test_published_numbers_refuse_two_for_one_cell(
    tmp_path: Path, again: str, value: str
) -> None:
    """Whichever line came first would win; also where both say the same, since one of
    them is then mended alone.
    """
    path, key = (
        tmp_path / "published.csv",
        "dp-fedmeta,table2,omniglot,5-way 1-shot,dp-agr",
    )
    lines = [
        "paper,item,dataset,task,method,variant,x,value,source,quantity,spread",
        f"{key},best,1,93.9,Table 2",
    ]
    other_lines = [
        f"{key},best,2,93.9,Table 2",
        f"{key},,1,93.9,Table 2",
        f"{key.replace('2', '3')},best,1,93.9,Table 3",
    ]
    path.write_text("\n".join([*lines, *other_lines]), encoding="utf-8")
    numbers = read_published(path, "dp-fedmeta", "table2")
    assert numbers["x"].tolist() == [1.0, 2.0, 1.0]
    path.write_text(
        "\n".join([*lines, f"{key},best,{again},{value},Table 2"]), encoding="utf-8"
    )
    with pytest.raises(BenchError) as caught:
        read_published(path, "dp-fedmeta", "table2")
    assert (
        str(caught.value)
        == f"{path} has two numbers of dp-fedmeta table2 for omniglot, 5-way 1-shot,"
        " dp-agr, best: keep one of the lines"
    )
