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
from pfl.privacy import (
    CentrallyAppliedPrivacyMechanism,
    GaussianMechanism,
    PLDPrivacyAccountant,
)
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


class UnchangedModel:
    """Model that ignores updates."""

    def apply_model_update(self, statistics):
        return self, Metrics()


class RandomUpdates(FederatedAveraging):
    """Users whose updates are normal draws, of norm far above the bound."""

    def simulate_one_user(self, model, user_dataset, central_context):
        rng = np.random.default_rng(user_dataset.user_id)
        arrays = {key: rng.normal(size=shape) for key, shape in SHAPES.items()}
        return MappedVectorStatistics(arrays), Metrics()


def central(mechanism=None):
    mechanism = mechanism or GaussianMechanism(0.5, 1.5)
    return CentrallyAppliedPrivacyMechanism(mechanism)


def make_backend(
    mechanism=None, *further, sampler="random", weigh=WeightByUser, users=USERS
):
    def dataset_of(user):
        return Dataset((np.zeros(user % 7 + 1),), user_id=user)

    if isinstance(sampler, str):
        sampler = get_user_sampler(sampler, list(range(users)))
    data = FederatedDataset(dataset_of, sampler)
    processors = [weigh(), mechanism or central(), *further]
    return SimulatedBackend(data, data, postprocessors=processors)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def run(path):
    """Run a watched backend; return its watch."""

    def run_rounds(backend, *, seed=0, **options):
        np.random.seed(seed)
        options = {"metrics": "kept"} | options
        watched = pfl.watch(backend, path, rounds=ROUNDS, **options)
        parameters = NNAlgorithmParams(ROUNDS, 100, COHORT, None)
        RandomUpdates().run(
            parameters,
            backend,
            UnchangedModel(),
            ModelHyperParams(),
            send_metrics_to_platform=False,
        )
        return watched

    return run_rounds


@pytest.fixture
def run_lines(run):
    """Run a watched backend; return the lines of its ledger."""
    return lambda backend, **options: read_ledger(run(backend, **options).path)


def reasons(lines):
    return [line.reason for line in lines]


# Right code

SAMPLER = {"clients": 50, "cohort": 10, "rounds": 6, "rate": 0.2}


def test_pfl_central_gaussian_has_a_line_a_round(run_lines):
    for line in run_lines(make_backend()):
        assert line.sampler == SAMPLER | {"kind": "fixed-draws"}
        assert line.threshold == line.sensitivity == 0.5
        assert line.noise_std == 0.75
        assert line.dimension == 500
        assert line.denominator == 10
        assert line.reason == ""


def test_pfl_random_sampler_draws_users_with_replacement():
    """Ten draws of fifty users differ with probability 0.3817; 300 cohorts, 5 sigma."""
    np.random.seed(3)
    sampler = get_user_sampler("random", range(USERS))
    data = FederatedDataset(lambda user: Dataset((np.zeros(1),), user_id=user), sampler)
    cohorts = [
        {dataset.user_id for dataset, _ in data.get_cohort(COHORT)} for _ in range(300)
    ]
    distinct = sum(len(cohort) == COHORT for cohort in cohorts)
    chance = math.prod((USERS - i) / USERS for i in range(COHORT))
    error = 5 * math.sqrt(300 * chance * (1 - chance))
    assert abs(distinct - 300 * chance) < error


def test_pfl_minimize_reuse_is_known_rounds_that_are_apart(run_lines):
    """Fifty users, ten a round: a user is in each fifth round, so in two of six."""
    lines = run_lines(make_backend(**IN_TURN), users=USERS)
    separation = {"separation": 5, "participations": 2}
    assert lines[0].sampler == SAMPLER | {"kind": "min-separation"} | separation
    assert reasons(lines) == [""] * ROUNDS


def test_pfl_claim_names_noise_that_was_not_added(run):
    """A cohort of 10 simulates one of 100 with a tenth of the noise.

    Reference: the distribution of the privacy loss of six rounds of z = 1.
    """
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    accountant = PLDPrivacyAccountant(
        6, 0.02, "gaussian", noise_parameter=1.0, delta=DELTA, noise_scale=0.1
    )
    mechanism = GaussianMechanism.from_privacy_accountant(accountant, 0.5)
    watched = run(make_backend(central(mechanism)))
    for line in read_ledger(watched.path):
        assert line.noise_multiplier == pytest.approx(0.1)
    claim = watched.claim()
    assert claim.epsilon((), {}, DELTA) == accountant.epsilon
    assert "10 times the noise that was added" in claim.explanation
    one_round = from_gaussian_mechanism(1.0, sampling_prob=0.02, use_connect_dots=True)
    expected = one_round.self_compose(6).get_epsilon_for_delta(1e-4)
    assert claim.epsilon((), {}, 1e-4) == pytest.approx(expected, abs=1e-3)


def test_pfl_adaptive_clipping_is_one_release_of_the_joint_bound(run_lines):
    """C' = C / (1 - (z / z_b)^2)^1/2 bounds update and bit together; noise is z C'."""
    mechanism = AdaptiveClippingGaussianMechanism(
        lambda bound: GaussianMechanism(bound, 1.5), 0.5, 3.0, 0.5
    )
    lines = run_lines(make_backend(mechanism))
    assert lines[0].threshold == pytest.approx(0.5 / math.sqrt(1 - (1.5 / 3.0) ** 2))
    assert lines[0].dimension == 501
    multipliers = [line.noise_multiplier for line in lines]
    assert multipliers == pytest.approx([1.5] * ROUNDS)
    assert len({line.threshold for line in lines}) == ROUNDS
    assert reasons(lines) == [""] * ROUNDS


