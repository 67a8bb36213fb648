"""An audit above the proven ε: what each place that shows the ε says, and how often."""

import shutil

import numpy as np
import pytest

from dpfedbench.audit.findings import LEVEL, mark, read_audits, with_excess
from dpfedbench.audit.report import _entry
from dpfedbench.files import read_json
from dpfedbench.notebook import _mark_account
from dpfedbench.results import answer, page, privacy, tables
from dpfedbench.results.summary import each_row
from dpfedbench.results.table_columns import csv_columns
from dpsum.accounting.account import Account
from dpsum.audit.bounds import Bound
from tests.dpsum.helpers import make_release

from .conftest import change_accounts, change_audit, runs_of
from .test_answer import PUBLISHED, read, row
from .test_privacy import read_privacy

PROVED = {"epsilon": 1.5, "status": "proved"}
AUDIT = {"bound": 1.6, "proven_at_audit": 1.5, "chance": 0.03}
EXCESS = "audited above what is proven, as in {} % of audits of correct code"
BY_CHANCE = EXCESS.format(3)
LEAK = f"refuted, {EXCESS.format('1e-10')}"


@pytest.mark.parametrize(
    ("audit", "count", "stands"),
    [
        ({"bound": 1.5}, 1, "proved"),
        ({}, 1, f"proved, {BY_CHANCE}"),
        ({"chance": 1e-12}, 92, LEAK),
        # One of 92 is as far above with a chance of 4.6 %, one of nine with less than
        # half a percent.
        ({"chance": 5e-4}, 92, f"proved, {EXCESS.format(0.05)}"),
        ({"chance": 5e-4}, 9, f"refuted, {EXCESS.format(0.05)}"),
        # Of its own seed's account, where another seed's is larger.
        ({"bound": 1.45, "proven_at_audit": 1.4}, 1, f"proved, {BY_CHANCE}"),
        ({"status": "void", "chance": 1e-12}, 1, "void"),
    ],
)
def test_mark_states_what_an_audit_says_against_an_epsilon(audit, count, stands):
    assert with_excess(*mark(**PROVED | AUDIT | audit, count=count)) == stands


@pytest.mark.parametrize("count", [1, 10, 92])
def test_mark_refutes_correct_code_in_one_table_of_a_hundred(count):
    """Chances of right code are uniform: 3,000 tables, of which at most 30 on average;
    more than 53 has one of 1e-4.
    """
    chances = np.random.default_rng(0).random((3000, count))
    refuted = 0
    for table in chances[chances.min(axis=1) < 0.05]:
        audits = [PROVED | AUDIT | {"chance": float(chance)} for chance in table]
        statuses = [mark(**audit, count=count)[0] for audit in audits]
        refuted += "refuted" in statuses
    assert LEVEL == 0.01
    assert (0 if count == 1 else 8) <= refuted <= 53


def test_audit_entry_of_several_mechanisms_has_the_chance_of_all():
    """`audit` multiplies it by how many there are; a bound that has no chance of its
    own errs as often as it states.
    """
    bound = Bound(name="Clopper-Pearson", epsilon=2.0, assumes="", numbers={})
    entry = _entry([bound], make_release(), 1.5, delta=1e-6, confidence=0.975)
    assert entry["chance"] == pytest.approx(0.025)
    assert entry["status"].startswith(
        "above what is proven (1.5): a leak or chance; 2.5 % of audits"
    )


@pytest.fixture
def in_table(entries):
    """The private configurations of Table 2."""
    return [entry for entry in entries if "table2" in {cell["item"] for cell in entry}]


def of_method(entries, method):
    return next(entry for entry in entries if entry[0]["method"] == method)


@pytest.fixture
def exceeded(in_table, results_to_change):
    """Results in which DP-AGR is above by a leak, and DP-AGRLR by chance."""
    leak = {"epsilon": 9.0, "epsilon_proven": 4.887, "chance": 1e-12}
    change_audit(results_to_change, of_method(in_table, "dp-agr"), **leak)
    by_chance = {"epsilon": 5.0, "chance": 0.03}
    change_audit(results_to_change, of_method(in_table, "dp-agrlr"), **by_chance)
    return results_to_change


