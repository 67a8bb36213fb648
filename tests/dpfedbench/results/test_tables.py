"""Tables: means and intervals of runs, their epsilons, published numbers."""

import csv
import io
import math

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json, write_json
from dpfedbench.results import formats, tables
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import each_row, read_rows

from .conftest import change_accounts, change_json, changed_cells, runs_of


def csv_rows(table):
    """Return the rows of a table's CSV file."""
    text = formats.csv_text(tables.tidy(table))
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def table2(described, results, published):
    return tables.read(described("table2"), results, published)


def test_table_values_are_the_runs_means(table2, described, results):
    cells = described("table2").cells
    for number, row in enumerate(csv_rows(table2)):
        runs = runs_of(cells, number)
        paths = [results / "runs" / run / "metrics.json" for run in runs]
        means = [np.mean(read_json(path)["per_task"]) for path in paths]
        assert float(row["value"]) == pytest.approx(np.mean(means), rel=1e-5)
        assert float(row["ci_low"]) < float(row["value"]) < float(row["ci_high"])
        assert row["seeds"] == str(len(runs))


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
        elif row["method"] == "maml":
            assert (row["epsilon_claimed"], row["epsilon_proven"]) == ("", "")


def test_table_marks_published_values_not_comparable_on_a_stand_in(
    table2, described, results, published
):
    rows = {(row["task"], row["method"]): row for row in csv_rows(table2)}
    # Table 2 of the paper, Omniglot.
    assert rows["5-way 1-shot", "dp-agr"]["published"] == "93.9"
    assert rows["5-way 5-shot", "maml"]["published"] == "99.8"
    assert {row["comparable"] for row in rows.values()} == {"false"}
    assert {row["dataset"] for row in rows.values()} == {"glyphs"}
    text = tables.listing(table2).markdown("snakemake it")
    assert "| 4.89 | 93.9 (not comparable) | 1e-06 | client |" in text
    assert "published on omniglot, measured on glyphs." in text
    assert "Simulated privacy: the noise seed is public." in text
    same = changed_cells(described("table2"), mismatch="")
    other = changed_cells(same, published_dataset="none")
    for item, comparable in ((same, True), (other, False)):
        table = tables.tidy(tables.read(item, results, published))
        assert set(table["comparable"]) == {comparable}


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


def test_summary_refuses_seeds_of_different_deltas(cells, results_to_change):
    path = results_to_change / "runs" / runs_of(cells)[0] / "privacy.json"
    write_json(path, read_json(path) | {"delta": 0.1})
    with pytest.raises(BenchError, match="differ in delta or unit"):
        read_rows(results_to_change, cells)


def test_time_table_shows_milliseconds(described, results, published):
    """The paper's times are of another machine, so none is comparable."""
    table = tables.read(described("table4-time", "dp-maml"), results, published)
    tidy = tables.tidy(table)
    assert tidy["value"].tolist() == [10.0] * 4
    assert tidy["published"].tolist() == [39.9, 54.7, 68.7, 81.3]
    assert not tidy["comparable"].any()


# Published numbers


def test_published_numbers_leave_out_other_quantities(published):
    """Table 1 of DP-FNAS prints error, parameters, cost and operations of eight
    searches. A table shows errors as accuracies.
    """
    errors = (2.8, 2.9, 3.2, 3.3, 3.0, 3.0, 3.1, 3.4)
    accuracies = read_published(published, "dp-fnas", "table1")["value"].tolist()
    assert accuracies == pytest.approx([100 - error for error in errors])


@pytest.mark.parametrize(("x", "value"), [("1", "93.8"), ("1.0", "93.9")])
def test_published_numbers_refuse_two_for_one_cell(tmp_path, x, value):
    """The first line would be shown; also where both say the same, since one of them
    is then corrected alone.
    """
    header = "paper,item,dataset,task,method,variant,x,value,source,quantity,spread"
    key = "dp-fedmeta,table2,omniglot,5-way 1-shot,dp-agr"
    lines = [header, *(f"{key},{cell},93.9,Table 2" for cell in ("best,1", "best,2"))]
    path = tmp_path / "published.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert len(read_published(path, "dp-fedmeta", "table2")) == 2
    lines.append(f"{key},best,{x},{value},Table 2")
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(BenchError, match="has two numbers of dp-fedmeta table2"):
        read_published(path, "dp-fedmeta", "table2")
