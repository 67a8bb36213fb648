"""pfl-research at the settings of its tutorial on differential privacy and of its
CIFAR10 benchmark.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "pfl"


def runs(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield runs of pfl's mechanisms and of its two user samplers.

    The mechanisms are fixed and adaptive clipping, banded noise, and noise that
    simulates a larger cohort.
    """
    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import ModelHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import (
        get_default_framework_module,
        set_framework_module,
    )
    from pfl.metrics import Metrics
    from pfl.privacy import (
        CentrallyAppliedPrivacyMechanism,
        GaussianMechanism,
        PLDPrivacyAccountant,
    )
    from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
    from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
    from pfl.stats import MappedVectorStatistics

    from dploss.gaussian import gaussian_epsilon
    from dpwatch.adapters.pfl import watch

    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    set_framework_module(pytorch_ops)  # banded noise is optimised by torch
    vector = get_default_framework_module().to_tensor(np.full(50, 10.0))

    class Model:
        def apply_model_update(self, statistics: Any) -> Any:
            return self, Metrics()

    class Users(FederatedAveraging):  # type: ignore[type-arg]
        def simulate_one_user(
            self, model: Any, user_dataset: Any, central_context: Any
        ) -> Any:
            return MappedVectorStatistics({"update": vector.clone()}), Metrics()

    def run(
        mechanism: Any,
        *,
        what: str,
        users: int = 1_000_000,
        cohort: int = 100,
        rounds: int = 100,
        sampler: str = "minimize_reuse",
        delta: float = 1e-8,
        **texts: Any,
    ) -> dict[str, Any]:
        if isinstance(mechanism, GaussianMechanism):
            mechanism = CentrallyAppliedPrivacyMechanism(mechanism)
        data = FederatedDataset(
            lambda user: Dataset((np.zeros(1),), user_id=user),
            get_user_sampler(sampler, range(users)),
        )
        backend = SimulatedBackend(
            data, data, postprocessors=[WeightByUser(), mechanism]
        )
        watched = watch(
            backend,
            folder / f"{what}.jsonl",
            rounds=rounds,
            users=users,
            metrics="kept",
        )
        params = NNAlgorithmParams(rounds, rounds + 1, cohort, None)
        Users().run(
            params, backend, Model(), ModelHyperParams(), send_metrics_to_platform=False
        )
        return {"watched": watched, "delta": delta, "what": f"pfl, {what}"} | texts

    def make_accountant(
        rounds: int = 100, rate: float = 1e-4, delta: float = 1e-8, scale: float = 1.0
    ) -> Any:
        return PLDPrivacyAccountant(
            num_compositions=rounds,
            sampling_probability=rate,
            mechanism="gaussian",
            epsilon=2.0,
            delta=delta,
            noise_scale=scale,
        )

    tutorial = (
        "the tutorial on differential privacy: ε 2, δ 1e-8, cohorts of 100 of 1,000,000"
        " users, 100 rounds, threshold 0.5"
    )
    poisson = "The account assumes Poisson sampling at a rate of 1e-4."

    yield run(
        GaussianMechanism.construct_single_iteration(2.0, 1.0, 1e-8),
        what="one iteration of the Gaussian mechanism",
        users=100,
        rounds=1,
        claimed=1.0,
        source=(
            "the tutorial's first mechanism: construct_single_iteration, ε 1, δ 1e-8,"
            " threshold 2; 100 users"
        ),
        why=(
            "Right: the noise follows from the exact trade-off of one Gaussian release."
        ),
        quote=(
            "The differential privacy guarantee assumes that each user participates in"
            " the training at most once."
        ),
    )

    yield run(
        GaussianMechanism.from_privacy_accountant(make_accountant(), 0.5),
        what="Gaussian mechanism by its PLD accountant, user sampler minimize_reuse",
        source=tutorial,
        why=(
            f"{poisson} The sampler minimize_reuse goes through the users in a fixed"
            " order, which samples nothing: each user is in one Gaussian release, and"
            " its round can be known."
        ),
        quote="Maximum probability of sampling each entity being privatized.",
    )

    accountants: list[Any] = []

    def record_accountant(rounds: int) -> Any:
        accountants.append(make_accountant(rounds))
        return accountants[-1]

    banded = BandedMatrixFactorizationMechanism(0.5, 100, 10_000, record_accountant)
    column_norm = float(np.linalg.norm(banded.query_matrix, axis=0).max())
    epsilon = gaussian_epsilon(float(banded.relative_noise_stddev), 1e-8)
    yield run(
        banded,
        what="banded matrix factorisation, user sampler minimize_reuse",
        audit=False,
        claimed=accountants[-1].epsilon,
        source=f"{tutorial}; minimum separation 10,000",
        why=(
            "pfl optimises X = CᵀC and then takes the lower Cholesky factor L of X = L"
            " Lᵀ as its query matrix. The rows of L have norm 1, but its columns have"
            f" norms up to {column_norm:.2f}, and one user moves the releases by a"
            " column. Besides, the account assumes Poisson sampling at a rate of 1e-4,"
            f" where the order of the users is fixed: that alone would make ε {epsilon:.1f}."
        ),
        quote="for MF-DP-FTRL a strict client participation schema must be adhered to",
    )

    yield run(
        GaussianMechanism.from_privacy_accountant(
            make_accountant(1500, 1e-3, 1e-6, 50 / 1000), 0.4
        ),
        what="noise_scale 0.05: a cohort of 50 that simulates one of 1,000",
        users=1000,
        cohort=50,
        rounds=1500,
        sampler="random",
        delta=1e-6,
        audit=False,
        source=(
            "benchmarks/image_classification: ε 2, δ 1e-6, 1,500 rounds, population"
            " 1,000,000; 1,000 users"
        ),
        why=(
            "Documented: the claim is of the deployment that is simulated, with 20"
            " times the noise and 1,000,000 users. What is proven is of the 1,000 users"
            " whose data were used."
        ),
        quote=(
            "your results will only be valid if running with cohort_size=1000 outside"
            " simulation"
        ),
    )

    yield run(
        AdaptiveClippingGaussianMechanism.construct_from_privacy_accountant(
            make_accountant(), 0.5, 10.0, 0.1
        ),
        what="adaptive clipping, user sampler minimize_reuse",
        source=f"{tutorial}; noise of the clipping bit 0.1 x cohort, quantile 0.1",
        why=(
            "Adaptive clipping itself is right: the update and its clipping bit are"
            f" one vector, whose norm the overall bound covers. {poisson} As above,"
            " minimize_reuse samples nothing."
        ),
    )

    yield run(
        GaussianMechanism.from_privacy_accountant(make_accountant(), 0.5),
        what="Gaussian mechanism by its PLD accountant, user sampler random",
        sampler="random",
        source=tutorial,
        why=(
            f"{poisson} The sampler random draws 100 users with replacement: a user who"
            " comes takes another's place, and may come twice. The account's"
            " neighbours have one user more or less."
        ),
        quote="Maximum probability of sampling each entity being privatized.",
    )
