"""The optimisers against torch's own classes, bit by bit; and that these are not loaded."""

import subprocess
import sys

import pytest
import torch

from dpfedbench.federation.optimizers import OPTIMIZERS

TORCH = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@pytest.mark.parametrize(("name", "more"), [("adam", {}), ("sgd", {}), ("sgd", {"momentum": 0.9})])
def test_steps_are_those_of_torch(name, more):
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn((6, 3, 50), generator=generator)
    wanted = torch.nn.Parameter(torch.ones((3, 50)))
    weights = wanted.detach().clone()
    theirs, ours = TORCH[name]([wanted], lr=0.1, **more), OPTIMIZERS[name](weights, rate=0.1, **more)
    for step, gradient in enumerate(gradients):
        ours.rate = theirs.param_groups[0]["lr"] = 0.1 / (1 + step)
        if step == 3:  # a restart
            weights, state = weights.clone(), ours.state()
            ours = OPTIMIZERS[name](weights, rate=ours.rate, **more)
            ours.restore(state)
        wanted.grad = gradient.clone()
        theirs.step()
        ours.step(gradient)
        assert torch.equal(weights, wanted.detach())


def test_what_is_remembered_is_a_copy():
    weights = torch.ones(3)
    ours = OPTIMIZERS["adam"](weights, rate=0.1)
    ours.step(torch.ones(3))
    state = ours.state()
    before = {name: value.clone() for name, value in state.items()}
    ours.step(torch.ones(3))
    assert all(torch.equal(state[name], value) for name, value in before.items())


def test_a_step_does_not_load_the_compiler():
    """Nor what else a training has no use for at its start."""
    code = (
        "import sys, torch; from dpfedbench.federation.engine import train; "
        "from dpfedbench.federation.optimizers import OPTIMIZERS; "
        "[make(torch.ones(3), rate=0.1).step(torch.ones(3)) for make in OPTIMIZERS.values()]; "
        "print([name for name in ('torch._dynamo', 'pandas', 'scipy.stats') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
