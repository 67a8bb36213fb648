"""Client updates: what clients hold, and MAML++'s weights and rates.

What updates compute is tested in the other files of this folder.
"""

import numpy as np

from dpfedbench.config.part import kinds_of
from dpfedbench.training.client_updates.client_update import ClientUpdate
from dpfedbench.training.client_updates.maml import Maml
from tests.dpfedbench.training.conftest import make_config


def test_client_updates_state_what_clients_hold():
    data = {kind: update.client_data for kind, update in kinds_of(ClientUpdate).items()}
    assert len(data) == 10
    tasks = [kind for kind, held in data.items() if held == "tasks"]
    assert set(tasks) == {"maml", "reptile"}


def test_maml_step_weights_are_those_of_the_authors_code():
    """K = 5 over 10 rounds: 1/5 each at first, 0.1 and 0.6 half-way, at least 3 % of
    1/5, and the last weight alone at the end.
    """
    maml = Maml(
        inner_steps=5,
        inner_rate=0.1,
        order=2,
        multi_step_rounds=10,
    )
    np.testing.assert_allclose(maml.step_weights(0), [0.2] * 5)
    np.testing.assert_allclose(maml.step_weights(5), [0.1] * 4 + [0.6])
    np.testing.assert_allclose(maml.step_weights(9), [0.02] * 4 + [0.92])
    assert maml.step_weights(10) is None
    late = maml.replace(multi_step_rounds=1000).step_weights(999)
    np.testing.assert_allclose(late[0], 0.006)


def test_maml_learnt_rates_are_coordinates_of_the_network():
    """So learnt rates are clipped and noised with the weights."""
    config = make_config({"client_update": {"learnable_rates": True, "inner_steps": 2}})
    plain = make_config().net((28, 28, 1), 64)
    net = config.net((28, 28, 1), 64)
    assert net.weights == plain.dimension
    assert net.dimension == plain.dimension + 2 * 14
    rates = net.initial(np.random.default_rng(0))[net.weights :]
    assert set(rates.tolist()) == {np.float32(0.1)}
    assert config.tested_net((28, 28, 1)).dimension == net.dimension
