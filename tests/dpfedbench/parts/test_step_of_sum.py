"""The step along a sum of parties, by torch's optimisers."""

import pytest
import torch

from dpfedbench.parts.optimizers.optimizer import Adam, Sgd
from dpfedbench.parts.schedules.schedule import ConstantRate, Cosine
from dpfedbench.parts.step_of_sum import StepOfSum


@pytest.mark.parametrize(
    ("optimizer", "torch_class", "options"),
    [
        (Sgd(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
        (Adam(), torch.optim.Adam, {}),
    ],
)
def test_step_of_sum_has_torchs_weight_decay(optimizer, torch_class, options):
    generator = torch.Generator().manual_seed(0)
    means = torch.randn((4, 6), generator=generator, dtype=torch.float64)
    parameter = torch.nn.Parameter(torch.ones(6))
    reference = torch_class([parameter], lr=0.1, weight_decay=0.3, **options)
    step = StepOfSum(rate=0.1, optimizer=optimizer, decay=0.3, schedule=ConstantRate())
    weights = torch.ones(6)
    state = step.begin(weights)
    for index, mean in enumerate(means):
        parameter.grad = mean.float()
        reference.step()
        step.step(weights, mean, state, index=index, rounds=4)
    torch.testing.assert_close(weights, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_step_of_sum_follows_its_schedule():
    """Of two rounds the second has half the rate."""
    step = StepOfSum(rate=0.4, optimizer=Sgd(), decay=0.0, schedule=Cosine())
    weights = torch.zeros(1)
    state = step.begin(weights)
    moves = []
    for index in range(2):
        before = weights.item()
        step.step(weights, torch.ones(1), state, index=index, rounds=2)
        moves.append(before - weights.item())
    assert moves == pytest.approx([0.4, 0.2])
