"""The page of a statement: its curves against closed forms, and what it leaves out."""

import math
import re

import numpy as np
import pytest
from ledgers import make_releases
from scipy.special import ndtr, ndtri

from dpsum.accounting.account import account
from dpwatch.__main__ import main
from dpwatch.statement_page import (
    false_negatives,
    largest_advantage,
    proven_points,
    statement_page,
)

DELTA = 1e-5


def points_of(releases):
    points, is_curve = proven_points(account(releases, delta=DELTA), releases)
    assert is_curve
    return points


@pytest.mark.parametrize("z", [0.7, 1.0, 3.0])
def test_curves_of_one_gaussian_equal_its_closed_forms(z):
    """Dong, Roth and Su (2022), eq. 6: FNR = Phi(Phi^-1(1 - FPR) - 1/z), from below.

    The greatest lines of 161 epsilons are less than 0.2 % below it.
    """
    points = points_of(make_releases(4, z=z))
    rates = np.array([1e-3, 0.01, 0.1, 0.5, 0.9])
    exact = ndtr(ndtri(1 - rates) - 1 / z)
    bound = false_negatives(points, rates)
    assert (bound <= exact + 1e-12).all()
    assert bound == pytest.approx(exact, abs=2e-3)
    advantage = 2 * ndtr(0.5 / z) - 1
    assert largest_advantage(points) == pytest.approx(advantage, rel=1e-9)


def test_curve_of_one_point_is_that_of_epsilon_and_delta():
    """At epsilon log 3 and delta 0.1: FNR at 0.1 is 1 - 0.1 - 0.3; advantage 0.55."""
    point = np.array([math.log(3)]), np.array([0.1])
    bound = false_negatives(point, np.array([0.0, 0.1, 0.9]))
    assert bound == pytest.approx([0.9, 0.6, 0.0])
    assert largest_advantage(point) == pytest.approx((3 - 1 + 0.2) / 4)


def test_page_states_numbers_rounded_up():
    """One Gaussian of z = 1: advantage 0.38292, and 9.2356 % found at 1 %."""
    releases = make_releases(4)
    page = statement_page(account(releases, delta=DELTA), releases=releases)
    bounds = re.search(r"at most ([\d.]+) % \(true.*?at most ([\d.]+) % of", page)
    advantage, caught = map(float, bounds.groups())
    assert advantage == 38.3
    assert 9.2356 <= caught <= 9.5
    assert page.count("<svg") == 2
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=|@import|url\(", page)


def test_page_without_ledger_says_that_one_point_is_known():
    page = statement_page(account(make_releases(4), delta=DELTA))
    assert "Only epsilon at one delta is known" in page
    assert page.count("<svg") == 1


def test_page_of_a_schedule_as_run_has_one_point():
    """The noise changed after a loss: a curve of the schedule would not be proven."""
    releases = make_releases(4, follows_loss=True)
    page = statement_page(account(releases, delta=DELTA), releases=releases)
    assert "It does not cover how this noise was chosen." in page
    assert "Only epsilon at one delta is known" in page


def test_page_of_a_release_without_account_has_no_curve():
    releases = make_releases(4, data_dependent_threshold=True, reason="<raw> norms")
    page = statement_page(account(releases, delta=DELTA), releases=releases)
    assert "<svg" not in page
    assert "No finite epsilon is proven" in page
    assert "&lt;raw&gt; norms" in page


def test_command_statement_writes_text_and_page(write_ledger, tmp_path, capsys):
    ledger = write_ledger("a.jsonl")
    page = tmp_path / "page.html"
    options = ["--html", str(page), "--tuning", "rates were tuned on public data"]
    assert main(["statement", ledger, "--delta", "1e-5", *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Rates were tuned on public data." in printed
    assert "epsilon at most" in printed
    text = page.read_text(encoding="utf-8")
    assert "Rates were tuned on public data." in text
    assert text.count("<svg") == 2
