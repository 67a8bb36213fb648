"""The server's steps and their schedules."""

import math

import pytest
import torch

from dpfedbench.models.torch_sums import add_to
from dpfedbench.parts.optimizers.optimizer import Adam, Sgd
from dpfedbench.parts.schedules.schedule import (
    ConstantRate,
    Cosine,
    Exponential,
    Linear,
)
from dpfedbench.parts.server.server_step import Average, Step


def test_cosine_rate_follows_half_a_cosine_to_its_end():
    """Eight steps from 0.01 towards 0.001: half-way it is their mean."""
    schedule = Cosine(final_rate=0.001)
    rates = [schedule.rate(0.01, step, 8) for step in range(9)]
    expected = [
        0.001 + 0.009 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(9)
    ]
    assert rates == pytest.approx(expected, rel=1e-9)
    assert (rates[0], rates[4], rates[8]) == pytest.approx((0.01, 0.0055, 0.001))
    assert schedule.rate(0.5, 0, 0) == 0.5


def test_exponential_rate_falls_by_the_same_share_each_round():
    rates = [Exponential(decay=0.5).rate(8.0, step, 10) for step in range(3)]
    assert rates == [8.0, 8.0 * math.exp(-0.5), 8.0 * math.exp(-1.0)]
    assert Exponential().rate(8.0, 7, 10) == 8.0
    assert ConstantRate().rate(8.0, 7, 10) == 8.0


def test_linear_rate_falls_on_a_line_to_its_end():
    """Nichol et al. 2018: an outer step size of 1 that falls to 0 over the training."""
    rates = [Linear().rate(1.0, step, 4) for step in range(5)]
    assert rates == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert [Linear(final_rate=0.5).rate(1.0, step, 4) for step in (0, 2)] == [1.0, 0.75]
    assert Linear().rate(1.0, 0, 0) == 1.0


def test_server_step_goes_down_the_mean_at_the_schedules_rate():
    """Plain descent from 1 along 2, of 4 planned rounds: half of 1 plus the cosine of
    0, 45, 90 and 135 degrees.
    """
    server = Step(rate=1.0, optimizer=Sgd(), schedule=Cosine())
    half = math.sqrt(0.5)
    for index, expected in enumerate((-1.0, -half, 0.0, half)):
        theta = torch.ones(1)
        mean = server.mean(torch.tensor([8.0], dtype=torch.float64), 4.0)
        assert mean.item() == 2.0
        server.step(theta, mean, server.begin(theta), index=index, rounds=4)
        assert theta.item() == pytest.approx(expected, abs=1e-7)


def test_server_momentum_is_that_of_fedavgm():
    """v <- 0.5 v + g, theta <- theta - 2 v: from 1, with g = 1 and then 3, to -1 and
    then -8.
    """
    server = Step(rate=2.0, optimizer=Sgd(momentum=0.5))
    theta = torch.ones(1)
    state = server.begin(theta)
    for index, (gradient, expected) in enumerate([(1.0, -1.0), (3.0, -8.0)]):
        server.step(theta, torch.tensor([gradient]), state, index=index, rounds=2)
        assert theta.item() == expected


def test_server_step_needs_only_its_state_and_the_round_after_a_restart():
    def make():
        return Step(rate=0.01, optimizer=Adam(), schedule=Cosine(final_rate=0.001))

    whole = torch.zeros(3)
    stopped = torch.zeros(3)
    server = make()
    states = [server.begin(whole), server.begin(stopped)]
    for index in range(8):
        server.step(whole, torch.ones(3), states[0], index=index, rounds=8)
        make().step(stopped, torch.ones(3), states[1], index=index, rounds=8)
    assert torch.equal(whole, stopped)


def test_average_is_the_mean_of_the_models():
    server = Average()
    total = server.plain_sum(2)
    add_to(total, torch.tensor([[1.0, 2.0]]))
    add_to(total, torch.tensor([[3.0, 6.0], [5.0, 4.0]]))
    theta = torch.zeros(2)
    mean = server.mean(torch.from_numpy(total.release()), 3.0)
    server.step(theta, mean, {}, index=0, rounds=1)
    assert theta.tolist() == [3.0, 4.0]
