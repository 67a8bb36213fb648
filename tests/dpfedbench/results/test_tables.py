"""Tables: means and intervals of runs, their epsilons, published numbers."""

import csv
import io
import math

import numpy as np
import pandas as pd
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json, write_json
from dpfedbench.results import formats, tables
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row, read_rows

from .conftest import change_accounts, change_json, changed_cells, runs_of

COLUMNS = (
    "dataset, task, method, variant, value, ci_low, ci_high, seeds, epsilon_claimed,"
    " epsilon_proven, delta, unit, published, comparable"
)


def csv_rows(table):
    """Return the rows of a table's CSV file."""
    text = formats.csv_text(tables.tidy(table))
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def table2(described, results, published):
    return tables.read(described("table2"), results, published)


def test_table_values_are_the_runs_means(table2, described, results):
    rows = csv_rows(table2)
    assert list(rows[0]) == COLUMNS.split(", ")
    cells = described("table2").cells
    for number, row in enumerate(rows):
        runs = runs_of(cells, number)
        paths = [results / "runs" / run / "metrics.json" for run in runs]
        means = [np.mean(read_json(path)["per_task"]) for path in paths]
        assert float(row["value"]) == pytest.approx(np.mean(means), rel=1e-5)
        assert float(row["ci_low"]) < float(row["value"]) < float(row["ci_high"])
        assert row["seeds"] == str(len(runs))


def test_table_has_epsilons_of_private_rows_only(table2):
    deltas = {"dp-agr": "1e-06", "dp-agrlr": "1e-06", "dp-reptile": "0.001"}
    names = ("epsilon_claimed", "epsilon_proven", "delta", "unit")
    for row in csv_rows(table2):
        shown = [row[name] for name in names]
        if row["method"] in deltas:
            assert shown == ["1.5", "4.887", deltas[row["method"]], "client"]
        else:
            assert shown == ["", "", "", ""]


def test_table_shows_both_ends_of_an_epsilon_and_sorts_by_the_higher(
    described, results_to_change, published
):
    item = described("table2")
    change_accounts(
        results_to_change,
        runs_of([cell for cell in item.cells if cell["method"] == "dp-agr"]),
        claimed={"epsilon_low": 1.25, "epsilon_high": 2.0},
        proven={"epsilon_low": 3.0, "epsilon_high": 5.0},
    )
    table = tables.read(item, results_to_change, published)
    fields = tables.listing(table).rows
    for row, shown in zip(csv_rows(table), fields, strict=True):
        if row["method"] == "dp-agr":
            assert (row["epsilon_claimed"], row["epsilon_proven"]) == ("2", "5")
            claimed = shown["claimed ε"]
            proven = shown["proven ε"]
            assert (claimed.text, claimed.key) == ("1.25 to 2", 2.0)
            assert (proven.text, proven.key) == ("3 to 5", 5.0)


def test_table_marks_published_values_not_comparable_on_a_stand_in(table2):
    rows = {(row["task"], row["method"]): row for row in csv_rows(table2)}
    # Table 2 of the paper, Omniglot.
    expected = {
        ("5-way 1-shot", "dp-agr"): "93.9",
        ("5-way 5-shot", "maml"): "99.8",
    }
    for key, value in expected.items():
        assert (rows[key]["published"], rows[key]["comparable"]) == (value, "false")
    assert {row["dataset"] for row in rows.values()} == {"glyphs"}
    text = tables.listing(table2).markdown("snakemake it")
    assert "| 4.89 | 93.9 (not comparable) | 1e-06 | client |" in text
    assert "published on omniglot, measured on glyphs." in text
    assert "Simulated privacy: the noise seed is public." in text


@pytest.mark.parametrize(
    ("change", "comparable"), [({}, True), ({"published_dataset": "none"}, False)]
)
def test_table_values_are_comparable_on_the_papers_data_and_scale(
    described, results, published, change, comparable
):
    item = changed_cells(described("table2"), mismatch="", **change)
    table = tables.read(item, results, published)
    assert set(tables.tidy(table)["comparable"]) == {comparable}


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
def test_epsilon_says_its_range_and_status(low, high, status, text):
    row = {
        "epsilon_proven_low": low,
        "epsilon_proven_high": high,
        **dict.fromkeys(("proven_status", "claimed_status"), status),
        **dict.fromkeys(("proven_excess", "claimed_excess"), ""),
    }
    note = formats.with_epsilon_texts(pd.DataFrame([row]))["proven_note"][0]
    assert formats.format_range(low, high, note).line == text


@pytest.fixture
def cells(described):
    """The cells of one private row of Table 2: three seeds."""
    return [cell for cell in described("table2").cells if cell["cell"] == 2]


def test_summary_has_the_epsilon_of_the_worst_seed(cells, results_to_change):
    runs = runs_of(cells)
    for index, run in enumerate(runs):
        change_accounts(
            results_to_change,
            [run],
            claimed={"epsilon_high": 1.0 + index},
            proven={"epsilon_high": "inf" if index else 5.0},
        )
    (row,) = each_row(read_rows(results_to_change, cells))
    assert row.epsilon_claimed == len(runs)
    assert math.isinf(row.epsilon_proven_high)


