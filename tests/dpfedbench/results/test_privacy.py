"""The table of privacy and its figure: a row for each configuration and unit."""

import io
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json
from dpfedbench.results import configurations, formats, privacy, privacy_figure
from dpfedbench.results.runs_table import collect_cells, collect_runs, write_frame
from dpfedbench.results.table_columns import csv_columns
from dpsum.ledger import Ledger
from tests.dpsum.helpers import make_release

from .conftest import change_accounts, change_audit, change_json, runs_of

EPSILONS = ["epsilon_claimed", "epsilon_proven_high", "epsilon_audited"]
METHOD = "f-DP by ranks, 95 % confidence"


def read_privacy(entries, results, published):
    cells = [cell for entry in entries for cell in entry]
    rows = configurations.read_configurations(cells, results)
    return privacy.explain(rows, results, published)


def csv_text(rows):
    return formats.csv_text(csv_columns(rows, "privacy"), "none")


def test_configurations_have_one_row_and_all_seeds(planned, plan):
    rows = configurations.configurations(planned.cell_records())
    rows = [row for row in rows if row["private"]]
    runs = [run.folder for run in plan.runs.values() if run.private]
    assert sorted(row["run"] for row in rows) == sorted(runs)
    assert len({row["cell"] for row in rows}) == len({Path(run).parent for run in runs})


def test_load_configurations_equals_the_rows_of_the_plan(plan, results, tmp_path):
    cells = plan.items["dp-fedmeta", "table2"].cell_records({})
    (tmp_path / "runs").symlink_to(results / "runs")
    runs = collect_runs(tmp_path, [cell["run"] for cell in cells])
    write_frame(runs, tmp_path / "runs.parquet")
    write_frame(collect_cells(tmp_path, cells, runs), tmp_path / "cells.parquet")
    loaded = configurations.load_configurations(tmp_path)
    expected = configurations.read_configurations(cells, tmp_path)
    names = ["folder", "unit", "group", "accuracy", "epsilon_proven_high", "seeds"]
    pd.testing.assert_frame_equal(loaded[names], expected[names], check_dtype=False)
    assert set(loaded["group"]) == {"private", "not private", "no private data"}


def test_privacy_table_has_no_empty_cell_and_a_row_for_each_unit(
    entries, results, published
):
    rows = read_privacy(entries, results, published)
    table = csv_columns(rows, "privacy")
    twofold = [entry for entry in entries if entry[0]["method"] == "dp-agrlr"]
    assert len(twofold) > 1
    assert len(table) == len(entries) + len(twofold)
    units = table[table["method"] == "dp-agrlr"].groupby("runs")["unit"].agg(tuple)
    assert set(units) == {("client", "record")}
    text = io.StringIO(csv_text(rows))
    assert (pd.read_csv(text, keep_default_na=False, dtype=str) != "").all().all()
    is_first = (table["variant"] == "dp-agr") & (table["task"] == "5-way 1-shot")
    row = table[is_first].iloc[0]
    names = ["epsilon_printed", *EPSILONS, "epsilon_ideal", "audit", "seeds"]
    assert row[names].tolist() == [1.5, 1.5, 4.887, 0.8, 0.9, METHOD, 3]
    assert row["ci_low"] < row["accuracy"] < row["ci_high"]
    # The paper prints an epsilon for z = 1 alone.
    assert table[table["variant"] == "z=2"]["epsilon_printed"].isna().all()


