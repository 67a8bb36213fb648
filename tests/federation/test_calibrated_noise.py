"""Noise that follows from a budget: `noise.multiplier: null` gives the z that the account then finds to hold."""

import json
import math

import pytest

from dpfedbench.accounting.calibration import calibrate
from dpfedbench.accounting.gaussian import gaussian_epsilon
from dpfedbench.federation.accounts import account_run
from dpfedbench.federation.engine import train
from dpfedbench.privacy.ledger import read_ledger
from tests.federation.conftest import make_config

BUDGET = {"epsilon": 1.5, "delta": 1e-3, "profile": "holds"}


@pytest.mark.parametrize("kind", ["one-pass", "balls-and-bins", "poisson"])
def test_a_run_without_a_multiplier_meets_its_budget_in_all_its_rounds(federation, tmp_path, kind):
    data, clients = federation
    config = make_config(
        {"noise": {"multiplier": None}, "budget": BUDGET, "participation": {"kind": kind}, "clipping": {"form": "sum"}},
    )
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    train(config, data_dir=data, clients_dir=clients, run_dir=tmp_path)
    account_run(tmp_path, tmp_path / "privacy.json", clients_dir=clients)
    found = json.loads((tmp_path / "privacy.json").read_text())
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    z = found["noise_multiplier"]
    assert found["rounds"] == len(ledger) == 12
    assert {event.noise_multiplier for event in ledger} == {z} == {calibrate("holds", ledger[0].sampler, 1.5, 1e-3)}
    high = found["profiles"]["holds"]["epsilon_high"]
    assert 1.5 * (1 - 5e-3) <= high <= 1.5
    if kind == "one-pass":
        assert high == gaussian_epsilon(z, 1e-3)
    # One image is used by several clients here, so it is less private than any of them.
    image = found["profiles"]["image_level"]
    assert image["uses_max"] > 1 and high < image["epsilon_high"] < math.inf
