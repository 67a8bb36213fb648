"""DP-q-FFL of docs/your-method.md: exact in its round, and proved as one release."""

import dataclasses
import importlib.util

import numpy as np
import pytest
import torch

from dploss.gaussian import gaussian_epsilon
from dpsum.accounting.account import account
from dpsum.mechanism import Mechanism
from tests.pages import files_of_page

from .conftest import (
    client_examples,
    difference_config,
    ledger_in,
    mean_gradient,
    mean_loss,
    rounds_of,
)

FILES = files_of_page("your-method.md")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("module") / "qffl.py"
    path.write_text(FILES["qffl.py"], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("qffl_of_the_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_of(recipe, **sections):
    values = difference_config({"method": "dp-fedavg"}).plain()
    changes = {
        "method": "dp-q-ffl",
        "client_update": {"kind": "q-ffl", "q": 2.0, "steps": 2, "rate": 0.1},
        "server": {"kind": "q-ffl", "least": 1e-3},
        "h_clipping": {"kind": "constant", "threshold": 1e3},
        "h_noise": {"multiplier": 1.0},
    }
    return recipe.DpQFfl.read(values | changes | sections)


def test_step_is_exact_in_its_round(recipe, silos, tmp_path, monkeypatch):
    """Without noise, and with thresholds that clip nothing, w moves by sum(Delta) over
    sum(h) of the cohort, computed by autodiff from the paper's formulas.
    """
    monkeypatch.setattr(
        Mechanism,
        "draw_noise",
        lambda mechanism, purpose, total: np.zeros(total.dimension),
    )
    run = run_of(recipe, clipping={"kind": "constant", "threshold": 1e3})
    rounds = rounds_of(run, silos, tmp_path)
    for index in range(2):
        start = rounds.theta.clone()
        deltas = torch.zeros(len(start), dtype=torch.float64)
        h = 0.0
        for number in rounds.plan.sample_cohort(index):
            images, labels = client_examples(silos)[number]
            weights = start.clone()
            for _ in range(2):
                weights -= 0.1 * mean_gradient(rounds.net, weights, images, labels)
            moved = ((start - weights) / 0.1).double()
            loss = float(mean_loss(start, images, labels, rounds.net))
            deltas += loss**2 * moved
            h += 2 * loss * float(moved.square().sum()) + loss**2 / 0.1
        rounds.round(index)
        difference = (start - rounds.theta).double()
        assert torch.allclose(difference, deltas / h, rtol=1e-3, atol=1e-5)


def test_both_sums_are_proved_together(recipe, silos, tmp_path):
    """A round is one Gaussian of z^-2 = z_delta^-2 + z_h^-2; here z = 2 and 3."""
    run = run_of(recipe, noise={"multiplier": 2.0}, h_noise={"multiplier": 3.0})
    rounds = rounds_of(run, silos, tmp_path)
    for index in range(2):
        rounds.round(index)
    lines = ledger_in(tmp_path)
    shown = [(line.round, line.name, line.dimension) for line in lines]
    size = rounds.theta.numel()
    assert shown == [
        (index, name, dimension)
        for index in range(2)
        for name, dimension in (("delta-sum", size), ("h-sum", 1))
    ]
    assert len({line.noise_stream.split("[")[0] for line in lines}) >= 2
    delta = 1e-5
    both = account(lines, delta=delta).profiles["proven"].epsilon_high
    joint = (1 / 4 + 1 / 9) ** -0.5
    single = [
        dataclasses.replace(
            line, noise_multiplier=joint, noise_std=joint * line.sensitivity
        )
        for line in lines
        if line.name == "delta-sum"
    ]
    alone = account(single, delta=delta).profiles["proven"].epsilon_high
    assert both == pytest.approx(alone, rel=1e-6)
    assert both > gaussian_epsilon(2.0 * 10, delta)
