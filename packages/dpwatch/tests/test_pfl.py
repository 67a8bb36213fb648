"""Watched backends of pfl-research: right ones, and planted faults."""

import math
from types import SimpleNamespace

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
from pfl.privacy import CentrallyAppliedPrivacyMechanism as Central
from pfl.privacy import GaussianMechanism, PLDPrivacyAccountant
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.privacy.ftrl_mechanism import (
    BandedMatrixFactorizationMechanism,
    ForwardSubstitution,
)
from pfl.stats import MappedVectorStatistics

from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.ledger import read_ledger
from dpwatch.adapters import pfl

USERS = 50
COHORT = 10
ROUNDS = 6
DELTA = 1e-5
SHAPES = {"w": (40, 10), "b": (100,)}
IN_TURN = {"sampler": "minimize_reuse"}


class RandomUpdates(FederatedAveraging):
    """Users whose updates are normal draws, of norm far above the bound."""

    value = None  # which half of the users send instead

    def simulate_one_user(self, model, user_dataset, central_context):
        rng = np.random.default_rng(user_dataset.user_id)
        arrays = {key: rng.normal(size=shape) for key, shape in SHAPES.items()}
        if self.value is not None and user_dataset.user_id < USERS / 2:
            arrays = {key: np.full(shape, self.value) for key, shape in SHAPES.items()}
        return MappedVectorStatistics(arrays), Metrics()


def make_backend(
    mechanism=None, *further, sampler="random", weigh=WeightByUser, users=USERS
):
    """Return a backend; Gaussian noise of z = 1.5 is added centrally by default."""

    def dataset_of(user):
        return Dataset((np.zeros(user % 7 + 1),), user_id=user)

    if isinstance(sampler, str):
        sampler = get_user_sampler(sampler, list(range(users)))
    data = FederatedDataset(dataset_of, sampler)
    mechanism = mechanism or Central(GaussianMechanism(0.5, 1.5))
    return SimulatedBackend(data, data, postprocessors=[weigh(), mechanism, *further])


@pytest.fixture
def run(path):
    """Run a watched backend; return its watch."""

    def run_rounds(backend, *, metrics="kept", **options):
        np.random.seed(0)
        watched = pfl.watch(backend, path, rounds=ROUNDS, metrics=metrics, **options)
        parameters = NNAlgorithmParams(ROUNDS, 100, COHORT, None)
        model = SimpleNamespace()
        model.apply_model_update = lambda statistics: (model, Metrics())
        arguments = parameters, backend, model, ModelHyperParams()
        RandomUpdates().run(*arguments, send_metrics_to_platform=False)
        return watched

    return run_rounds


def lines_of(watched):
    return read_ledger(watched.path)


def reasons(lines):
    return [line.reason for line in lines]


# Right code

SAMPLER = {"clients": 50, "cohort": 10, "rounds": 6, "rate": 0.2}
SAMPLER["draw"] = "of the library"


def test_pfl_central_gaussian_has_a_line_a_round(run):
    for line in lines_of(run(make_backend())):
        assert line.sampler == SAMPLER | {"kind": "fixed-draws"}
        assert line.threshold == line.sensitivity == 0.5
        values = line.noise_std, line.dimension, line.denominator, line.reason
        assert values == (0.75, 500, 10, "")


def test_pfl_random_sampler_draws_users_with_replacement():
    """Ten draws of fifty users differ with probability 0.3817; 300 cohorts, 5 sigma."""
    np.random.seed(3)
    sampler = get_user_sampler("random", range(USERS))
    data = FederatedDataset(lambda user: Dataset((np.zeros(1),), user_id=user), sampler)
    distinct = 0
    for _ in range(300):
        cohort = {dataset.user_id for dataset, _ in data.get_cohort(COHORT)}
        distinct += len(cohort) == COHORT
    chance = math.prod((USERS - i) / USERS for i in range(COHORT))
    error = 5 * math.sqrt(300 * chance * (1 - chance))
    assert abs(distinct - 300 * chance) < error


