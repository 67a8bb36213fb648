"""MAML++'s weights of steps and learnt rates."""

import numpy as np
import pytest
import torch

from dpfedbench.training.client_updates.maml import Maml
from dpsum.randomness import stream

from .conftest import make_config, rounds_of


def test_maml_step_weights_are_those_of_the_authors_code():
    """K = 5 over 10 rounds: 1/5 each at first, 0.1 and 0.6 half-way, at least 3 % of
    1/5, and the last weight alone at the end.
    """
    maml = Maml(inner_steps=5, inner_rate=0.1, order=2, multi_step_rounds=10)
    np.testing.assert_allclose(maml.step_weights(0), [0.2] * 5)
    np.testing.assert_allclose(maml.step_weights(5), [0.1] * 4 + [0.6])
    np.testing.assert_allclose(maml.step_weights(9), [0.02] * 4 + [0.92])
    assert maml.step_weights(10) is None
    late = maml.replace(multi_step_rounds=1000).step_weights(999)
    np.testing.assert_allclose(late[0], 0.006)


def test_learnt_rates_are_clipped_and_noised_with_the_weights(federation, tmp_path):
    """One client. The release less the noise of the ledger's stream is the client's
    vector cut to C, and the model moves by the release, rates included.
    """
    config = make_config(
        {
            "client_update": {"learnable_rates": True, "inner_steps": 2},
            "participation": {"cohort": 1, "rounds": 3},
            "clipping": {"kind": "constant", "threshold": 0.01},
            "server": {"rate": 1.0, "optimizer": "sgd"},
        }
    )
    rounds = rounds_of(config, federation, tmp_path)
    net = rounds.net
    rates = slice(net.weights, None)
    assert net.dimension - net.weights == 2 * len(net.tensor_names)
    for index in range(2):
        before = rounds.theta.clone()
        cohort = rounds.plan.sample_cohort(index)
        ((sent, _),) = rounds.clients.contributions(before.numpy(), cohort, index)
        contribution = sent[0].double().numpy().copy()
        rounds.round(index)
        line, _, (mean,) = rounds.log[-1]
        noise = stream(0, "noise", index).standard_normal(net.dimension)
        assert line.dimension == net.dimension
        assert line.noise_stream == f"0/noise/{index}"
        norm = np.linalg.norm(contribution)
        assert norm > 0.01
        assert np.abs(contribution[rates]).max() > 0
        clipped = contribution * 0.01 / norm
        assert mean - 1.0 * 0.01 * noise == pytest.approx(clipped, abs=1e-8)
        moved = before - rounds.theta
        assert torch.allclose(moved, torch.from_numpy(mean).float(), rtol=0, atol=1e-6)
