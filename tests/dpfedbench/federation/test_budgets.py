"""Budgets of few-shot runs: noise that follows from one, and training that ends before
one is exceeded.
"""

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
def test_a_run_without_a_multiplier_meets_its_budget_in_all_its_rounds(
    federation, tmp_path, kind
):
    """One image is used by several clients, so it is less private than any of them."""
    overlay = {
        "noise": {"multiplier": None},
        "budget": {"epsilon": 1.5, "delta": 1e-3, "profile": "holds"},
        "participation": {"kind": kind},
        "clipping": {"form": "sum"},
    }
    config = make_config(overlay)
    train(config, federation, tmp_path)
    found = accounted(config, tmp_path, federation[1])
    ledger = ledger_in(tmp_path)
    z = found["noise_multiplier"]
    assert len(ledger) == 12 and {line.noise_multiplier for line in ledger} == {z}
    assert z == calibrate("holds", ledger[0].sampler, 1.5, 1e-3)
    high = found["profiles"]["holds"]["epsilon_high"]
    assert 1.5 * (1 - 5e-3) <= high <= 1.5
    if kind == "one-pass":
        assert high == gaussian_epsilon(z, 1e-3)
    image = found["profiles"]["image_level"]
    assert image["uses_max"] > 1 and high < image["epsilon_high"] < math.inf


def test_training_stops_before_the_budget_would_be_exceeded(federation, tmp_path):
    budget = {"budget": {"epsilon": 1.0}}
    train(make_config(POISSON, budget), federation, tmp_path)
    training = training_in(tmp_path)
    assert training["stopped_by"] == "budget" and 0 < training["rounds_run"] < 12
    assert history_in(tmp_path)["epsilon_proven"].iloc[-1] <= 1.0
    train(make_config(POISSON), federation, tmp_path / "more")
    longer = history_in(tmp_path / "more")["epsilon_proven"]
    assert longer.iloc[training["rounds_run"]] > 1.0


def test_a_budget_for_no_round_is_refused(federation, tmp_path):
    with pytest.raises(BenchError, match="first round"):
        train(make_config({"budget": {"epsilon": 0.01}}), federation, tmp_path)
