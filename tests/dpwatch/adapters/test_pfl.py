"""The ledger of pfl-research's own backend and mechanisms, right and with faults
planted in its loop.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pfl")

from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import ModelHyperParams
from pfl.internal.ops import numpy_ops
from pfl.metrics import Metrics
from pfl.privacy import (
    CentrallyAppliedPrivacyMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    NormClippingOnly,
    PLDPrivacyAccountant,
)
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.stats import MappedVectorStatistics

from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.errors import DpsumError
from dpsum.ledger import Release, read_ledger
from dpwatch.adapters import pfl

USERS, COHORT, ROUNDS = 50, 10, 6
SHAPES = {"w": (40, 10), "b": (100,)}


class Model:
    """The sums that were released, in order."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def apply_model_update(self, statistics: Any) -> Any:
        self.seen.append(np.concatenate([np.ravel(one) for one in statistics.values()]))
        return self, Metrics()


class Draws(FederatedAveraging):  # type: ignore[type-arg]
    """A user's update is a normal draw of its own, of norm far above the bound."""

    def simulate_one_user(
        self, model: Any, user_dataset: Any, central_context: Any
    ) -> Any:
        draw = np.random.default_rng(user_dataset.user_id)
        arrays = {key: draw.normal(size=shape) for key, shape in SHAPES.items()}
        return MappedVectorStatistics(arrays), Metrics()


def backend(
    mechanism: Any, *others: Any, sampler: Any = "random", weigh: Any = WeightByUser
) -> SimulatedBackend:
    def made(user: int) -> Dataset:
        return Dataset((np.zeros(user % 7 + 1),), user_id=user)

    chosen = (
        get_user_sampler(sampler, list(range(USERS)))
        if isinstance(sampler, str)
        else sampler
    )
    data = FederatedDataset(made, chosen)
    return SimulatedBackend(data, data, postprocessors=[weigh(), mechanism, *others])


def central(z: float = 1.5, bound: float = 0.5) -> CentrallyAppliedPrivacyMechanism:
    return CentrallyAppliedPrivacyMechanism(GaussianMechanism(bound, z))


def run(
    made: SimulatedBackend,
    folder: Path,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    **kwargs: Any,
) -> Any:
    np.random.seed(seed)
    watched = pfl.watch(
        made, folder / "ledger.jsonl", rounds=rounds, **{"metrics": "kept"} | kwargs
    )
    params = NNAlgorithmParams(rounds, 100, COHORT, None)
    Draws().run(
        params, made, Model(), ModelHyperParams(), send_metrics_to_platform=False
    )
    return watched


def lines(made: SimulatedBackend, folder: Path, **kwargs: Any) -> list[Release]:
    return read_ledger(run(made, folder, **kwargs).path)


def test_a_central_gaussian_is_a_line_of_what_ran(tmp_path: Path) -> None:
    for event in lines(backend(central()), tmp_path):
        assert event.sampler == {
            "kind": "fixed-draws",
            "clients": 50,
            "cohort": 10,
            "rounds": 6,
            "rate": 0.2,
        }
        assert (
            event.threshold,
            event.sensitivity,
            event.noise_std,
            event.dimension,
        ) == (0.5, 0.5, 0.75, 500)
        assert (event.denominator, event.reason) == (10, "")


def test_random_draws_users_with_replacement() -> None:
    """Ten draws of fifty users are ten different ones with probability 0.3817 alone; of
    300 cohorts, so at 5 sigma.
    """
    np.random.seed(3)
    data = FederatedDataset(
        lambda user: Dataset((np.zeros(1),), user_id=user),
        get_user_sampler("random", range(USERS)),
    )
    cohorts = [[one.user_id for one, _ in data.get_cohort(COHORT)] for _ in range(300)]
    apart = sum(len(set(cohort)) == COHORT for cohort in cohorts)
    chance = math.prod((USERS - i) / USERS for i in range(COHORT))
    assert abs(apart - 300 * chance) < 5 * math.sqrt(300 * chance * (1 - chance))


def test_minimize_reuse_is_known_rounds_that_are_apart(tmp_path: Path) -> None:
    """Fifty users, ten a round: everyone comes in each fifth round, so twice in six."""
    found = lines(backend(central(), sampler="minimize_reuse"), tmp_path, users=USERS)
    assert found[0].sampler == {
        "kind": "min-separation",
        "clients": 50,
        "cohort": 10,
        "rounds": 6,
        "rate": 0.2,
        "separation": 5,
        "participations": 2,
    }
    assert [event.reason for event in found] == [""] * ROUNDS


