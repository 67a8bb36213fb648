"""Budgets of few-shot runs: calibrated noise, and training that ends in time."""

import math

import pytest

from dpfedbench.errors import BenchError
from dpsum.accounting.calibration import calibrate
from dpsum.accounting.gaussian import gaussian_epsilon

from .conftest import (
    accounted,
    history_in,
    ledger_in,
    make_config,
    train,
    training_in,
)

POISSON = {"participation": {"kind": "poisson"}}


@pytest.mark.parametrize("kind", ["one-pass", "balls-and-bins", "poisson"])
def test_calibrated_noise_meets_the_budget_in_all_rounds(federation, tmp_path, kind):
    """Several clients use one image, so an image is protected less than a client."""
    overlay = {
        "noise": {"multiplier": None},
        "budget": {"epsilon": 1.5, "delta": 1e-3, "profile": "proven"},
        "participation": {"kind": kind},
        "clipping": {"form": "sum"},
    }
    config = make_config(overlay)
    train(config, federation, tmp_path)
    account = accounted(config, tmp_path, federation[1])
    ledger = ledger_in(tmp_path)
    z = account["noise_multiplier"]
    assert len(ledger) == 12
    assert {line.noise_multiplier for line in ledger} == {z}
    assert z == calibrate("proven", ledger[0].sampler, 1.5, 1e-3)
    epsilon = account["profiles"]["proven"]["epsilon_high"]
    assert 1.5 * (1 - 5e-3) <= epsilon <= 1.5
    if kind == "one-pass":
        assert epsilon == gaussian_epsilon(z, 1e-3)
    image = account["profiles"]["image_level"]
    assert image["uses_max"] > 1
    assert epsilon < image["epsilon_high"] < math.inf


def test_training_stops_before_the_budget_would_be_exceeded(federation, tmp_path):
    train(make_config(POISSON, {"budget": {"epsilon": 1.0}}), federation, tmp_path)
    training = training_in(tmp_path)
    assert training["stopped_by"] == "budget"
    assert 0 < training["rounds_run"] < 12
    assert history_in(tmp_path)["epsilon_proven"].iloc[-1] <= 1.0
    train(make_config(POISSON), federation, tmp_path / "unlimited")
    unlimited = history_in(tmp_path / "unlimited")["epsilon_proven"]
    assert unlimited.iloc[training["rounds_run"]] > 1.0


def test_budget_that_no_round_fits_is_refused(federation, tmp_path):
    with pytest.raises(BenchError, match="first round"):
        train(make_config({"budget": {"epsilon": 0.01}}), federation, tmp_path)
