"""Passes over the clients, and a rate that falls by the same share."""

import math

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.optimizers.optimizer import Adam
from dpfedbench.parts.schedules.schedule import Exponential, Linear
from dpsum.accounting.analyses import find
from dpsum.participation import Passes
from dpsum.private_sum import PrivateSum


def test_each_pass_has_every_client_once_in_an_order_of_its_own() -> None:
    plan = Passes(cohort=3, rounds=8).plan(clients=12, seed=0)
    first, second = (
        np.concatenate([plan.sample_cohort(4 * number + block) for block in range(4)])
        for number in (0, 1)
    )
    assert (
        sorted(first) == sorted(second) == list(range(12))
        and first.tolist() != second.tolist()
    )
    assert plan.denominator == 3 and plan.describe()["kind"] == "passes"


def test_nothing_is_printed_of_a_private_sum_over_passes() -> None:
    with pytest.raises(
        BenchError,
        match="no analysis for gaussian noise with the sampler 'passes', so no epsilon",
    ):
        find("gaussian", "passes")


def test_the_rate_falls_by_the_same_share_each_round() -> None:
    schedule = Exponential(decay=0.5)
    rates = [schedule.rate(8.0, step, 10) for step in range(3)]
    assert rates == [8.0, 8.0 * math.exp(-0.5), 8.0 * math.exp(-1.0)]
    assert Exponential().rate(8.0, 7, 10) == 8.0


def test_replace_one_doubles_sensitivity_and_noise() -> None:
    made = PrivateSum(
        dimension=2, threshold=0.25, noise_multiplier=0.5, adjacency="replace-one"
    )
    assert (made.sensitivity, made.noise_std) == (0.5, 0.25)
    with pytest.raises(KeyError):
        PrivateSum(dimension=2, threshold=0.25, noise_multiplier=0.5, adjacency="none")


def test_the_rate_falls_on_a_line_to_its_end() -> None:
    """Nichol et al. 2018: an outer step size of 1 that falls to 0 over the training."""
    rates = [Linear().rate(1.0, step, 4) for step in range(5)]
    assert rates == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert [Linear(final_rate=0.5).rate(1.0, step, 4) for step in (0, 2)] == [1.0, 0.75]
    assert Linear().rate(1.0, 0, 0) == 1.0
    with pytest.raises(BenchError, match=r"final_rate is 2, above server\.rate"):
        Linear(final_rate=2.0).check_rate(1.0)


def test_adam_without_momentum_steps_along_the_last_gradient() -> None:
    """beta1 = 0: the first step is the rate times the sign; after gradients 3 and -4
    the second moment is (0.001 * 16 + 0.999 * 0.001 * 9) / (1 - 0.999^2).
    """
    import torch

    weights = torch.zeros(1, dtype=torch.float64)
    adam = Adam(beta1=0.0)
    state = adam.begin(weights)
    adam.step(weights, torch.tensor([3.0], dtype=torch.float64), state, 0.1)
    assert weights.item() == pytest.approx(-0.1, rel=1e-7)
    adam.step(weights, torch.tensor([-4.0], dtype=torch.float64), state, 0.1)
    square = (0.001 * 16 + 0.999 * 0.001 * 9) / (1 - 0.999**2)
    assert weights.item() == pytest.approx(-0.1 + 0.4 / math.sqrt(square), rel=1e-6)