def test_a_user_who_comes_again_too_early_is_said(tmp_path: Path) -> None:
    """Forty users, gone through in turn, where fifty were said."""
    made = backend(
        central(), sampler=get_user_sampler("minimize_reuse", list(range(40)))
    )
    assert (
        "came again after 4 rounds, not 5"
        in lines(made, tmp_path, users=USERS)[4].reason
    )


def test_right_code_passes_at_twenty_seeds(tmp_path: Path) -> None:
    for seed in range(20):
        found = lines(backend(central()), tmp_path / str(seed), seed=seed)
        assert [event.reason for event in found] == [""] * ROUNDS


def test_noise_scale_is_noise_that_was_not_added(tmp_path: Path) -> None:
    """A cohort of 10 simulates one of 100 by a tenth of the noise: the claim is of ten
    times what the line has.
    """
    accountant = PLDPrivacyAccountant(
        6, 0.02, "gaussian", noise_parameter=1.0, delta=1e-5, noise_scale=0.1
    )
    mechanism = CentrallyAppliedPrivacyMechanism(
        GaussianMechanism.from_privacy_accountant(accountant, 0.5)
    )
    watched = run(backend(mechanism), tmp_path)
    assert {
        round(event.noise_multiplier, 12) for event in read_ledger(watched.path)
    } == {0.1}
    claim = watched.claim()
    assert claim is not None and claim.epsilon((), {}, 1e-5) == accountant.epsilon
    assert "10 times the noise that was added" in claim.explanation
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    exact = from_gaussian_mechanism(
        1.0, sampling_prob=0.02, use_connect_dots=True
    ).self_compose(6)
    assert claim.epsilon((), {}, 1e-4) == pytest.approx(
        exact.get_epsilon_for_delta(1e-4), abs=1e-3
    )


def test_adaptive_clipping_is_one_release_of_the_overall_bound(tmp_path: Path) -> None:
    """C' = C / (1 - (z / z_b)^2)^1/2 bounds update and bit together, and the noise is z
    C'.
    """
    mechanism = AdaptiveClippingGaussianMechanism(
        lambda bound: GaussianMechanism(bound, 1.5), 0.5, 3.0, 0.5
    )
    found = lines(backend(mechanism), tmp_path)
    assert found[0].threshold == pytest.approx(0.5 / math.sqrt(1 - (1.5 / 3.0) ** 2))
    assert [event.noise_multiplier for event in found] == pytest.approx([1.5] * ROUNDS)
    assert len({event.threshold for event in found}) == ROUNDS
    assert found[0].dimension == 501
    assert [event.reason for event in found] == [""] * ROUNDS


def test_a_local_mechanism_is_noise_of_each_user(tmp_path: Path) -> None:
    found = lines(
        backend(GaussianMechanism(0.5, 4.0), sampler="minimize_reuse"),
        tmp_path,
        users=USERS,
    )
    assert {(event.name, event.observer, event.noise_std) for event in found} == {
        ("own-update", "server", 2.0)
    }
    assert [event.reason for event in found] == [""] * ROUNDS


def test_an_approximated_local_mechanism_is_a_sum_with_the_noise_of_all(
    tmp_path: Path,
) -> None:
    made = backend(GaussianMechanism(0.5, 4.0).approximate_as_central_mechanism())
    found = lines(made, tmp_path)
    assert [event.noise_std for event in found] == pytest.approx(
        [2.0 * math.sqrt(COHORT)] * ROUNDS
    )
    assert [event.reason for event in found] == [""] * ROUNDS


class _Encoder(BandedMatrixFactorizationMechanism):
    """pfl's own noise, of a query matrix that is given and not optimised (which takes a
    framework).
    """

    def __init__(self, bound: float, z: float, encoder: np.ndarray) -> None:
        from pfl.privacy.ftrl_mechanism import ForwardSubstitution

        GaussianMechanism.__init__(self, bound, z)
        self._C, self._C_inv_noise = encoder, ForwardSubstitution(encoder, 4)


def test_banded_noise_is_told_from_its_query_matrix(tmp_path: Path) -> None:
    """The columns' norms, the rows of the inverse, and the draws behind the noise, of a
    factor as pfl's.
    """
    gram = np.eye(ROUNDS) + 0.4 * (np.eye(ROUNDS, k=1) + np.eye(ROUNDS, k=-1))
    encoder = np.linalg.cholesky(gram)
    mechanism = CentrallyAppliedPrivacyMechanism(_Encoder(0.5, 1.5, encoder))
    found = lines(backend(mechanism, sampler="minimize_reuse"), tmp_path, users=USERS)
    largest = max(
        math.sqrt(sum(encoder[i, j] ** 2 for i in range(ROUNDS))) for j in range(ROUNDS)
    )
    assert largest > 1.01
    for number, event in enumerate(found):
        assert event.mechanism == "correlated-gaussian"
        assert event.sensitivity == pytest.approx(0.5 * largest, rel=1e-6)
        assert event.noise_std == pytest.approx(0.75)
        assert event.reason == ""
        assert event.combines is not None and len(event.combines) == number + 1
    weights = np.array(
        [[*(event.combines or ()), *[0.0] * ROUNDS][:ROUNDS] for event in found]
    )
    np.testing.assert_allclose(weights @ encoder, np.eye(ROUNDS), atol=1e-6)


