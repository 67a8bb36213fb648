"""The server's steps: optimisers, schedules, and Adam with the noise's variance out."""

import math

import numpy as np
import pytest
import torch

from dpfedbench.parts.optimizers.adam_bc import AdamBC
from dpfedbench.parts.optimizers.optimizer import Adam, Sgd
from dpfedbench.parts.schedules import schedule as schedules
from dpfedbench.parts.server.server_step import RoundReleases, Step
from tests.dpfedbench.training.conftest import fixed_rounds, make_config


@pytest.mark.parametrize(
    ("optimizer", "torch_class", "options"),
    [
        (Adam(), torch.optim.Adam, {}),
        (Adam(beta1=0.0), torch.optim.Adam, {"betas": (0.0, 0.999)}),
        (Sgd(), torch.optim.SGD, {}),
        (Sgd(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    ],
)
def test_optimizer_steps_are_those_of_torch(optimizer, torch_class, options):
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn((6, 3, 50), generator=generator)
    parameter = torch.nn.Parameter(torch.ones((3, 50)))
    weights = parameter.detach().clone()
    reference = torch_class([parameter], lr=0.1, **options)
    state = optimizer.begin(weights)
    for step, gradient in enumerate(gradients):
        rate = 0.1 / (1 + step)
        reference.param_groups[0]["lr"] = rate
        parameter.grad = gradient.clone()
        reference.step()
        optimizer.step(weights, gradient, state, rate)
        assert torch.equal(weights, parameter.detach())


def test_adam_bc_takes_the_noises_variance_out_of_the_second_moment():
    """v = .001 x 4 = .004 and n = .001 x 1 give v' - n' = 3; then v = .007996 and n =
    .004999, over .001999. Where .25 is below the noise's 1, the floor remains.
    """
    optimizer = AdamBC(floor=1e-6)
    weights = torch.zeros(2, dtype=torch.float64)
    state = optimizer.begin(weights)
    optimizer.set_noise_deviation(state, 1.0)
    optimizer.step(weights, torch.tensor([2.0, 0.5], dtype=torch.float64), state, 0.1)
    expected = [-0.1 * 2 / math.sqrt(3), -0.1 * 0.5 / 1e-3]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    weights.zero_()
    optimizer.set_noise_deviation(state, 2.0)  # the threshold has moved
    optimizer.step(weights, torch.tensor([2.0, 2.0], dtype=torch.float64), state, 0.1)
    mean = (0.9 * 0.2 + 0.2) / 0.19
    square = (0.999 * 0.004 + 0.004) / 0.001999
    noise = (0.999 * 0.001 + 0.004) / 0.001999
    expected = -0.1 * mean / math.sqrt(square - noise)
    np.testing.assert_allclose(weights[0], expected, rtol=1e-6)


@pytest.mark.parametrize("z", [0.5, 2.0])
def test_adam_bc_receives_the_noise_of_the_mean_from_the_server(z, monkeypatch):
    """The noise is z C / L of the released mean, with C of the round."""
    deviations = []
    monkeypatch.setattr(
        AdamBC, "set_noise_deviation", lambda *values: deviations.append(values[-1])
    )
    run = make_config({"server": {"optimizer": "adam-bc"}, "noise": {"multiplier": z}})
    rounds = fixed_rounds(run, np.ones((48, 3)))
    thresholds = [rounds.round(index)[0]["threshold"] for index in range(6)]
    expected = [z * threshold / 4 for threshold in thresholds]
    assert deviations == pytest.approx(expected, rel=1e-12)
    assert thresholds[0] == 0.5
    assert len(set(thresholds)) > 1


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (schedules.ConstantRate(), [8.0, 8.0, 8.0]),
        (
            schedules.Exponential(decay=0.5),
            [8.0, 8.0 * math.exp(-0.5), 8.0 * math.exp(-1.0)],
        ),
        # Nichol et al. 2018: an outer step size that falls to 0 over the training.
        (schedules.Linear(), [8.0, 4.0, 0.0]),
        (schedules.Linear(final_rate=4.0), [8.0, 6.0, 4.0]),
        (schedules.Cosine(final_rate=4.0), [8.0, 6.0, 4.0]),
    ],
    ids=repr,
)
def test_schedule_has_its_rates_over_two_rounds(schedule, expected):
    assert [schedule.rate(8.0, step, 2) for step in range(3)] == expected
    assert schedule.rate(8.0, 0, 0) == 8.0


def test_server_step_goes_down_the_mean_at_the_schedules_rate():
    """From 1 along 2: half of 1 plus the cosine of 0, 45, 90 and 135 degrees."""
    server = Step(rate=1.0, optimizer=Sgd(), schedule=schedules.Cosine())
    half = math.sqrt(0.5)
    for index, expected in enumerate((-1.0, -half, 0.0, half)):
        theta = torch.ones(1)
        mean = server.mean(torch.tensor([8.0], dtype=torch.float64), 4.0)
        assert mean.item() == 2.0
        releases = RoundReleases(mean=mean, sums={}, index=index, rounds=4)
        server.step(theta, releases, server.begin(theta))
        assert theta.item() == pytest.approx(expected, abs=1e-7)
