"""MAML++'s learnt rates and multi-step loss: by the fused passes, by automatic differentiation, and by hand."""

import dataclasses

import numpy as np
import pytest
import torch
from dpfedbench.federation.maml import FusedAdaptation, FusedMaml, autodiff_contributions

from dpfedbench.errors import BenchError
from dpfedbench.federation.composition import Maml
from dpfedbench.models.conv4 import Conv4

from .conftest import make_config
from .test_maml import task

STEPS = 3
PLAIN = Conv4(image_shape=(28, 28, 1), filters=6, ways=5)
NET = dataclasses.replace(PLAIN, step_rates=STEPS, first_rate=0.1)


def drawn(net: Conv4, seed: int = 0) -> np.ndarray:
    """Weights with a head that is not zero, and rates that differ."""
    rng = np.random.default_rng(seed)
    theta = net.initial(rng).astype(np.float64)
    theta[: net.weights] += 0.05 * rng.normal(size=net.weights)
    theta[net.weights :] *= rng.uniform(0.2, 2, len(theta) - net.weights)
    return theta


def contribution(net: Conv4, maml: Maml, theta: np.ndarray, parts, weights=None) -> np.ndarray:
    out = np.empty(net.dimension)
    FusedMaml(net, maml, support=5, query=10, dtype=np.float64).contribution(theta, *parts, out, weights)
    return out


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("net", "rounds"), [(NET, 0), (NET, 10), (PLAIN, 10)])
def test_the_fused_passes_equal_automatic_differentiation(net: Conv4, rounds: int, order: int) -> None:
    maml = Maml(inner_steps=STEPS, inner_rate=0.1, order=order, learnable_rates=net is NET, multi_step_rounds=rounds)
    theta, parts, weights = drawn(net), task(np.random.default_rng(1)), maml.step_weights(4)
    tensors = (torch.tensor(part)[None] for part in parts)
    wanted = autodiff_contributions(net, maml, torch.tensor(theta), *tensors, weights=weights)[0][0].numpy()
    found = contribution(net, maml, theta, parts, weights)
    for part in (slice(None, net.weights), slice(net.weights, None)):  # of the rates too, which are few
        if wanted[part].size:
            np.testing.assert_allclose(found[part], wanted[part], atol=1e-8 * np.abs(wanted[part]).max())


@pytest.mark.parametrize("order", [1, 2])
def test_equal_rates_give_the_weights_what_one_rate_gives(order: int) -> None:
    maml, parts = Maml(inner_steps=STEPS, inner_rate=0.1, order=order), task(np.random.default_rng(2))
    theta = drawn(PLAIN)
    with_rates = np.concatenate([theta, np.full(NET.dimension - NET.weights, 0.1)])
    wanted = contribution(PLAIN, maml, theta, parts)
    found = contribution(NET, dataclasses.replace(maml, learnable_rates=True), with_rates, parts)
    np.testing.assert_allclose(found[: NET.weights], wanted, atol=1e-12 * np.abs(wanted).max())
    logits = [
        FusedAdaptation(net, support=5, query=10, dtype=np.float64).logits(start, *parts[:3], steps=5, rate=0.1)
        for net, start in ((PLAIN, theta), (NET, with_rates))
    ]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-12)


def test_a_rate_of_zero_leaves_its_tensor_alone() -> None:
    """One step with all rates at zero is no adaptation."""
    net = dataclasses.replace(PLAIN, step_rates=1, first_rate=0.1)
    parts, theta = task(np.random.default_rng(3)), drawn(net)
    theta[net.weights :] = 0
    adapt = FusedAdaptation(net, support=5, query=10, dtype=np.float64)
    given = adapt.logits(theta, *parts[:3], steps=1, rate=9.0)
    assert np.array_equal(given, adapt.logits(theta, *parts[:3], steps=0, rate=9.0))


def test_the_weights_of_the_steps_are_those_of_the_authors_code() -> None:
    """K = 5 over 10 rounds: 1/5 each at first, 0.1 and 0.6 half-way, 3 % of 1/5 at the least, the last alone after."""
    maml = Maml(inner_steps=5, inner_rate=0.1, order=2, multi_step_rounds=10)
    first, half, late = (maml.step_weights(index) for index in (0, 5, 9))
    np.testing.assert_allclose(first, [0.2] * 5)
    np.testing.assert_allclose(half, [0.1] * 4 + [0.6])
    np.testing.assert_allclose(late, [0.02] * 4 + [0.92])
    assert maml.step_weights(10) is None
    assert dataclasses.replace(maml, multi_step_rounds=1000).step_weights(999)[0] == pytest.approx(0.006)


def test_learnt_rates_are_released_with_the_weights() -> None:
    """They are coordinates of each contribution: clipped with it and noised like every other."""
    from dpfedbench.evaluation.meta_test import few_shot_network

    config = make_config({"client_update": {"learnable_rates": True, "inner_steps": 2}})
    net = few_shot_network(config, (28, 28, 1))
    assert net.dimension == few_shot_network(make_config({}), (28, 28, 1)).dimension + 2 * 14
    assert set(net.initial(np.random.default_rng(0))[net.weights :].tolist()) == {
        np.float32(config.client_update.inner_rate)
    }


@pytest.mark.parametrize("key", [{"learnable_rates": True}, {"multi_step_rounds": 3}])
def test_clients_that_take_records_one_by_one_have_neither(key) -> None:
    record = {"model": {"normalisation": "record"}, "client_update": {"order": 1} | key}
    with pytest.raises(BenchError, match=r"are for kind maml with model\.normalisation batch"):
        make_config(record)