def test_pfl_claim_names_noise_that_was_not_added(run):
    """A cohort of 10 simulates one of 100 with a tenth of the noise.

    Reference: the distribution of the privacy loss of six rounds of z = 1.
    """
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    accountant = PLDPrivacyAccountant(
        6, 0.02, "gaussian", noise_parameter=1.0, delta=DELTA, noise_scale=0.1
    )
    mechanism = GaussianMechanism.from_privacy_accountant(accountant, 0.5)
    watched = run(make_backend(Central(mechanism)))
    for line in lines_of(watched):
        assert line.noise_multiplier == pytest.approx(0.1)
    claim = watched.claim()
    assert claim.epsilon((), {}, DELTA) == accountant.epsilon
    assert "10 times the noise that was added" in claim.explanation
    one_round = from_gaussian_mechanism(1.0, sampling_prob=0.02, use_connect_dots=True)
    expected = one_round.self_compose(6).get_epsilon_for_delta(1e-4)
    assert claim.epsilon((), {}, 1e-4) == pytest.approx(expected, abs=1e-3)


def test_pfl_adaptive_clipping_is_one_release_of_the_joint_bound(run):
    """C' = C / (1 - (z / z_b)^2)^1/2 bounds update and bit together; noise is z C'."""
    mechanism = AdaptiveClippingGaussianMechanism(
        lambda bound: GaussianMechanism(bound, 1.5), 0.5, 3.0, 0.5
    )
    lines = lines_of(run(make_backend(mechanism)))
    assert lines[0].threshold == pytest.approx(0.5 / math.sqrt(1 - (1.5 / 3.0) ** 2))
    assert lines[0].dimension == 501
    multipliers = [line.noise_multiplier for line in lines]
    assert multipliers == pytest.approx([1.5] * ROUNDS)
    assert len({line.threshold for line in lines}) == ROUNDS
    assert reasons(lines) == [""] * ROUNDS


def test_pfl_local_mechanism_is_noise_of_each_user(run):
    local = GaussianMechanism(0.5, 4.0)
    lines = lines_of(run(make_backend(local, **IN_TURN), users=USERS))
    for line in lines:
        values = line.name, line.observer, line.noise_std, line.reason
        assert values == ("own-update", "server", 2.0, "")
    backend = make_backend(local.approximate_as_central_mechanism())
    with pytest.raises(DpsumError, match="not a GaussianMechanism, central or local"):
        run(backend)


class FixedEncoder(BandedMatrixFactorizationMechanism):
    """Banded noise of a fixed query matrix, which pfl would optimise."""

    def __init__(self, encoder):
        GaussianMechanism.__init__(self, 0.5, 1.5)
        self._C = encoder
        self._C_inv_noise = ForwardSubstitution(encoder, 4)


def test_pfl_banded_noise_is_read_from_its_query_matrix(run):
    """Norms of its columns, and rows of its inverse."""
    neighbours = np.eye(ROUNDS, k=1) + np.eye(ROUNDS, k=-1)
    encoder = np.linalg.cholesky(np.eye(ROUNDS) + 0.4 * neighbours)
    backend = make_backend(Central(FixedEncoder(encoder)), **IN_TURN)
    lines = lines_of(run(backend, users=USERS))
    largest_norm = np.linalg.norm(encoder, axis=0).max()
    assert largest_norm > 1.01
    weights = np.zeros((ROUNDS, ROUNDS))
    for index, line in enumerate(lines):
        assert line.mechanism == "correlated-gaussian"
        assert line.sensitivity == pytest.approx(0.5 * largest_norm, rel=1e-6)
        assert line.noise_std == pytest.approx(0.75)
        weights[index, : index + 1] = line.combines
    assert reasons(lines) == [""] * ROUNDS
    np.testing.assert_allclose(weights @ encoder, np.eye(ROUNDS), atol=1e-6)


def test_pfl_account_of_known_cohorts_is_one_gaussian(run):
    """Fifty users in turn, ten a round: a user is in each fifth round, so in two of
    six, as in pfl's accountant.
    """
    accountant = PLDPrivacyAccountant(
        2, 1.0, "gaussian", noise_parameter=1.5, delta=DELTA
    )
    mechanism = GaussianMechanism.from_privacy_accountant(accountant, 0.5)
    watched = run(make_backend(Central(mechanism), **IN_TURN), users=USERS)
    turns = {"kind": "min-separation", "separation": 5, "participations": 2}
    assert lines_of(watched)[0].sampler == SAMPLER | turns
    profiles = watched.account(DELTA).profiles
    proven = profiles["proven"]
    claimed = profiles["claimed"].epsilon_high
    assert proven.status == "proved"
    assert proven.epsilon_high == pytest.approx(claimed, abs=1e-3)
    expected = gaussian_epsilon(1.5 / math.sqrt(2), DELTA)
    assert proven.epsilon_high == pytest.approx(expected, rel=1e-9)