def test_summary_has_no_training_time_where_one_seed_has_none(cells, results_to_change):
    """A private run whose cohorts are secret has none."""
    assert read_rows(results_to_change, cells)["seconds"][0] == 30.0
    path = results_to_change / "runs" / runs_of(cells)[1] / "training.json"
    change_json(path, seconds=None)
    assert math.isnan(read_rows(results_to_change, cells)["seconds"][0])


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "metrics.json is missing"), ('{"per_task": [NaN]}', "NaN is not a number")],
)
def test_summary_refuses_missing_and_damaged_runs(
    cells, results_to_change, content, message
):
    path = results_to_change / "runs" / runs_of(cells)[0] / "metrics.json"
    path.unlink()
    if content:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(BenchError, match=message):
        read_rows(results_to_change, cells)


def test_summary_refuses_seeds_of_different_deltas(cells, results_to_change):
    path = results_to_change / "runs" / runs_of(cells)[0] / "privacy.json"
    write_json(path, read_json(path) | {"delta": 0.1})
    with pytest.raises(BenchError, match="differ in delta or unit"):
        read_rows(results_to_change, cells)


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
    described, results, published, paper, name, milliseconds
):
    """The papers' times are of other machines, so none is comparable."""
    table = tables.read(described(name, paper), results, published)
    tidy = tables.tidy(table)
    assert tidy["value"].tolist() == [10.0] * len(milliseconds)
    assert tidy["ci_low"].isna().all()
    assert tidy["published"].tolist() == milliseconds
    assert not tidy["comparable"].any()
    text = tables.listing(table).markdown("snakemake it")
    assert "time, ms a task (95 % interval)" in text
    assert "accuracy" not in text


# Published numbers

HEADER = "paper,item,dataset,task,method,variant,x,value,source,quantity,spread"


def published_file(folder, lines):
    path = folder / "published.csv"
    path.write_text("\n".join([HEADER, *lines]), encoding="utf-8")
    return path


def test_published_numbers_of_table_2_are_complete(published):
    """Six tasks, five columns."""
    rows = read_published(published, "dp-fedmeta", "table2")
    assert len(rows) == 30
    assert len(rows[["dataset", "task", "method"]].drop_duplicates()) == 30
    assert rows["value"].between(20, 100, inclusive="neither").all()


def test_published_numbers_leave_out_other_quantities(published, tmp_path):
    """Table 1 of DP-FNAS prints error, parameters, cost and operations of eight
    searches; Table 4 of DP-MAML prints two times and two batch sizes of three data
    sets. A table shows errors as accuracies, and times.
    """
    errors = (2.8, 2.9, 3.2, 3.3, 3.0, 3.0, 3.1, 3.4)
    accuracies = read_published(published, "dp-fnas", "table1")["value"].tolist()
    assert accuracies == pytest.approx([100 - error for error in errors])
    assert len(read_published(published, "dp-maml", "table4-time")) == 6
    key = "mine,table1,omniglot,5-way 1-shot"
    lines = [
        f"{key},maml,,,99.5,Table 1",
        f"{key},maml,,,8,Table 1,batch size,",
        f"{key},dp-maml,,,93.9,Table 1,,0.4",
    ]
    numbers = read_published(published_file(tmp_path, lines), "mine", "table1")
    assert numbers["value"].tolist() == [99.5, 93.9]
    assert math.isnan(numbers["spread"][0])
    assert numbers["spread"][1] == 0.4


@pytest.mark.parametrize(("x", "value"), [("1", "93.8"), ("1.0", "93.9")])
def test_published_numbers_refuse_two_for_one_cell(tmp_path, x, value):
    """The first line would be shown; also where both say the same, since one of them
    is then corrected alone.
    """
    key = "dp-fedmeta,table2,omniglot,5-way 1-shot,dp-agr"
    first = f"{key},best,1,93.9,Table 2"
    others = [f"{key},best,2,93.9,Table 2", f"{key},,1,93.9,Table 2"]
    path = published_file(tmp_path, [first, *others])
    assert len(read_published(path, "dp-fedmeta", "table2")) == 3
    path = published_file(tmp_path, [first, f"{key},best,{x},{value},Table 2"])
    with pytest.raises(BenchError, match="has two numbers of dp-fedmeta table2"):
        read_published(path, "dp-fedmeta", "table2")


def test_table_shows_a_printed_spread(described, results, tmp_path):
    key = "dp-fedmeta,table2,omniglot,5-way 1-shot"
    lines = [f"{key},maml,,,99.4,Table 2,,0.4", f"{key},dp-agr,,,93.9,Table 2"]
    path = published_file(tmp_path, lines)
    table = tables.read(described("table2"), results, path)
    shown = {
        row.method: line["published, %"]
        for row, line in zip(
            each_row(table.rows), tables.listing(table).rows, strict=True
        )
        if row.task == "5-way 1-shot"
    }
    assert (shown["maml"].text, shown["maml"].note) == ("99.4", "± 0.4, not comparable")
    assert (shown["dp-agr"].text, shown["dp-agr"].note) == ("93.9", "not comparable")
