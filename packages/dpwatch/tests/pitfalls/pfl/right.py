"""A simulation with pfl-research; its arguments are the noise's scale and the sampler.

At a scale of 1 the noise is the accountant's. A smaller cohort that stands for a larger
one has less noise than its accountant states.
"""

import sys
from types import SimpleNamespace

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import ModelHyperParams
from pfl.metrics import Metrics
from pfl.privacy import (
    CentrallyAppliedPrivacyMechanism,
    GaussianMechanism,
    PLDPrivacyAccountant,
)
from pfl.stats import MappedVectorStatistics

np.random.seed(0)
users = range(100)
rounds = 4


class FixedUpdates(FederatedAveraging):
    """Users whose update is their number."""

    def simulate_one_user(self, model, user_dataset, central_context):
        update = np.full(50, float(user_dataset.user_id), np.float32)
        return MappedVectorStatistics({"weights": update}), Metrics()


def load_user(user):
    return Dataset((np.zeros(1),), user_id=user)


accountant = PLDPrivacyAccountant(
    rounds,
    sampling_probability=1.0,
    mechanism="gaussian",
    noise_parameter=4.0,
    delta=1e-5,
    noise_scale=float(sys.argv[1]),
)
mechanism = CentrallyAppliedPrivacyMechanism(
    GaussianMechanism.from_privacy_accountant(accountant, 0.5)
)
data = FederatedDataset(load_user, get_user_sampler(sys.argv[2], list(users)))
backend = SimulatedBackend(data, data, postprocessors=[WeightByUser(), mechanism])
released = []
model = SimpleNamespace()


def apply_model_update(statistics):
    released.append(statistics["weights"].copy())
    return model, Metrics()


model.apply_model_update = apply_model_update
FixedUpdates().run(
    NNAlgorithmParams(rounds, 100, len(users), None),
    backend,
    model,
    ModelHyperParams(),
    send_metrics_to_platform=False,
)
np.save("released.npy", np.stack(released))