def test_pfl_local_mechanism_is_noise_of_each_user(run_lines, tmp_path):
    """An approximated local mechanism adds the noise of all users once."""
    local = GaussianMechanism(0.5, 4.0)
    lines = run_lines(make_backend(local, **IN_TURN), users=USERS)
    for line in lines:
        assert (line.name, line.observer) == ("own-update", "server")
        assert (line.noise_std, line.reason) == (2.0, "")
    (tmp_path / "ledger.jsonl").unlink()
    lines = run_lines(make_backend(local.approximate_as_central_mechanism()))
    expected = [2.0 * math.sqrt(COHORT)] * ROUNDS
    assert [line.noise_std for line in lines] == pytest.approx(expected)
    assert reasons(lines) == [""] * ROUNDS


class FixedEncoder(BandedMatrixFactorizationMechanism):
    """Banded noise of a fixed query matrix, which pfl would optimise."""

    def __init__(self, encoder):
        GaussianMechanism.__init__(self, 0.5, 1.5)
        self._C = encoder
        self._C_inv_noise = ForwardSubstitution(encoder, 4)


def test_pfl_banded_noise_is_read_from_its_query_matrix(run_lines):
    """Norms of its columns, and rows of its inverse."""
    neighbours = np.eye(ROUNDS, k=1) + np.eye(ROUNDS, k=-1)
    encoder = np.linalg.cholesky(np.eye(ROUNDS) + 0.4 * neighbours)
    backend = make_backend(central(FixedEncoder(encoder)), **IN_TURN)
    lines = run_lines(backend, users=USERS)
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


def test_pfl_query_matrix_has_columns_longer_than_one(tmp_path, monkeypatch):
    """pfl takes the lower factor L of X = L L^T for the C of X = C^T C: rows of norm 1
    in place of columns.
    """
    pytest.importorskip("torch")
    from pfl.internal.ops import pytorch_ops, selector

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(selector, "_framework_module", pytorch_ops)
    one_cohort = SimpleNamespace(cohort_noise_parameter=1.0)
    mechanism = BandedMatrixFactorizationMechanism(1.0, 40, 10, lambda _: one_cohort)
    encoder = mechanism.query_matrix
    np.testing.assert_allclose(np.linalg.norm(encoder, axis=1), 1.0, atol=1e-5)
    assert np.linalg.norm(encoder, axis=0).max() > 1.8


def test_pfl_account_of_known_cohorts_is_one_gaussian(run):
    """Users in turn are in two of six rounds, as in pfl's accountant."""
    accountant = PLDPrivacyAccountant(
        2, 1.0, "gaussian", noise_parameter=1.5, delta=DELTA
    )
    mechanism = GaussianMechanism.from_privacy_accountant(accountant, 0.5)
    watched = run(make_backend(central(mechanism), **IN_TURN), users=USERS)
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


def test_pfl_reports_half_the_noise(run_lines, monkeypatch):
    """See `test_noise_seen.py` for further faults of the noise."""
    monkeypatch.setattr(numpy_ops, "add_gaussian_noise", half_noise)
    assert "has deviation 0.3" in run_lines(make_backend())[-1].reason


class ClippingByArray(GaussianMechanism):
    """Clipping of each array to the whole bound."""

    def constrain_sensitivity(self, statistics, *args, **kwargs):
        def clip(values):
            return values * min(1.0, 0.5 / np.linalg.norm(values))

        _, metrics = super().constrain_sensitivity(statistics, *args, **kwargs)
        return statistics.apply_elementwise(clip), metrics


def test_pfl_reports_clipping_by_array(run_lines):
    lines = run_lines(make_backend(central(ClippingByArray(0.5, 1.5))))
    assert "more than the bound 0.5" in lines[0].reason


@pytest.mark.parametrize(
    ("backend", "metrics", "message"),
    [
        # The sum of weights before clipping is released without noise.
        (make_backend(weigh=WeightByDatapoints), "kept", "weights other than 1"),
        # Weights after clipping.
        (make_backend(central(), WeightByDatapoints()), "kept", "more than the bound"),
        (make_backend(), "released", "the users' metrics"),
    ],
)
def test_pfl_reports_a_release_without_noise(run_lines, backend, metrics, message):
    assert message in run_lines(backend, metrics=metrics)[0].reason


def test_pfl_reports_a_user_who_returns_too_early(run_lines):
    """Forty users take turns, where fifty are stated."""
    lines = run_lines(make_backend(users=40, **IN_TURN), users=USERS)
    assert "took part again after 4 rounds" in lines[4].reason


def test_pfl_reports_a_cohort_of_varying_size(run_lines):
    """pfl can simulate that more users answer than were asked."""
    backend = make_backend()
    backend._max_overshoot_fraction = 0.9
    lines = run_lines(backend)
    assert any("followed one of" in line.reason for line in lines)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of pfl's own arithmetic
@pytest.mark.parametrize("value", [1e308, math.nan, math.inf, 1e-200])
def test_pfl_writes_a_line_whatever_a_user_sends(run_lines, monkeypatch, value):
    """The lines have a reason where pfl itself does not clip."""
    simulate = RandomUpdates.simulate_one_user

    def send_value(self, model, user_dataset, central_context):
        statistics, metrics = simulate(self, model, user_dataset, central_context)
        if user_dataset.user_id < 25:
            for array in statistics.values():
                array[:] = value
        return statistics, metrics

    monkeypatch.setattr(RandomUpdates, "simulate_one_user", send_value)
    lines = run_lines(make_backend())
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
        pfl.release_of(central(FixedEncoder(np.eye(4))))
    with pytest.raises(DpsumError, match="each user's own"):
        pfl.release_of(GaussianMechanism(0.5, 1.0))