def test_pfls_own_query_matrix_has_columns_longer_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the lower factor L of X = L L^T for the C of X = C^T C: rows of norm 1
    in place of columns.
    """
    pytest.importorskip("torch")
    from pfl.internal.ops import pytorch_ops, selector

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(selector, "_framework_module", pytorch_ops)

    class Said:
        cohort_noise_parameter = 1.0

    encoder = BandedMatrixFactorizationMechanism(
        1.0, 40, 10, lambda count: Said()
    ).query_matrix  # type: ignore[arg-type, return-value]
    np.testing.assert_allclose(np.linalg.norm(encoder, axis=1), 1.0, atol=1e-5)
    assert np.linalg.norm(encoder, axis=0).max() > 1.8


Noise = numpy_ops.add_gaussian_noise


def _half(tensors: Any, stddev: float, seed: Any) -> Any:
    return Noise(tensors, stddev / 2, seed)


def _by_array(tensors: Any, stddev: float, seed: Any) -> Any:
    return Noise(tensors, stddev / math.sqrt(len(tensors)), seed)


def _same_stream(tensors: Any, stddev: float, seed: Any) -> Any:
    return Noise(tensors, stddev, 7)


def _same_for_each_array(tensors: Any, stddev: float, seed: Any) -> Any:
    return [Noise([one], stddev, seed)[0] for one in tensors]


def _not_on_some(tensors: Any, stddev: float, seed: Any) -> Any:
    found = Noise(tensors, stddev, seed)
    found[0][:2] = tensors[0][:2]
    return found


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (_half, "said to have deviation 0.75 and has 0.3"),
        (_by_array, "said to have deviation 0.75 and has 0.5"),
        (_same_stream, "drawn already in a release before"),
        (_same_for_each_array, "drawn already in this release"),
        (_not_on_some, "20 of 500 coordinates have no noise"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_of_the_noise_is_seen(
    planted: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_ops, "add_gaussian_noise", planted)
    assert said in lines(backend(central()), tmp_path)[-1].reason


class _PerLayer(GaussianMechanism):
    def constrain_sensitivity(self, statistics: Any, *args: Any, **kwargs: Any) -> Any:
        _, metrics = super().constrain_sensitivity(statistics, *args, **kwargs)
        return statistics.apply_elementwise(
            lambda one: one * min(1.0, 0.5 / np.linalg.norm(one))
        ), metrics


class _After(GaussianMechanism):
    def constrain_sensitivity(self, statistics: Any, *args: Any, **kwargs: Any) -> Any:
        return statistics, Metrics()

    def add_noise(self, statistics: Any, *args: Any, **kwargs: Any) -> Any:
        clipped, _ = super().constrain_sensitivity(statistics)
        return super().add_noise(clipped, *args, **kwargs)


@pytest.mark.parametrize("kind", [_PerLayer, _After])
def test_a_fault_of_the_clipping_is_seen(kind: Any, tmp_path: Path) -> None:
    found = lines(backend(CentrallyAppliedPrivacyMechanism(kind(0.5, 1.5))), tmp_path)
    assert "more than the bound 0.5" in found[0].reason


def test_weights_that_follow_the_data_are_said(tmp_path: Path) -> None:
    """Weighted after clipping the vectors are too long; before it, their sum of weights
    is released without noise.
    """
    before = lines(backend(central(), weigh=WeightByDatapoints), tmp_path / "before")
    assert "weights other than 1" in before[0].reason and "norm" not in before[0].reason
    after = lines(backend(central(), WeightByDatapoints()), tmp_path / "after")
    assert "more than the bound" in after[0].reason


def test_metrics_are_a_release_unless_they_are_kept(tmp_path: Path) -> None:
    assert (
        "the users' metrics"
        in lines(backend(central()), tmp_path, metrics="released")[0].reason
    )


def test_known_cohorts_are_gaussians_one_after_another(tmp_path: Path) -> None:
    """In turn, so twice in six rounds at most: one Gaussian of z / 2^1/2, as pfl's own
    accountant has it.
    """
    accountant = PLDPrivacyAccountant(
        2, 1.0, "gaussian", noise_parameter=1.5, delta=1e-5
    )
    mechanism = CentrallyAppliedPrivacyMechanism(
        GaussianMechanism.from_privacy_accountant(accountant, 0.5)
    )
    profiles = (
        run(backend(mechanism, sampler="minimize_reuse"), tmp_path, users=USERS)
        .account(1e-5)
        .profiles
    )
    holds = profiles["holds"]
    assert holds.epsilon_high == pytest.approx(
        profiles["as_claimed"].epsilon_high, abs=1e-3
    )
    assert holds.epsilon_high == pytest.approx(
        gaussian_epsilon(1.5 / math.sqrt(2), 1e-5), rel=1e-9
    )
    assert holds.status == "proved"


def test_what_cannot_be_watched_is_refused_in_a_line(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(DpsumError, match="is no Gaussian mechanism"):
        pfl.watch(
            backend(CentrallyAppliedPrivacyMechanism(NormClippingOnly(2, 1.0))),
            ledger,
            rounds=1,
        )
    with pytest.raises(DpsumError, match="LaplaceMechanism is no Gaussian mechanism"):
        pfl.watch(backend(LaplaceMechanism(1.0, 1.0)), ledger, rounds=1)
    with pytest.raises(DpsumError, match="has 2 privacy mechanisms"):
        pfl.watch(backend(central(), central()), ledger, rounds=1)
    with pytest.raises(DpsumError, match="how many users there are is not known"):
        pfl.watch(backend(central(), sampler="minimize_reuse"), ledger, rounds=1)
    with pytest.raises(DpsumError, match="users is 3, and the sampler draws from 50"):
        pfl.watch(backend(central()), ledger, rounds=1, users=3)
    watched = run(backend(central(), sampler=lambda: 3), tmp_path, users=USERS)
    with pytest.raises(DpsumError, match="sampler 'unknown', so no epsilon"):
        watched.account(1e-5)
    made = backend(central())
    pfl.watch(made, tmp_path / "a.jsonl", rounds=1)
    with pytest.raises(DpsumError, match="watched already"):
        pfl.watch(made, tmp_path / "b.jsonl", rounds=1)


@pytest.mark.parametrize(
    "planted", [None, _half, _not_on_some], ids=["right", "half", "not_on_some"]
)
def test_an_audit_of_its_own_release(
    planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right code is refuted once in a thousand audits; half the noise, and none on some
    coordinates, always.
    """
    watched = run(backend(central(), sampler="minimize_reuse"), tmp_path, users=USERS)
    if planted is _not_on_some:
        monkeypatch.setattr(numpy_ops, "add_gaussian_noise", _none_on_the_first)
    elif planted is not None:
        monkeypatch.setattr(numpy_ops, "add_gaussian_noise", planted)
    found = watched.audit(1e-5, calls=200)
    assert found.refuted is (planted is not None), found.status


