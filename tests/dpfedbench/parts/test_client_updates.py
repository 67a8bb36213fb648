"""Client updates: what their settings refuse, MAML++'s weights of the steps. What they
compute: tests/dpfedbench/federation.
"""

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.client_updates.client_update import ClientUpdate
from dpfedbench.parts.client_updates.maml import Maml
from dpfedbench.settings.part import kinds_of
from tests.dpfedbench.federation.conftest import DIFFERENCE, LOTS, make_config


def test_each_says_what_its_clients_hold():
    assert {
        kind: update.client_data for kind, update in kinds_of(ClientUpdate).items()
    } == {
        "maml": "tasks",
        "reptile": "tasks",
        "batch-steps": "records",
        "local-steps": "records",
        "model-difference": "records",
        "proximal": "records",
        "scaffold": "records",
        "search-steps": "records",
        "released-search-steps": "records",
        "summed-steps": "records",
    }


def test_the_weights_of_the_steps_are_those_of_the_authors_code():
    """K = 5 over 10 rounds: 1/5 each at first, 0.1 and 0.6 half-way, 3 % of 1/5 at the
    least, the last alone after.
    """
    maml = Maml(inner_steps=5, inner_rate=0.1, order=2, multi_step_rounds=10)
    first, half, late = (maml.step_weights(index) for index in (0, 5, 9))
    np.testing.assert_allclose(first, [0.2] * 5)
    np.testing.assert_allclose(half, [0.1] * 4 + [0.6])
    np.testing.assert_allclose(late, [0.02] * 4 + [0.92])
    assert maml.step_weights(10) is None
    assert maml.replace(multi_step_rounds=1000).step_weights(999)[0] == pytest.approx(
        0.006
    )


def test_learnt_rates_are_released_with_the_weights():
    """They are coordinates of each contribution: clipped with it and noised like every
    other.
    """
    config = make_config({"client_update": {"learnable_rates": True, "inner_steps": 2}})
    plain = make_config().net((28, 28, 1), 64)
    net = config.net((28, 28, 1), 64)
    assert net.weights == plain.dimension and net.dimension == plain.dimension + 2 * 14
    assert set(net.initial(np.random.default_rng(0))[net.weights :].tolist()) == {
        np.float32(0.1)
    }
    assert config.tested_net((28, 28, 1)).dimension == net.dimension


RECORD = {"model": {"normalisation": "record"}}


@pytest.mark.parametrize(
    ("overlay", "general", "line"),
    [
        (
            {"client_update": {"inner_steps": 0}},
            None,
            "client_update.inner_steps is 0",
        ),
        (
            {"client_update": {"inner_rate": 0.0}},
            None,
            "client_update.inner_rate is 0.0",
        ),
        ({"client_update": {"order": 3}}, None, "client_update.order is 3"),
        (
            {"client_update": {"optimizer": "sgd"}},
            None,
            "unknown key client_update.optimizer",
        ),
        (
            {"client_update": {"keep_state": False}},
            DIFFERENCE,
            "unknown key client_update.keep_state",
        ),
        ({"client_update": {"order": 1}}, LOTS, "unknown key client_update.order"),
        (
            {"method": "dp-reptile", "client_update": {"batches": "disjoint"}},
            None,
            (
                "client_update.inner_steps (5) does not divide a client's 9 examples"
                " into disjoint batches"
            ),
        ),
        *(
            (
                {"method": "dp-agrlr", "client_update": more},
                None,
                (
                    "client_update.learnable_rates and multi_step_rounds need a model"
                    " that uses statistics of the"
                ),
            )
            for more in ({"learnable_rates": True}, {"multi_step_rounds": 3})
        ),
    ],
)
def test_bad_values_are_one_line(overlay, general, line):
    with pytest.raises(BenchError) as caught:
        make_config(overlay, **({} if general is None else {"general": general}))
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
