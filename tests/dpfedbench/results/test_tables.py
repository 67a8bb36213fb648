"""Tables: means of runs, their epsilons, published numbers, and texts
without HTML of a title or formula of a text.
"""

import dataclasses
import io
import math

import numpy as np
import pandas as pd
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json
from dpfedbench.results import formats, tables
from dpfedbench.results.published import read_published
from dpfedbench.results.summary import read_rows

from .conftest import change_accounts, change_json, changed_cells, runs_of


@pytest.fixture
def table2(described, results, published):
    return tables.read(described("table2"), results, published)


def test_table_values_are_the_runs_means(table2, described, results):
    rows = tables.tidy(table2)
    for number, row in rows.iterrows():
        runs = runs_of(described("table2").cells, number)
        paths = [results / "runs" / run / "metrics.json" for run in runs]
        means = [np.mean(read_json(path)["per_task"]) for path in paths]
        assert row["value"] == pytest.approx(np.mean(means))
        assert row["ci_low"] < row["value"] < row["ci_high"]
        assert row["seeds"] == len(runs)


def test_table_shows_both_ends_of_an_epsilon_and_sorts_by_the_higher(
    described, results_to_change, published
):
    item = described("table2")
    private = [cell for cell in item.cells if cell["method"] == "dp-agr"]
    claimed = {"epsilon_low": 1.25, "epsilon_high": 2.0}
    proven = {"epsilon_low": 3.0, "epsilon_high": 5.0}
    ends = {"claimed": claimed, "proven": proven}
    change_accounts(results_to_change, runs_of(private), **ends)
    table = tables.read(item, results_to_change, published)
    rows = tables.tidy(table)
    epsilons = rows[["epsilon_claimed", "epsilon_proven"]]
    assert (epsilons[rows["method"] == "dp-agr"] == [2, 5]).all().all()
    assert epsilons[rows["method"] == "maml"].isna().all().all()
    fields = tables.listing(table).rows[2]
    shown = [fields[name] for name in ("claimed ε", "proven ε")]
    assert [(field.text, field.key) for field in shown] == [
        ("1.25 to 2", 2.0),
        ("3 to 5", 5.0),
    ]


def test_table_marks_published_values_not_comparable_on_a_stand_in(
    table2, described, results, published
):
    rows = tables.tidy(table2).set_index(["task", "method"])
    # Table 2 of the paper, Omniglot.
    assert rows.loc[("5-way 1-shot", "dp-agr"), "published"] == 93.9
    assert rows.loc[("5-way 5-shot", "maml"), "published"] == 99.8
    assert not rows["comparable"].any()
    assert set(rows["dataset"]) == {"glyphs"}
    text = tables.listing(table2).markdown("snakemake it")
    assert "| 4.89 | 93.9 (not comparable) | 1e-06 | client (synthetic) |" in text
    assert "published on omniglot, measured on glyphs." in text
    assert "Simulated privacy: the noise seed is public." in text
    same = changed_cells(described("table2"), mismatch="")
    incomparable = changed_cells(same, published_dataset="none")
    for item, comparable in ((same, True), (incomparable, False)):
        table = tables.tidy(tables.read(item, results, published))
        assert set(table["comparable"]) == {comparable}


@pytest.fixture
def cells(described):
    """The cells of one private row of Table 2: three seeds."""
    return [cell for cell in described("table2").cells if cell["cell"] == 2]


def test_summary_has_the_epsilon_of_the_worst_seed(cells, results_to_change):
    for index, run in enumerate(runs_of(cells)):
        claimed = {"epsilon_high": 1.0 + index}
        proven = {"epsilon_high": "inf" if index else 5.0}
        change_accounts(results_to_change, [run], claimed=claimed, proven=proven)
    rows = read_rows(results_to_change, cells)
    assert rows["epsilon_claimed"].item() == 3
    assert math.isinf(rows["epsilon_proven_high"].item())


def test_summary_has_no_training_time_where_one_seed_has_none(cells, results_to_change):
    """A private run whose cohorts are secret has none."""
    assert read_rows(results_to_change, cells)["seconds"][0] == 30.0
    path = results_to_change / "runs" / runs_of(cells)[1] / "training.json"
    change_json(path, seconds=None)
    assert math.isnan(read_rows(results_to_change, cells)["seconds"][0])


def test_summary_refuses_seeds_of_different_deltas(cells, results_to_change):
    path = results_to_change / "runs" / runs_of(cells)[0] / "privacy.json"
    change_json(path, delta=0.1)
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
    lines = [f"{key},best,1,93.9,Table 2", f"{key},best,{x},{value},Table 2"]
    path = tmp_path / "published.csv"
    path.write_text("\n".join([header, *lines]), encoding="utf-8")
    with pytest.raises(BenchError, match="has two numbers of dp-fedmeta table2"):
        read_published(path, "dp-fedmeta", "table2")


def test_published_numbers_keep_their_texts(tmp_path):
    header = "paper,item,dataset,task,method,variant,x,value,source,quantity,spread"
    lines = [f"p,table1,d,t,dp-agr,{text},,1,Table" for text in ("None", "NA", "nan")]
    path = tmp_path / "published.csv"
    path.write_text("\n".join([header, *lines]), encoding="utf-8")
    numbers = read_published(path, "p", "table1")
    assert numbers["variant"].tolist() == ["None", "NA", "nan"]
    path.write_text(f"{header}\n{lines[0].replace(',1,', ',most,')}", encoding="utf-8")
    with pytest.raises(BenchError, match=r"column value: .*: correct the file"):
        read_published(path, "p", "table1")


# Texts for people and spreadsheets


def test_csv_text_defuses_formulas_and_leaves_numbers_as_they_are():
    formulas = ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3+cmd", "@SUM(A1)", "\tx"]
    frame = pd.DataFrame({"variant": [*formulas, "z\r\n= 1"]})
    frame = frame.assign(value=[-1.5, -math.inf] * 3, text=["-3", "+1e3"] * 3)
    read = pd.read_csv(io.StringIO(formats.csv_text(frame), newline=""))
    assert read["variant"].tolist() == [*(f"'{text}" for text in formulas), "z = 1"]
    assert read["value"].tolist() == frame["value"].tolist()
    assert read["text"].tolist() == [-3.0, 1000.0] * 3


def test_markdown_shows_html_as_text(described, results, published):
    hostile = "<img src=x onerror=alert(1)>\n\n<script>|alert(1)</script>"
    item = changed_cells(described("table2"), variant=hostile)
    item = dataclasses.replace(item, spec=item.spec | {"title": hostile})
    text = tables.listing(tables.read(item, results, published)).markdown("snakemake")
    assert "<img" not in text
    assert "<script" not in text
    assert text.startswith("# &lt;img src=x onerror=alert(1)> &lt;script>|alert(1)")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.replace(r"\|", "").count("|") for row in rows}) == 1
