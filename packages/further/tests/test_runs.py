"""Runs of the package's methods: refusals, accounts, audits that are shared, times."""

from pathlib import Path

import pytest
import yaml

from dpfedbench.experiments.plan import audited_as
from dploss.gaussian import gaussian_epsilon
from tests.dpfedbench.papers.test_refusals import run_of
from tests.dpfedbench.test_experiments import planned
from tests.dpfedbench.test_messages import error_of
from tests.dpfedbench.training.conftest import make_config
from tests.dpfedbench.training.test_engine import check_times
from tests.dpfedbench.training.test_run_accounts import check_account, passes

MESSAGES = yaml.safe_load(
    Path(__file__).with_name("messages.yaml").read_text(encoding="utf-8")
)
SGD = {"optimizer": {"kind": "sgd", "momentum": 0.5}}


@pytest.mark.parametrize("case", MESSAGES, ids=lambda case: case["method"])
def test_message_is_that_of_the_file(case):
    assert error_of(run_of, case["method"], case["change"]) == case["message"]


def test_correlated_cells_of_the_frontier_have_the_proven_budget_of_their_place():
    """The noise is calibrated to it."""
    plan = planned("full")
    cells = [
        cell
        for cell in plan.items["dp-fedmeta", "frontier"].cells
        if cell.series == "correlated"
    ]
    assert [cell.x for cell in cells] == [0.5, 1.5, 8]
    for cell in cells:
        budget = cell.runs[0].budget
        assert (budget.epsilon, budget.delta) == (cell.x, 1e-6)
        assert (budget.profile, cell.runs[0].noise.multiplier) == ("proven", None)


@pytest.mark.parametrize(
    "change", [{"server": SGD}, {"noise": {"factorisation": "square-root"}}]
)
def test_audit_of_another_encoder_is_not_shared(change):
    run = {"method": "dp-agr-ftrl"}
    assert audited_as(make_config(run)) != audited_as(make_config(run, change))


def test_account_of_correlated_noise_in_several_passes(federation, tmp_path):
    """The encoder is divided by how far three participations move it."""
    run = make_config(passes("min-separation", "dp-agr-ftrl"))
    epsilon = gaussian_epsilon(2.0, 1e-3)
    check_account(run, federation, tmp_path, "client", {"proven": epsilon})


def test_times_of_a_secure_sum_are_not_written(
    federation, tmp_path, monkeypatch, capsys
):
    """The cohort is public, but how often each client draws its rounding is not."""
    run = make_config({"method": "dp-agr-secagg", "noise": {"multiplier": 2.0}})
    check_times(run, federation, tmp_path, monkeypatch, capsys, secret=True)
