"""An audit above the proven ε: what is said of it, in every place that shows that
ε, and how often by chance.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfedbench.audit.findings import LEVEL, mark, read_audits, with_excess
from dpfedbench.audit.report import _entry
from dpfedbench.experiments.plan import Plan
from dpfedbench.notebook import _mark_account
from dpfedbench.results import page, privacy, privacy_figure, tables
from dpfedbench.results.configurations import read_configurations
from dpfedbench.results.items import Item
from dpfedbench.results.summary import each_row
from dpfedbench.results.table_columns import csv_columns
from dpsum.accounting.account import Account
from dpsum.audit.bounds import Bound
from dpsum.ledger import Release

from .conftest import Cells, private_configurations, runs_of, with_accounts
from .test_answer import PUBLISHED, listing, row, tidy

PROVED: dict[str, Any] = {"epsilon": 1.5, "status": "proved"}
AUDIT: dict[str, Any] = {"bound": 1.6, "proven_at_audit": 1.5, "chance": 0.03}
BY_CHANCE = "audited above what is proven, as in 3 % of audits of correct code"
LEAK = "refuted, audited above what is proven, as in 1e-10 % of audits of correct code"


@pytest.mark.parametrize(
    ("audit", "count", "stands"),
    [
        ({"bound": 1.5}, 1, "proved"),
        ({}, 1, f"proved, {BY_CHANCE}"),
        ({"chance": 1e-12}, 92, LEAK),
        # One of 92 is as far above with a chance of 4.6 %, one of nine with less than
        # half a percent.
        (
            {"chance": 5e-4},
            92,
            "proved, audited above what is proven, as in 0.05 % of audits of correct code",
        ),
        (
            {"chance": 5e-4},
            9,
            "refuted, audited above what is proven, as in 0.05 % of audits of correct code",
        ),
        # Of its own seed's account, where another seed's is larger.
        ({"bound": 1.45, "proven_at_audit": 1.4}, 1, f"proved, {BY_CHANCE}"),
    ],
)
def test_mark_states_what_an_audit_says_against_an_epsilon(
    audit: dict[str, Any], count: int, stands: str
) -> None:
    assert with_excess(*mark(**PROVED | AUDIT | audit, count=count)) == stands


def test_audit_without_a_chance_errs_as_often_as_its_confidence_says(
    plan: Plan, results: Path, published: Path, tmp_path: Path
) -> None:
    entry = private_configurations(plan, "dp-fedmeta")[0]
    for run in {*runs_of(entry), entry[0]["audited_run"]}:
        shutil.copytree(results / "runs" / run, tmp_path / "runs" / run)
    audited(tmp_path, entry, epsilon=9.0)  # its confidence is 95 %
    row = next(
        each_row(
            privacy.explain(read_configurations(entry, tmp_path), tmp_path, published)
        )
    )
    assert (row.proven_status, row.proven_excess) == (
        "proved",
        "audited above what is proven, as in 5 % of audits of correct code",
    )


@pytest.mark.parametrize("status", ["void", "none"])
def test_mark_leaves_an_epsilon_without_claim(status: str) -> None:
    marked = mark(1.5, status, **AUDIT | {"chance": 1e-12}, count=1)
    assert marked == (status, "")


@pytest.mark.parametrize("count", [1, 10, 92])
def test_mark_refutes_correct_code_in_one_table_of_a_hundred(count: int) -> None:
    """Chances of right code are uniform: 3,000 tables, of which at most 30 on average;
    more than 53 has one of 1e-4.
    """
    chances = np.random.default_rng(0).random((3000, count))
    refuted = [
        any(
            mark(**PROVED, **AUDIT | {"chance": float(chance)}, count=count)[0]
            == "refuted"
            for chance in table
        )
        for table in chances[chances.min(axis=1) < 0.05]
    ]
    assert (0 if count == 1 else 8) <= sum(refuted) <= 53 and LEVEL == 0.01


def test_audit_entry_of_several_mechanisms_has_the_chance_of_all() -> None:
    """`audit` multiplies it by how many there are; a bound that has no chance of its
    own errs as often as it states.
    """
    release = Release(
        round=0,
        name="sum",
        mechanism="gaussian",
        unit="client",
        adjacency="zero-out",
        observer="everyone",
        noise_multiplier=1.0,
        threshold=1.0,
        sensitivity=1.0,
        noise_std=1.0,
        dimension=1,
        denominator=1.0,
        sampler={"kind": "one-pass", "clients": 4, "cohort": 2, "rounds": 2},
        noise_stream="0",
        reason="",
        counted_by_paper=True,
        data_dependent_threshold=False,
    )
    bound = Bound(name="Clopper-Pearson", epsilon=2.0, assumes="", numbers={})
    audit_entry = _entry([bound], release, 1.5, delta=1e-6, confidence=0.975)
    assert audit_entry["chance"] == pytest.approx(0.025)
    assert audit_entry["status"].startswith(
        "above what is proven (1.5): a leak or chance; 2.5 % of audits"
    )


def audited(results: Path, entry: Cells, **values: Any) -> None:
    path = results / "runs" / entry[0]["audited_run"] / "audit.json"
    path.write_text(
        json.dumps(json.loads(path.read_text("utf-8")) | values), encoding="utf-8"
    )


@pytest.fixture
def two(plan: Plan, results: Path, tmp_path: Path) -> tuple[Path, list[Cells]]:
    """Results in which one configuration of Table 2 is above by chance, and all of
    DP-AGR's by a leak.
    """
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    entries = [
        entry
        for entry in private_configurations(plan, "dp-fedmeta")
        if any(cell["item"] == "table2" for cell in entry)
    ]
    leak, chance = (
        next(entry for entry in entries if entry[0]["method"] == name)
        for name in ("dp-agr", "dp-agrlr")
    )
    assert leak[0]["audited_run"] != chance[0]["audited_run"]
    audited(folder, leak, epsilon=9.0, chance=1e-12)
    audited(folder, chance, epsilon=5.0, chance=0.03)
    return folder, entries


def test_privacy_table_marks_every_epsilon_below_its_audit(
    two: tuple[Path, list[Cells]], published: Path
) -> None:
    results, entries = two
    cells = [cell for entry in entries for cell in entry]
    rows = privacy.explain(read_configurations(cells, results), results, published)
    table = csv_columns(rows, "privacy")
    exceeded = table[table["epsilon_audited"] > table["epsilon_proven_high"]]
    assert set(exceeded["method"]) == {"dp-agr", "dp-agrlr"}
    assert not (exceeded[["proven_status", "claimed_status"]] == "proved").any().any()
    assert set(exceeded.loc[exceeded["method"] == "dp-agr", "proven_status"]) == {LEAK}
    assert set(exceeded.loc[exceeded["method"] == "dp-agrlr", "proven_status"]) == {
        f"proved, {BY_CHANCE}"
    }
    rest = table.drop(exceeded.index)
    assert set(rest["proven_status"]) == {"proved"}
    text = privacy.listing(rows).markdown("it")
    assert f"4.89 ({LEAK})" in text and f"4.89 (proved, {BY_CHANCE})" in text
    figure = privacy_figure.draw(rows, {})
    drawn = [
        label.get_text() for axes in figure.axes for label in axes.get_yticklabels()
    ]
    assert any("refuted by its audit" in label for label in drawn) and any(
        "audited above" in label for label in drawn
    )


def test_paper_table_and_page_mark_an_epsilon_below_its_audit(
    two: tuple[Path, list[Cells]],
    described: Callable[..., Item],
    published: Path,
    site: Any,
) -> None:
    results, entries = two
    item = described("table2")
    read = tables.read(item, results, published, audit_count=12)
    fields = tables.listing(read).rows
    shown = {
        row.method: line["proven ε"].line
        for row, line in zip(each_row(read.rows), fields, strict=True)
    }
    assert (
        shown["dp-agr"] == f"4.89 ({LEAK})"
        and shown["dp-agrlr"] == f"4.89 (proved, {BY_CHANCE})"
    )
    assert shown["maml"] == "–" and shown["dp-reptile"] == "4.89"
    # The file of the table does not wait for audits, and says where they are.
    where = "the table of privacy and the page say whether an audit exceeds it."
    alone = tables.listing(tables.read(item, results, published)).markdown("it")
    assert where in alone and LEAK not in alone
    shutil.copytree(site.folder / "tables", results / "tables")
    shutil.copy(site.folder / "provenance.json", results)
    products = [product for product in site.items if product.item == item] + [
        product for product in site.items if "answer" in product.path
    ]
    html = page.make(
        products,
        **site.arguments
        | {
            "cells": [cell for entry in entries for cell in entry],
            "results": results,
            "folder": results,
        },
    )
    assert (
        html.count(LEAK) >= 3
    )  # the table's row, the configuration's line among the runs, the answer
    assert html.count(BY_CHANCE) >= 2


def test_answer_takes_no_refuted_repair_and_marks_an_excess() -> None:
    good = row("good", 70, (1.4, 1.5))
    refuted = row("better", 84, (1.4, 1.5), proven_status="refuted")
    assert tidy([PUBLISHED, good, refuted])["repair_variant"].tolist() == ["good"]
    exceeded = row("better", 84, (1.4, 1.5), proven_excess=BY_CHANCE)
    rows = [PUBLISHED, good, exceeded]
    assert tidy(rows)["repair_variant"].tolist() == ["better"]
    assert tidy(rows)["repair_proven_status"].tolist() == [f"proved, {BY_CHANCE}"]
    (fields,) = listing(rows).rows
    assert fields["best valid repair"].note == f"proven ε = 1.5, {BY_CHANCE}"
    excess = LEAK.removeprefix("refuted, ")
    published = {**PUBLISHED, "proven_status": "refuted", "proven_excess": excess}
    assert listing([published]).rows[0]["proven ε"].note == LEAK


def test_account_of_an_opened_run_is_marked_in_every_profile(
    plan: Plan, results: Path, tmp_path: Path
) -> None:
    """At another delta too, where it is set against what is proven at the audit's own."""
    shutil.copytree(results, tmp_path / "results")
    entry = next(
        entry
        for entry in private_configurations(plan, "dp-fedmeta")
        if entry[0]["method"] == "dp-agr"
    )
    with_accounts(tmp_path / "results", runs_of(entry), claimed={"status": "void"})
    audited(
        tmp_path / "results", entry, epsilon=9.0, epsilon_proven=4.887, chance=1e-12
    )
    run = tmp_path / "results" / "runs" / entry[0]["audited_run"]
    account = Account.from_json(json.loads((run / "privacy.json").read_text()))
    marked = _mark_account(account, read_audits(run / "audit.json"))
    assert {
        name: entry_of_profile.status
        for name, entry_of_profile in marked.profiles.items()
    } == {
        "claimed": "void",
        "proven": LEAK,
    }
    assert (
        marked.profiles["proven"].epsilon_high
        == account.profiles["proven"].epsilon_high
    )
    assert _mark_account(account, {}) == account and math.isfinite(
        marked.profiles["proven"].epsilon_high
    )