def test_audit_without_a_chance_errs_as_often_as_its_confidence_says(
    in_table, results_to_change, published
):
    entry = of_method(in_table, "dp-agr")
    change_audit(results_to_change, entry, epsilon=9.0)
    row = next(each_row(read_privacy([entry], results_to_change, published)))
    assert (row.proven_status, row.proven_excess) == ("proved", EXCESS.format(5))


def test_privacy_table_marks_every_epsilon_below_its_audit(
    exceeded, in_table, published
):
    rows = read_privacy(in_table, exceeded, published)
    table = csv_columns(rows, "privacy")
    is_above = table["epsilon_audited"] > table["epsilon_proven_high"]
    exceeding = table[is_above]
    assert set(exceeding["method"]) == {"dp-agr", "dp-agrlr"}
    assert not (exceeding[["proven_status", "claimed_status"]] == "proved").any().any()
    statuses = {"dp-agr": LEAK, "dp-agrlr": f"proved, {BY_CHANCE}"}
    assert (exceeding["proven_status"] == exceeding["method"].map(statuses)).all()
    assert set(table[~is_above]["proven_status"]) == {"proved"}
    text = privacy.listing(rows).markdown("it")
    assert all(f"4.89 ({status})" in text for status in statuses.values())


def test_paper_table_and_page_mark_an_epsilon_below_its_audit(
    exceeded, in_table, described, published, site
):
    item = described("table2")
    table = tables.read(item, exceeded, published, audit_count=12)
    texts = [fields["proven ε"].line for fields in tables.listing(table).rows]
    shown = dict(zip(table.rows["method"], texts, strict=True))
    assert shown["dp-agr"] == f"4.89 ({LEAK})"
    assert shown["dp-agrlr"] == f"4.89 (proved, {BY_CHANCE})"
    assert (shown["maml"], shown["dp-reptile"]) == ("–", "4.89")
    # The file of the table does not wait for audits, and says where they are.
    alone = tables.listing(tables.read(item, exceeded, published)).markdown("it")
    assert "the page say whether an audit exceeds it." in alone
    assert LEAK not in alone
    shutil.copytree(site.folder / "tables", exceeded / "tables")
    cells = [cell for entry in in_table for cell in entry]
    inputs = {"cells": cells, "results": exceeded, "folder": exceeded}
    html = page.make(site.products, **site.arguments | inputs)
    in_tables, _, in_configurations = html.rpartition('id="all-configurations"')
    for part in (in_tables, in_configurations):
        assert LEAK in part
        assert BY_CHANCE in part


def test_answer_takes_no_refuted_repair_and_marks_an_excess():
    good = row("good", 70, (1.4, 1.5))
    refuted = row("better", 84, (1.4, 1.5), proven_status="refuted")
    assert read([PUBLISHED, good, refuted])["repair_variant"].tolist() == ["good"]
    exceeded = row("better", 84, (1.4, 1.5), proven_excess=BY_CHANCE)
    table = read([PUBLISHED, good, exceeded])
    (record,) = csv_columns(table, "answer").to_dict("records")
    assert record["repair_variant"] == "better"
    assert record["repair_proven_status"] == f"proved, {BY_CHANCE}"
    (fields,) = answer.listing(table, {}).rows
    assert fields["best valid repair"].note == f"proven ε = 1.5, {BY_CHANCE}"
    excess = LEAK.removeprefix("refuted, ")
    published = PUBLISHED | {"proven_status": "refuted", "proven_excess": excess}
    assert answer.listing(read([published]), {}).rows[0]["proven ε"].note == LEAK


def test_account_of_an_opened_run_is_marked_in_every_profile(exceeded, in_table):
    """A void claim stays void, and no number changes."""
    entry = of_method(in_table, "dp-agr")
    change_accounts(exceeded, runs_of(entry), claimed={"status": "void"})
    run = exceeded / "runs" / entry[0]["audited_run"]
    account = Account.from_json(read_json(run / "privacy.json"))
    marked = _mark_account(account, read_audits(run / "audit.json"))
    statuses = {name: profile.status for name, profile in marked.profiles.items()}
    assert statuses == {"claimed": "void", "proven": LEAK}
    assert marked.profiles["proven"].epsilon_high == 4.887
    assert _mark_account(account, {}) == account
