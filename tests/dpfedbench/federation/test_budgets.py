"""Budgets of few-shot runs: noise that follows from one, and training that ends before
one is exceeded.
"""

import json
import math

import pandas as pd
import pytest

from dpfedbench.errors import BenchError
from dpsum.accounting.calibration import calibrate
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.ledger import read_ledger
from tests.dpfedbench.federation.conftest import accounted, make_config, train

BUDGET = {"epsilon": 1.5, "delta": 1e-3, "profile": "holds"}


@pytest.mark.parametrize("kind", ["one-pass", "balls-and-bins", "poisson"])
def test_a_run_without_a_multiplier_meets_its_budget_in_all_its_rounds(
    federation, tmp_path, kind
):
    config = make_config(
        {
            "noise": {"multiplier": None},
            "budget": BUDGET,
            "participation": {"kind": kind},
            "clipping": {"form": "sum"},
        },
    )
    train(config, federation, tmp_path)
    found = accounted(config, tmp_path, federation[1])
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    z = found["noise_multiplier"]
    assert found["rounds"] == len(ledger) == 12
    assert (
        {event.noise_multiplier for event in ledger}
        == {z}
        == {calibrate("holds", ledger[0].sampler, 1.5, 1e-3)}
    )
    high = found["profiles"]["holds"]["epsilon_high"]
    assert 1.5 * (1 - 5e-3) <= high <= 1.5
    if kind == "one-pass":
        assert high == gaussian_epsilon(z, 1e-3)
    # One image is used by several clients here, so it is less private than any of them.
    image = found["profiles"]["image_level"]
    assert image["uses_max"] > 1 and high < image["epsilon_high"] < math.inf


def test_training_stops_before_the_budget_would_be_exceeded(federation, tmp_path):
    config = make_config(
        {"participation": {"kind": "poisson"}, "budget": {"epsilon": 1.0}}
    )
    train(config, federation, tmp_path)
    training = json.loads((tmp_path / "training.json").read_text())
    history = pd.read_csv(tmp_path / "history.csv")
    assert training["stopped_by"] == "budget" and 0 < training["rounds_run"] < 12
    assert history["epsilon_holds"].iloc[-1] <= 1.0
    more = make_config({"participation": {"kind": "poisson"}})
    train(more, federation, tmp_path / "more")
    following = pd.read_csv(tmp_path / "more" / "history.csv")["epsilon_holds"].iloc[
        training["rounds_run"]
    ]
    assert following > 1.0


def test_a_budget_for_no_round_is_refused(federation, tmp_path):
    with pytest.raises(BenchError, match="first round"):
        train(make_config({"budget": {"epsilon": 0.01}}), federation, tmp_path)
