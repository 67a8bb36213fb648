"""Statements of accounts for people: each part, and ends that are rounded outwards."""

import math
import re

import pytest

import dpsum
from dpsum.accounting.account import Account, account
from dpsum.accounting.profiles import Entry
from dpsum.accounting.statement import rounded_outwards, statement, statement_parts
from tests.dpsum.helpers import make_releases

POISSON = {"kind": "poisson", "clients": 400, "cohort": 100, "rounds": 4, "rate": 0.25}
ONE_PASS = {"kind": "one-pass", "clients": 8, "cohort": 2, "rounds": 4, "rate": 0.25}
HEADINGS = [
    "Guarantee",
    "Unit and neighbours",
    "Observer",
    "Delta",
    "Sampler and accountant",
    "Claim",
    "Tuning",
    "Not covered",
]


def make_entry(**changes):
    values = {
        "epsilon_low": 1.0,
        "epsilon_high": 2.0,
        "delta": 1e-5,
        "unit": "client",
        "adjacency": "zero-out",
        "observer": "everyone",
        "status": "proved",
        "explanation": "one Gaussian",
    }
    return Entry(**values | changes)


def make_account(proven=None, **changes):
    values = {
        "delta": 1e-5,
        "unit": "client",
        "rounds": 3,
        "noise_multiplier": 1.0,
        "sampler": POISSON,
        "profiles": {"proven": proven or make_entry()},
        "reasons": {"claimed": "the method's paper claims no epsilon"},
    }
    return Account(**values | changes)


def parts_of(*arguments, **options):
    return dict(statement_parts(*arguments, **options))


def test_statement_has_all_parts_of_a_ledger():
    """Four Gaussian rounds of z = 2 over one pass are one Gaussian of z = 2.

    Its epsilon at delta 1e-6 is 2.25408 by mpmath, after the analytic Gaussian mechanism
    (Balle and Wang 2018); replaced, that of z = 1: 4.88655.
    """
    releases = make_releases(4, z=2.0, sampler=ONE_PASS)
    result = account(releases, delta=1e-6)
    parts = parts_of(result)
    assert list(parts) == HEADINGS
    assert "epsilon at most 2.255 at delta 1e-06" in parts["Guarantee"]
    assert "proven for the mechanism" in parts["Guarantee"]
    neighbours = parts["Unit and neighbours"]
    assert "one client is replaced by zero" in neighbours
    assert "(replace-one adjacency), epsilon is at most 4.887" in neighbours
    assert "A person with several clients has less protection." in neighbours
    assert "Nobody" not in parts["Observer"]
    assert "with 8 clients it is 8e-06 times" in parts["Delta"]
    accounting = parts["Sampler and accountant"]
    assert "one-pass (clients 8, cohort 2" in accounting
    assert f"The accountant, of dpsum {dpsum.__version__}, assumes: " in accounting
    assert "not of tuning" in parts["Tuning"]
    assert statement(result) == " ".join(parts.values())


def test_statement_of_a_secret_sampler_says_so():
    parts = parts_of(account(make_releases(4, sampler=POISSON), delta=1e-6))
    assert "Nobody but the party that draws the cohorts" in parts["Observer"]
    assert "the exact epsilon is at least" in parts["Guarantee"]


def test_statement_of_a_release_without_account_has_no_number():
    lines = make_releases(
        2, sampler=ONE_PASS, data_dependent_threshold=True, reason="raw norms"
    )
    text = statement(account(lines, delta=1e-6))
    assert "No finite epsilon is proven for a client at delta 1e-06" in text
    assert "raw norms" in text
    assert not re.search(r"epsilon (is )?at most", text)
    assert "differentially private" not in text


def test_statement_of_a_schedule_as_run_says_what_is_not_covered():
    text = statement(make_account(make_entry(status="as run")))
    assert "It does not cover how this noise was chosen." in text
    assert "differentially private" not in text
    assert "proven for the mechanism that the ledger names" not in text


def test_statement_of_a_void_claim_says_so():
    claimed = make_entry(status="void", epsilon_high=0.5, epsilon_low=0.5)
    profiles = {"proven": make_entry(), "claimed": claimed}
    claim = parts_of(make_account(profiles=profiles))["Claim"]
    assert "epsilon 0.5" in claim
    assert "not one of the mechanism that ran" in claim


def test_statement_without_proven_epsilon_gives_the_reason():
    result = make_account(profiles={}, reasons={"proven": "the sampler is unknown"})
    text = statement(result)
    assert "No epsilon is proven for a client: the sampler is unknown." in text


def test_statement_of_nothing_private():
    text = statement(account([], delta=1e-5))
    assert text.startswith("No release claims privacy")


def test_statement_takes_remarks_and_has_a_paragraph_for_each_observer():
    second = make_account(make_entry(observer="server"))
    result = make_account(also=(second,))
    text = statement(
        result,
        tuning="rates were tuned on public data",
        delta_reason="it is below 1/N",
        audit="no attack showed more than 0.5",
    )
    paragraphs = text.split("\n\n")
    assert len(paragraphs) == 2
    for paragraph in paragraphs:
        assert "Rates were tuned on public data." in paragraph
        assert "It is below 1/N." in paragraph
        assert "No attack showed more than 0.5." in paragraph
    assert "the server, which sees each noisy sum" in paragraphs[1]


def test_statement_repeats_notices_and_objections_of_audits():
    entry = make_entry(audit="refuted: epsilon is at least 3")
    text = statement(make_account(entry, notices=("delta is large",)))
    assert "An audit objects: refuted: epsilon is at least 3." in text
    assert text.endswith("Delta is large.")


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (2.25441, "2.254", "2.255"),
        (1.0, "1", "1"),
        (0.00012345, "0.0001234", "0.0001235"),
        (9.99961, "9.999", "10"),
        (0.0, "0", "0"),
        (math.inf, "infinite", "infinite"),
    ],
)
def test_rounded_outwards_never_lies_inside(value, low, high):
    assert rounded_outwards(value, up=False) == low
    assert rounded_outwards(value, up=True) == high
