"""The optimisers against torch's own classes, bit by bit; and that these are not loaded."""

import subprocess
import sys

import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.parts.optimizers.adam import Adam
from dpfedbench.parts.optimizers.optimizer import Optimizer
from dpfedbench.parts.optimizers.sgd import Sgd
from dpfedbench.settings.part import found
from tests.federation.conftest import DIFFERENCE, make_config

TORCH = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@pytest.mark.parametrize(("kind", "more"), [("adam", {}), ("sgd", {}), ("sgd", {"momentum": 0.9})])
def test_steps_are_those_of_torch(kind, more):
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn((6, 3, 50), generator=generator)
    wanted = torch.nn.Parameter(torch.ones((3, 50)))
    weights = wanted.detach().clone()
    theirs, ours = TORCH[kind]([wanted], lr=0.1, **more), found(Optimizer)[kind](**more)
    state = ours.begin(weights)
    for step, gradient in enumerate(gradients):
        rate = theirs.param_groups[0]["lr"] = 0.1 / (1 + step)
        if step == 3:  # a restart
            weights, ours = weights.clone(), found(Optimizer)[kind](**more)
            state = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
        wanted.grad = gradient.clone()
        theirs.step()
        ours.step(weights, gradient, state, rate)
        assert torch.equal(weights, wanted.detach())


def test_one_part_moves_several_weights_without_mixing_them():
    """What is remembered is in the state, not in the part, which a run's clients share."""
    ours, weights = Sgd(momentum=0.5), [torch.ones(1), torch.ones(1)]
    states = [ours.begin(each) for each in weights]
    for gradient in (1.0, 3.0):
        ours.step(weights[0], torch.tensor([gradient]), states[0], 2.0)
    ours.step(weights[1], torch.tensor([3.0]), states[1], 2.0)
    # v = 1, then 0.5 + 3: from 1 to -1 to -8; the other one takes one step of 2 x 3.
    assert [each.item() for each in weights] == [-8.0, -5.0]


@pytest.mark.parametrize("momentum", [1.0, -0.1, float("nan")])
def test_momentum_out_of_bounds_is_refused(momentum):
    with pytest.raises(BenchError, match=r"^server\.optimizer\.momentum is "):
        make_config({"server": {"optimizer": {"kind": "sgd", "momentum": momentum}}}, general=DIFFERENCE)


def test_momentum_is_not_adams():
    with pytest.raises(BenchError, match=r"^unknown key server\.optimizer\.momentum: adam has no momentum, sgd has"):
        make_config({"server": {"optimizer": {"kind": "adam", "momentum": 0.5}}})
    assert make_config({"server": {"optimizer": {"kind": "adam"}}}, general=DIFFERENCE).server.optimizer == Adam()


def test_a_step_does_not_load_the_compiler():
    """Nor what else a training has no use for at its start."""
    code = (
        "import sys, torch; from dpfedbench.federation.engine import train; "
        "from dpfedbench.parts.optimizers.optimizer import Optimizer; from dpfedbench.settings.part import found; "
        "w = torch.ones(3); "
        "[part().step(w, torch.ones(3), part().begin(w), 0.1) for part in found(Optimizer).values()]; "
        "print([name for name in ('torch._dynamo', 'pandas', 'scipy.stats') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
