"""The server's steps and their schedules."""

import math

import pytest
import torch

from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.parts.schedules.schedule import (
    ConstantRate,
    Cosine,
    Exponential,
    Linear,
)
from dpfedbench.parts.server.server_step import Step


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ConstantRate(), [8.0, 8.0, 8.0]),
        (Exponential(decay=0.5), [8.0, 8.0 * math.exp(-0.5), 8.0 * math.exp(-1.0)]),
        # Nichol et al. 2018: an outer step size that falls to 0 over the training.
        (Linear(), [8.0, 4.0, 0.0]),
        (Linear(final_rate=4.0), [8.0, 6.0, 4.0]),
        (Cosine(final_rate=4.0), [8.0, 6.0, 4.0]),
    ],
    ids=repr,
)
def test_schedule_has_its_rates_over_two_rounds(schedule, expected):
    assert [schedule.rate(8.0, step, 2) for step in range(3)] == expected
    assert schedule.rate(8.0, 0, 0) == 8.0


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
