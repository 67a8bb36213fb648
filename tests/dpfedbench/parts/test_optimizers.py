"""The optimisers against torch's own classes, bit by bit; and that these are not
loaded.
"""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.parts.optimizers.adam_bc import AdamBC
from dpfedbench.parts.optimizers.optimizer import Adam, Optimizer, Sgd
from dpfedbench.settings.part import kinds_of
from tests.dpfedbench.federation.conftest import (
    DIFFERENCE,
    LOTS,
    fixed_rounds,
    make_config,
)

TORCH = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@pytest.mark.parametrize(
    ("kind", "more"), [("adam", {}), ("sgd", {}), ("sgd", {"momentum": 0.9})]
)
def test_steps_are_those_of_torch(kind, more):
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn((6, 3, 50), generator=generator)
    wanted = torch.nn.Parameter(torch.ones((3, 50)))
    weights = wanted.detach().clone()
    theirs, ours = (
        TORCH[kind]([wanted], lr=0.1, **more),
        kinds_of(Optimizer)[kind](**more),
    )
    state = ours.begin(weights)
    for step, gradient in enumerate(gradients):
        rate = theirs.param_groups[0]["lr"] = 0.1 / (1 + step)
        if step == 3:  # a restart
            weights, ours = weights.clone(), kinds_of(Optimizer)[kind](**more)
            state = {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in state.items()
            }
        wanted.grad = gradient.clone()
        theirs.step()
        ours.step(weights, gradient, state, rate)
        assert torch.equal(weights, wanted.detach())


def test_the_noises_variance_is_taken_out_of_the_second_moment():
    """By hand: v = .001 x 4 = .004 and n = .001 x 1 give v' - n' = 3; then v = .007996,
    n = .004999, over .001999.
    """
    ours, weights = AdamBC(floor=1e-6), torch.zeros(2, dtype=torch.float64)
    state = ours.begin(weights)
    ours.told(state, 1.0)
    ours.step(weights, torch.tensor([2.0, 0.5], dtype=torch.float64), state, 0.1)
    # m' is the gradient itself; the second coordinate's .25 is below the noise's 1, so
    # that the floor is left.
    np.testing.assert_allclose(
        weights, [-0.1 * 2 / math.sqrt(3), -0.1 * 0.5 / 1e-3], rtol=1e-6
    )
    weights.zero_()
    ours.told(state, 2.0)  # the threshold has moved
    ours.step(weights, torch.tensor([2.0, 2.0], dtype=torch.float64), state, 0.1)
    mean = (0.9 * 0.2 + 0.2) / 0.19
    square, noise = (
        (0.999 * 0.004 + 0.004) / 0.001999,
        (0.999 * 0.001 + 0.004) / 0.001999,
    )
    np.testing.assert_allclose(
        weights[0], -0.1 * mean / math.sqrt(square - noise), rtol=1e-6
    )


def test_without_noise_it_is_adam():
    gradients = torch.randn(
        (6, 50), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    found = []
    for part in (Adam(), AdamBC(floor=1e-30)):
        weights = torch.ones(50, dtype=torch.float64)
        state = part.begin(weights)
        for gradient in gradients:
            part.step(weights, gradient, state, 0.1)
        found.append(weights)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_a_small_mean_under_much_noise_takes_adams_step_of_the_mean_alone():
    """Gradients of 0.5 under noise of 2: the corrected moment is 0.25 where Adam's is
    4.25.

    A square's deviation is sqrt(2 s^4 + 4 g^2 s^2) = 6, that of a mean with weights
    0.999^k is 6 / sqrt(2000) = 0.134, and over 400 coordinates 0.0067: five of these
    are exceeded with a chance below 1e-6.
    """
    rng, weights = np.random.default_rng(0), torch.zeros(400, dtype=torch.float64)
    ours = AdamBC()
    state = ours.begin(weights)
    for _ in range(10_000):
        ours.told(state, 2.0)
        ours.step(
            weights, torch.from_numpy(0.5 + 2.0 * rng.standard_normal(400)), state, 0.0
        )
    assert abs(float((state["square"] - state["noise"]).mean()) - 0.25) < 0.033


@pytest.mark.parametrize("z", [0.5, 2.0])
def test_the_server_tells_it_the_noise_of_the_mean(z, monkeypatch):
    """z C / L of the released mean, with C of the round."""
    told = []
    monkeypatch.setattr(
        AdamBC, "told", lambda self, state, deviation: told.append(deviation)
    )
    run = make_config({"server": {"optimizer": "adam-bc"}, "noise": {"multiplier": z}})
    rounds = fixed_rounds(run, np.ones((48, 3)))
    thresholds = [rounds.round(index)[0]["threshold"] for index in range(6)]
    assert told == pytest.approx(
        [z * threshold / 4 for threshold in thresholds], rel=1e-12
    )
    assert thresholds[0] == 0.5 and len(set(thresholds)) > 1


def test_it_is_refused_where_nobody_tells_it_the_noise():
    said = (
        r"^client_update\.optimizer is adam-bc, which takes the noise's variance out of"
        r" its moments"
    )
    with pytest.raises(BenchError, match=said):
        make_config({"client_update": {"optimizer": "adam-bc"}}, general=DIFFERENCE)
    assert (
        make_config(
            {"client_update": {"optimizer": "adam-bc"}}, general=LOTS
        ).client_update.optimizer
        == AdamBC()
    )


def test_one_part_moves_several_weights_without_mixing_them():
    """What is remembered is in the state, not in the part, which a run's clients
    share.
    """
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
        make_config(
            {"server": {"optimizer": {"kind": "sgd", "momentum": momentum}}},
            general=DIFFERENCE,
        )


def test_momentum_is_not_adams():
    with pytest.raises(
        BenchError,
        match=(r"^unknown key server\.optimizer\.momentum"),
    ):
        make_config({"server": {"optimizer": {"kind": "adam", "momentum": 0.5}}})
    assert (
        make_config(
            {"server": {"optimizer": {"kind": "adam"}}}, general=DIFFERENCE
        ).server.optimizer
        == Adam()
    )


def test_a_step_does_not_load_the_compiler():
    """Nor what else a training has no use for at its start."""
    code = (
        "import sys, torch; from dpfedbench.federation.engine import train; from"
        " dpfedbench.parts.optimizers.optimizer import Optimizer; from"
        " dpfedbench.settings.part import kinds_of; w = torch.ones(3); [part().step(w,"
        " torch.ones(3), part().begin(w), 0.1) for part in"
        " kinds_of(Optimizer).values()]; print([name for name in ('torch._dynamo',"
        " 'pandas', 'scipy.stats') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