# Faults

ADD_NOISE = numpy_ops.add_gaussian_noise


def half_noise(tensors, stddev, seed):
    return ADD_NOISE(tensors, stddev / 2, seed)


def test_pfl_reports_half_the_noise(run, monkeypatch):
    """See `test_noise_seen.py` for further faults of the noise."""
    monkeypatch.setattr(numpy_ops, "add_gaussian_noise", half_noise)
    assert "has deviation 0.3" in lines_of(run(make_backend()))[-1].reason


class ClippingByArray(GaussianMechanism):
    """Clipping of each array to the whole bound."""

    def constrain_sensitivity(self, statistics, *args, **kwargs):
        def clip(values):
            return values * min(1.0, 0.5 / np.linalg.norm(values))

        _, metrics = super().constrain_sensitivity(statistics, *args, **kwargs)
        return statistics.apply_elementwise(clip), metrics


@pytest.mark.parametrize(
    ("backend", "metrics", "message"),
    [
        (
            make_backend(Central(ClippingByArray(0.5, 1.5))),
            "kept",
            "than the bound 0.5",
        ),
        # The sum of weights before clipping is released without noise.
        (make_backend(weigh=WeightByDatapoints), "kept", "weights other than 1"),
        # Weights after clipping.
        (make_backend(None, WeightByDatapoints()), "kept", "more than the bound"),
        (make_backend(), "released", "the users' metrics"),
    ],
)
def test_pfl_reports_clipping_and_releases_without_noise(
    run, backend, metrics, message
):
    assert message in lines_of(run(backend, metrics=metrics))[0].reason


def test_pfl_reports_a_user_who_returns_too_early(run):
    """Forty users take turns, where fifty are stated."""
    lines = lines_of(run(make_backend(users=40, **IN_TURN), users=USERS))
    assert "took part again after 4 rounds" in lines[4].reason


def test_pfl_reports_a_cohort_of_varying_size(run):
    """pfl can simulate that more users answer than were asked."""
    backend = make_backend()
    backend._max_overshoot_fraction = 0.9
    assert any("followed one of" in text for text in reasons(lines_of(run(backend))))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of pfl's own arithmetic
@pytest.mark.parametrize("value", [1e308, math.nan, math.inf, 1e-200])
def test_pfl_writes_a_line_whatever_a_user_sends(run, monkeypatch, value):
    """The lines have a reason where pfl itself does not clip."""
    monkeypatch.setattr(RandomUpdates, "value", value)
    lines = lines_of(run(make_backend()))
    assert len(lines) == ROUNDS
    assert any(reasons(lines)) == (not math.isfinite(value))


# Refusals


def test_pfl_account_refuses_an_unknown_sampler(run):
    watched = run(make_backend(sampler=lambda: 3), users=USERS)
    with pytest.raises(DpsumError, match="sampler 'unknown', so no epsilon"):
        watched.account(DELTA)


# Audits


@pytest.mark.parametrize("fault", [None, half_noise])
def test_pfl_audit_refutes_planted_faults_alone(run, monkeypatch, fault):
    """The audit refutes correct code once in a thousand."""
    watched = run(make_backend(**IN_TURN), users=USERS)
    if fault:
        monkeypatch.setattr(numpy_ops, "add_gaussian_noise", fault)
    audit = watched.audit(DELTA, calls=200)
    assert audit.refuted is (fault is not None), audit.status


def test_pfl_audit_refuses_correlated_and_local_noise():
    with pytest.raises(DpsumError, match="several rounds"):
        pfl.release_of(Central(FixedEncoder(np.eye(4))))
    with pytest.raises(DpsumError, match="each user's own"):
        pfl.release_of(GaussianMechanism(0.5, 1.0))