def test_privacy_table_has_account_and_audit_of_each_unit(
    entries, results_to_change, published
):
    """Of several seeds, the noise is the least."""
    entry = next(entry for entry in entries if entry[0]["method"] == "dp-agrlr")
    for run in {*runs_of(entry), entry[0]["audited_run"]}:
        folder = results_to_change / "runs" / run
        (of_record,) = read_json(folder / "audit.json")["also"]
        of_record |= {"epsilon": 0.25, "method": "own"}
        change_json(folder / "audit.json", also=[of_record])
        (account,) = read_json(folder / "privacy.json")["also"]
        account["noise_multiplier"] = 7.0 + int(run[-1])
        for name, epsilon in (("claimed", 2.5), ("proven", 2.75)):
            ends = {"epsilon_low": epsilon, "epsilon_high": epsilon}
            account["profiles"][name] |= ends
        change_json(folder / "privacy.json", also=[account])
    rows = read_privacy([entry], results_to_change, published)
    table = csv_columns(rows, "privacy").set_index("unit")
    columns = [*EPSILONS, "noise_multiplier", "audit"]
    assert table.loc["client", columns].tolist() == [1.5, 4.887, 0.8, 1.0, METHOD]
    expected = [2.5, 2.75, 0.25, 7.0, "own, 95 % confidence"]
    assert table.loc["record", columns].tolist() == expected


def test_privacy_table_gives_the_reason_of_an_infinite_epsilon(
    entries, results_to_change, published
):
    reason = "a release without an event: raw norms"
    infinite = {"epsilon_high": "inf", "explanation": reason}
    change_accounts(results_to_change, runs_of(entries[0]), proven=infinite)
    rows = read_privacy(entries[:1], results_to_change, published)
    assert math.isinf(rows["epsilon_proven_high"].item())
    assert reason in rows["reason"].item()
    assert "inf" in csv_text(rows)


@pytest.mark.parametrize("is_another", [False, True])
def test_privacy_table_marks_an_audit_of_another_mechanism(
    entries, results_to_change, published, is_another
):
    note = "of another mechanism than the ledger's"
    change_audit(results_to_change, entries[0], another_mechanism=is_another)
    rows = read_privacy(entries[:1], results_to_change, published)
    text = privacy.listing(rows).markdown("it")
    assert (f" ({note}) |" in text) == is_another
    assert (f"95 % confidence, {note}" in csv_text(rows)) == is_another


def test_privacy_table_names_a_shared_audit_and_refuses_one_of_another_ledger(
    entries, results_to_change, published
):
    runs = results_to_change / "runs"
    entry = next(
        entry for entry in entries if entry[0]["audited_run"] != runs_of(entry)[0]
    )
    audited_run = entry[0]["audited_run"]
    (runs / runs_of(entry)[0] / "audit.json").unlink()
    rows = read_privacy([entry], results_to_change, published)
    shared = f"audit: made for {Path(audited_run).parent}, whose mechanism is the same"
    assert shared in rows["reason"].item()
    ledger = Ledger(runs / audited_run / "ledger.jsonl")
    ledger.append(make_release())
    with pytest.raises(BenchError, match="lines were removed or changed"):
        read_privacy([entry], results_to_change, published)
    change_json(ledger.path.with_name("training.json"), ledger=ledger.chain)
    with pytest.raises(BenchError, match="ledger has 0 releases, but"):
        read_privacy([entry], results_to_change, published)


def test_privacy_figure_draws_each_epsilon_in_its_row(entries, results, published):
    """An infinite ε has a mark of its own, beyond every finite one."""
    table = read_privacy(entries, results, published)
    table["epsilon_claimed"] = 1.0 + table.index
    table.loc[0, "epsilon_proven_high"] = math.inf
    (axes,) = privacy_figure.draw(table, {}).axes
    shown = privacy.rows_of_figure(table)
    lines = {line.get_label(): np.asarray(line.get_xdata()) for line in axes.lines}
    assert list(lines["claimed ε"]) == list(shown["epsilon_claimed"])
    infinite = lines["no finite ε is proven"].astype(float)
    is_infinite = np.isinf(shown["epsilon_proven_high"])
    assert is_infinite.sum() == 1
    assert (np.isfinite(infinite) == is_infinite).all()
    assert infinite[is_infinite] > shown["epsilon_claimed"].max()
