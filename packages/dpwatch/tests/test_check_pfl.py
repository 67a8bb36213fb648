"""`dpwatch check` of simulations with pfl-research: right ones, and faults."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("pfl")

from checked_scripts import PITFALLS

from dploss.gaussian import gaussian_epsilon
from dpwatch.check.command import check


def check_pfl(tmp_path, monkeypatch, noise_scale, sampler, **settings):
    """Check a simulation of pfl; return its report and its releases [rounds, d]."""
    monkeypatch.chdir(tmp_path)
    script = PITFALLS / "pfl" / "right.py"
    command = [sys.executable, str(script), noise_scale, sampler]
    settings = {"audit_calls": 0, "metrics": "kept"} | settings
    report = check(command, settings=settings)
    assert report["exit_code"] == 0
    watched = np.load("released.npy")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert np.array_equal(watched, np.load("released.npy"))
    return report


def test_check_watches_a_pfl_simulation(tmp_path, monkeypatch):
    """Four rounds of all users at z = 4 are one Gaussian of z = 2."""
    report = check_pfl(tmp_path, monkeypatch, "1.0", "minimize_reuse")
    assert (report["verdict"], report["findings"]) == ("proven", []), report["why"]
    profiles = report["watched"][0]["account"]["profiles"]
    expected = gaussian_epsilon(2.0, 1e-5)
    assert profiles["proven"]["epsilon_high"] == pytest.approx(expected, rel=1e-9)
    assert report["claims"][0]["epsilon"] == pytest.approx(expected, abs=1e-2)


def test_check_names_noise_that_pfl_did_not_add(tmp_path, monkeypatch):
    """A tenth of the accountant's noise: one Gaussian of z = 0.2."""
    report = check_pfl(tmp_path, monkeypatch, "0.1", "minimize_reuse")
    assert report["verdict"] == "not as claimed"
    low = report["watched"][0]["account"]["profiles"]["proven"]["epsilon_low"]
    assert low == pytest.approx(gaussian_epsilon(0.2, 1e-5), rel=1e-6)
    assert "of 10 times the noise that was added" in report["why"]


def test_check_accounts_for_the_random_sampler_of_pfl(tmp_path, monkeypatch):
    """Its analysis is dpwatch's own, and the check has to load it."""
    report = check_pfl(tmp_path, monkeypatch, "1.0", "random")
    training = report["watched"][0]
    assert training["account"]["profiles"]["proven"]["status"] == "proved"
    assert "The sampler is fixed-draws" in training["statement"]


def test_check_reports_an_account_that_cannot_be_computed(tmp_path, monkeypatch):
    """A tenth of the noise: the analysis of `random` would need too wide a window."""
    report = check_pfl(tmp_path, monkeypatch, "0.1", "random")
    assert report["verdict"] == "nothing proven"
    assert report["watched"][0]["releases"] == 4
    assert "window" in report["watched"][0]["no_account"]


def test_check_refuses_metrics_of_pfl_that_are_released(tmp_path, monkeypatch):
    report = check_pfl(
        tmp_path, monkeypatch, "1.0", "minimize_reuse", metrics="released"
    )
    assert report["verdict"] == "nothing proven"
    assert "metrics are added up and released without noise" in report["why"]
