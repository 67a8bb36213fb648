"""The page of supported samplers: equal to the code, and to accounts of real ledgers."""

import importlib.metadata
import inspect
import math
from pathlib import Path

import pytest
from ledgers import COHORTS, correlated_releases, make_releases

from dpsum.accounting import analyses
from dpsum.accounting.account import account
from dpwatch import support

PAGE = Path(__file__).resolve().parents[1] / "docs" / "support.md"
BATCHES = {"clients": 1, "records": 400, "cohort": 100, "rounds": 4, "rate": 0.25}
LEDGERS = {
    ("gaussian", "one-pass"): make_releases(4),
    ("gaussian", "everyone"): make_releases(
        4, sampler={"kind": "everyone", **COHORTS, "cohort": 400, "rate": 1.0}
    ),
    ("gaussian", "poisson"): make_releases(4, sampler={"kind": "poisson", **COHORTS}),
    ("gaussian", "poisson-lots"): make_releases(
        4, unit="record", sampler={"kind": "poisson-lots", **BATCHES}
    ),
    ("gaussian", "fixed-size"): make_releases(
        4, sampler={"kind": "fixed-size", **COHORTS}
    ),
    ("gaussian", "balls-and-bins"): make_releases(
        4, sampler={"kind": "balls-and-bins", **COHORTS}
    ),
    ("correlated-gaussian", "one-pass"): correlated_releases(),
}


def row_of(pair):
    rows = {(row.noise, row.sampler): row for row in support.own_support()}
    return rows[pair]


def rows_of(library):
    """Return the page's rows of a library: sampler, accountant, adjacency and ends."""
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
    ]
    return [row[1:] for row in cells if row and row[0].startswith(library)]


def test_page_has_the_tables_of_the_code():
    pytest.importorskip("dp_accounting")
    page = PAGE.read_text(encoding="utf-8")
    assert f"\n\n{support.dpsum_table()}\n\n" in page
    assert f"\n\n{support.dp_accounting_table()}\n\n" in page
    version = importlib.metadata.version("dp-accounting")
    assert f"The accountants of dp_accounting {version} were asked" in page


def test_support_has_every_pair_of_the_registry():
    rows = [(row.noise, row.sampler) for row in support.own_support()]
    assert rows == analyses.pairs()


@pytest.mark.parametrize("pair", LEDGERS)
def test_support_equals_the_account_of_a_ledger(pair):
    """Exact: equal ends. Both ends: neither 0, infinite nor equal."""
    profiles = account(LEDGERS[pair], delta=1e-5).profiles
    row = row_of(pair)
    for column, profile in (("zero_out", "proven"), ("replace_one", "replace_one")):
        entry = profiles[profile]
        ends = getattr(row, column)
        assert 0 < entry.epsilon_low <= entry.epsilon_high < math.inf
        assert (ends == support.EXACT) == (entry.epsilon_low == entry.epsilon_high)
    counts_two = "puts another in its place" in profiles["replace_one"].explanation
    assert (row.replace_one == support.HIGH) == counts_two


def test_secret_cohorts_are_those_that_no_observer_may_know():
    secret = {row.sampler for row in support.own_support() if row.secret == "yes"}
    assert {"poisson", "balls-and-bins", "fixed-size", "fixed-draws"} <= secret
    assert not secret & {"one-pass", "everyone", "local", "shuffled-epochs"}


def test_rows_of_opacus_are_its_accountants():
    accountants = pytest.importorskip("opacus.accountants")
    names = {
        name
        for name, value in vars(accountants).items()
        if inspect.isclass(value) and name.endswith("Accountant")
    }
    stated = {accountant for _, accountant, _, _ in rows_of("Opacus")}
    assert names - {"IAccountant"} == stated - {"the same three"}


def test_rows_of_jax_privacy_are_its_batch_selections():
    selection = pytest.importorskip("jax_privacy.batch_selection")
    base = selection.BatchSelectionStrategy
    names = {
        name
        for name, value in vars(selection).items()
        if inspect.isclass(value) and issubclass(value, base) and value is not base
    }
    stated = " ".join(sampler for sampler, _, _, _ in rows_of("jax_privacy"))
    assert all(name in stated for name in names)
