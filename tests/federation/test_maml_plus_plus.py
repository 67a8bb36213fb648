"""MAML++'s multi-step loss and learnt rates: what the update says of them (their gradients: tests/models)."""

import dataclasses

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.federation.composition import Maml

from .conftest import make_config


def test_the_weights_of_the_steps_are_those_of_the_authors_code() -> None:
    """K = 5 over 10 rounds: 1/5 each at first, 0.1 and 0.6 half-way, 3 % of 1/5 at the least, the last alone after."""
    maml = Maml(inner_steps=5, inner_rate=0.1, order=2, multi_step_rounds=10)
    first, half, late = (maml.step_weights(index) for index in (0, 5, 9))
    np.testing.assert_allclose(first, [0.2] * 5)
    np.testing.assert_allclose(half, [0.1] * 4 + [0.6])
    np.testing.assert_allclose(late, [0.02] * 4 + [0.92])
    assert maml.step_weights(10) is None
    assert dataclasses.replace(maml, multi_step_rounds=1000).step_weights(999)[0] == pytest.approx(0.006)


@pytest.mark.parametrize("change", [{"inner_steps": 0}, {"inner_rate": 0.0}, {"order": 3}])
def test_impossible_updates_are_refused(change) -> None:
    with pytest.raises(BenchError):
        Maml(**({"inner_steps": 1, "inner_rate": 0.1, "order": 1} | change))


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
