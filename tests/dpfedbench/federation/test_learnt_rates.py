"""MAML++'s learnt rates are coordinates like any: clipped and noised with the weights,
as one vector.
"""

import numpy as np
import pytest
import torch

from dpsum.randomness import stream

from .conftest import make_config, rounds_of

LEARNT = {"client_update": {"learnable_rates": True, "inner_steps": 2}}
SMALL = {
    "participation": {"cohort": 1, "rounds": 3},
    "clipping": {"kind": "constant", "threshold": 0.01},
    "server": {"rate": 1.0, "optimizer": "sgd"},
}


def test_learnt_rates_are_clipped_and_noised_with_the_weights(federation, tmp_path):
    """One client: what left, less the noise of the ledger's stream, is its vector cut
    to C over both; and the model moves by what left, rates included.
    """
    seen = []
    config = make_config(LEARNT, SMALL)
    rounds = rounds_of(
        config,
        federation,
        tmp_path,
        observer=lambda line, left: seen.append((line, left[0][1].copy())),
    )
    rates = slice(rounds.net.weights, None)
    assert rounds.net.dimension - rounds.net.weights == 2 * len(rounds.net.tensor_names)
    for index in range(2):
        before, cohort = rounds.theta.clone(), rounds.plan.cohort(index)
        ((sent, _, _),) = rounds.clients.contributions(before.numpy(), cohort, index)
        own = sent[0].double().numpy().copy()
        rounds.round(index)
        line, left = seen[-1]
        noise = stream(0, "noise", index).standard_normal(rounds.net.dimension)
        clipped = left - 1.0 * 0.01 * noise
        assert (
            line.dimension == rounds.net.dimension
            and line.noise_stream == f"0/noise/{index}"
        )
        assert np.linalg.norm(own) > 0.01 and np.abs(own[rates]).max() > 0
        assert clipped == pytest.approx(own * 0.01 / np.linalg.norm(own), abs=1e-8)
        assert torch.allclose(
            before - rounds.theta, torch.from_numpy(left).float(), rtol=0, atol=1e-6
        )