def _none_on_the_first(tensors: Any, stddev: float, seed: Any) -> Any:
    found = Noise(tensors, stddev, seed)
    found[0][:2] = tensors[0][:2]
    return found


def test_an_audit_of_correlated_noise_is_refused() -> None:
    with pytest.raises(DpsumError, match="several rounds"):
        pfl.release_of(CentrallyAppliedPrivacyMechanism(_Encoder(0.5, 1.0, np.eye(4))))
    with pytest.raises(DpsumError, match="one user"):
        pfl.release_of(GaussianMechanism(0.5, 1.0))


def test_a_cohort_whose_size_varies_is_said(tmp_path: Path) -> None:
    """pfl can simulate that more users answer than were asked: the sum is then divided
    by another number.
    """
    made = backend(central())
    made._max_overshoot_fraction = 0.9
    found = lines(made, tmp_path)
    assert any("followed one of" in event.reason for event in found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of pfl's own arithmetic
@pytest.mark.parametrize("value", [1.2e154, 1e308, math.nan, math.inf, 1e-200])
def test_nothing_that_one_user_sends_stops_an_iteration(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines are written; where pfl itself does not clip, they have a reason."""
    simulate = Draws.simulate_one_user

    def huge(self: Any, model: Any, user_dataset: Any, central_context: Any) -> Any:
        statistics, metrics = simulate(self, model, user_dataset, central_context)
        if user_dataset.user_id < 25:
            for array in statistics.values():
                array[:] = value
        return statistics, metrics

    monkeypatch.setattr(Draws, "simulate_one_user", huge)
    found = lines(backend(central()), tmp_path)
    assert len(found) == ROUNDS
    assert any(event.reason for event in found) == (not math.isfinite(value))


def test_a_bound_that_no_ledger_holds_is_refused_at_once(tmp_path: Path) -> None:
    for bound in (1e160, 1e-160):
        with pytest.raises(DpsumError, match=r"clipping norm is .* from 1e-150"):
            run(backend(central(bound=bound)), tmp_path)
