"""The server's steps and their schedules."""

import math

import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.models.torch_sums import add_to
from dpfedbench.parts.optimizers.optimizer import Adam, Sgd
from dpfedbench.parts.schedules.schedule import ConstantRate, Cosine
from dpfedbench.parts.server.server_step import Average, Step
from tests.dpfedbench.federation.conftest import make_config

COSINE = Step(rate=0.01, optimizer=Adam(), schedule=Cosine(final_rate=0.001))


def test_the_rate_follows_half_a_cosine_to_its_end():
    """Eight steps from 0.01 towards 0.001: half-way it is their mean; the ninth would
    be at the end.
    """
    rates = [Cosine(final_rate=0.001).rate(0.01, step, 8) for step in range(9)]
    expected = [
        0.001 + 0.009 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(9)
    ]
    assert rates == pytest.approx(expected, rel=1e-9)
    assert (rates[0], rates[4], rates[8]) == pytest.approx((0.01, 0.0055, 0.001))


def test_a_constant_rate_and_no_rounds_stay_as_they_are():
    assert [ConstantRate().rate(0.5, step, 8) for step in (0, 7)] == [0.5, 0.5]
    assert Cosine(final_rate=0.001).rate(0.5, 0, 0) == 0.5


def test_a_step_goes_down_the_mean_at_the_schedules_rate():
    """Plain descent from 1 along 2, of 4 planned rounds: half of 1 plus the cosine of
    0, 45, 90 and 135 degrees.
    """
    server, half = Step(rate=1.0, optimizer=Sgd(), schedule=Cosine()), math.sqrt(0.5)
    for index, wanted in enumerate((-1.0, -half, 0.0, half)):
        theta = torch.ones(1)
        mean = server.mean(torch.tensor([8.0], dtype=torch.float64), 4.0)
        assert mean.item() == 2.0
        server.step(theta, mean, server.begin(theta), index=index, rounds=4)
        assert theta.item() == pytest.approx(wanted, abs=1e-7)


def test_momentum_is_that_of_fedavgm():
    """v <- 0.5 v + g, theta <- theta - 2 v: from 1, with g = 1 and then 3, to -1 and
    then -8.
    """
    server, theta = Step(rate=2.0, optimizer=Sgd(momentum=0.5)), torch.ones(1)
    state = server.begin(theta)
    for index, (gradient, wanted) in enumerate([(1.0, -1.0), (3.0, -8.0)]):
        server.step(theta, torch.tensor([gradient]), state, index=index, rounds=2)
        assert theta.item() == wanted


def test_a_restart_goes_on_at_the_rate_it_stopped_at():
    """The state and the round are all there is."""
    whole, stopped = torch.zeros(3), torch.zeros(3)
    states = [COSINE.begin(whole), COSINE.begin(stopped)]
    for index in range(8):
        COSINE.step(whole, torch.ones(3), states[0], index=index, rounds=8)
    for index in range(8):
        again = Step(rate=0.01, optimizer=Adam(), schedule=Cosine(final_rate=0.001))
        again.step(stopped, torch.ones(3), states[1], index=index, rounds=8)
    assert torch.equal(whole, stopped)


def test_an_average_is_the_mean_of_the_models():
    total = Average().plain_sum(2)
    add_to(total, torch.tensor([[1.0, 2.0]]))
    add_to(total, torch.tensor([[3.0, 6.0], [5.0, 4.0]]))
    theta = torch.zeros(2)
    Average().step(
        theta,
        Average().mean(torch.from_numpy(total.release_with()), 3.0),
        {},
        index=0,
        rounds=1,
    )
    assert theta.tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"rate": 0}, "server.rate is 0"),
        (
            {"optimizer": "yogi"},
            ('server.optimizer.kind is "yogi"'),
        ),
        (
            {"schedule": {"kind": "cosine", "final_rate": 0.02}},
            "server.schedule.final_rate is 0.02, above server.rate",
        ),
        (
            {"schedule": {"kind": "constant", "final_rate": 0.0}},
            "unknown key server.schedule.final_rate",
        ),
        (
            {"kind": "average"},
            'server.kind is "average"',
        ),
    ],
)
def test_bad_values_are_one_line(values, line):
    with pytest.raises(BenchError) as caught:
        make_config({"server": values})
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
