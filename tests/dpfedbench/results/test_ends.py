"""Fixtures in which both ends of ε, the claim, and two units' audits differ: each place
shows the right one.
"""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.experiments.plan import Plan
from dpfedbench.results import formats, privacy, tables
from dpfedbench.results.configurations import read_configurations
from dpfedbench.results.summary import each_row
from dpfedbench.results.table_columns import csv_columns
from tests.dpfedbench.results.conftest import (
    Cells,
    Site,
    private_configurations,
    runs_of,
    with_accounts,
)

CLAIMED, PROVEN = (
    {"epsilon_low": 1.25, "epsilon_high": 2.0},
    {"epsilon_low": 3.0, "epsilon_high": 5.0},
)


@pytest.fixture(scope="module")
def entry(plan: Plan) -> Cells:
    """DP-AGR as it is in Table 2."""
    return next(
        cells
        for cells in private_configurations(plan)
        if cells[0]["method"] == "dp-agr"
        and "table2" in {cell["item"] for cell in cells}
    )


@pytest.fixture(scope="module")
def changed(site: Site, entry: Cells, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's results folder, where that account has two ends for either profile."""
    folder = tmp_path_factory.mktemp("ends") / "results"
    shutil.copytree(site.folder, folder)
    with_accounts(folder, runs_of(entry), claimed=CLAIMED, proven=PROVEN)
    return folder


def test_table_csv_has_high_ends_and_its_listing_both(
    site: Site, entry: Cells, changed: Path
) -> None:
    (item,) = [
        product.item
        for product in site.items
        if product.item is not None and product.item.kind == "table"
    ]
    table = tables.read(item, changed, site.arguments["published"])
    at = next(
        at
        for at, row in enumerate(each_row(table.rows))
        if set(row.runs) == set(runs_of(entry))
    )
    row = list(csv.DictReader(io.StringIO(formats.csv_text(tables.tidy(table)))))[at]
    assert (row["epsilon_claimed"], row["epsilon_proven"]) == ("2", "5")
    shown = tables.listing(table).rows[at]
    assert (shown["claimed ε"].text, shown["proven ε"].text) == (
        "1.25 to 2",
        "3 to 5",
    )
    assert (shown["claimed ε"].key, shown["proven ε"].key) == (
        2.0,
        5.0,
    )  # what the page sorts by


def test_privacy_table_has_both_ends(site: Site, entry: Cells, changed: Path) -> None:
    row = csv_columns(
        privacy.explain(
            read_configurations(entry, changed), changed, site.arguments["published"]
        ),
        "privacy",
    ).iloc[0]
    ends = (
        "epsilon_claimed",
        "epsilon_proven_low",
        "epsilon_proven_high",
        "epsilon_audited",
    )
    assert tuple(row[name] for name in ends) == (2.0, 3.0, 5.0, 0.8)
    assert row["ci_low"] < row["accuracy"] < row["ci_high"] and row["seeds"] == 3


def test_privacy_table_has_account_and_audit_of_each_unit(
    plan: Plan, results: Path, published: Path, tmp_path: Path
) -> None:
    entry = next(
        cells
        for cells in private_configurations(plan)
        if cells[0]["method"] == "dp-agrlr"
    )
    for folder in {*runs_of(entry), entry[0]["audited_run"]}:
        shutil.copytree(results / "runs" / folder, tmp_path / "runs" / folder)
    for folder in {*runs_of(entry), entry[0]["audited_run"]}:
        edit(
            tmp_path / "runs" / folder / "audit.json",
            "also",
            epsilon=0.25,
            method="own",
        )
        account = tmp_path / "runs" / folder / "privacy.json"
        content = json.loads(account.read_text(encoding="utf-8"))
        content["also"][0]["noise_multiplier"] = 7.0 + int(
            folder[-1]
        )  # the least noise of all seeds is told
        for name, epsilon in (("claimed", 2.5), ("proven", 2.75)):
            content["also"][0]["profiles"][name] |= {
                "epsilon_low": epsilon,
                "epsilon_high": epsilon,
            }
        account.write_text(json.dumps(content), encoding="utf-8")
    rows = csv_columns(
        privacy.explain(read_configurations(entry, tmp_path), tmp_path, published),
        "privacy",
    ).set_index("unit")
    columns = [
        "epsilon_claimed",
        "epsilon_proven_high",
        "epsilon_audited",
        "noise_multiplier",
    ]
    assert rows.loc["client", columns].tolist() == [1.5, 4.887, 0.8, 1.0]
    assert rows.loc["record", columns].tolist() == [2.5, 2.75, 0.25, 7.0]
    assert rows["audit"].tolist() == [
        "f-DP by ranks, 95 % confidence",
        "own, 95 % confidence",
    ]


def edit(path: Path, key: str, **given: Any) -> None:
    """Change values of the first of a JSON file's list."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content[key][0] |= given
    path.write_text(json.dumps(content), encoding="utf-8")
