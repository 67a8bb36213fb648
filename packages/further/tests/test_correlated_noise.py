"""Correlated noise: its covariance, streams and sensitivity, and a run with it."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.parts.server.server_step import Step
from dploss.gaussian import gaussian_epsilon
from dpsum.correlated_noise import Factorised
from dpsum.factorisations import Optimised, SquareRoot, inverted
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream
from tests.dpfedbench.training import conftest
from tests.dpfedbench.training.conftest import make_config, releases_of, train
from tests.dpsum.helpers import NO_NOISE

ROUNDS = 8
WIDE = 40_000
LEVEL = 1e-3  # of each statistical test, with fixed seeds
STEP = Step(rate=0.1, optimizer=Sgd(momentum=0.9))
FTRL = {"method": "dp-agr-ftrl"}
RUN = FTRL | {"noise": {"multiplier": 2.0, "factorisation": "square-root"}}


def draw(factorisation):
    """Return the noise of all rounds, float64 [rounds, d]."""
    noise = Factorised(multiplier=1.0, factorisation=factorisation)
    noise = noise.planned(ROUNDS, STEP, (1, 1))
    draws = [
        noise.standard(lambda index: stream(0, "noise", index), index, WIDE)
        for index in range(ROUNDS)
    ]
    return np.stack(draws)


@pytest.mark.parametrize(
    "factorisation",
    [SquareRoot(), SquareRoot(band=2), Optimised(workload="server")],
    ids=repr,
)
def test_correlated_noise_has_the_covariance_of_the_encoders_inverse(factorisation):
    """C X is independent and standard; each test rejects correct noise for one seed in
    1,000. Neighbouring coordinates correlate by N(0, 1/n); 5 deviations have a
    false-alarm rate below 1e-5. Independent noise of the same deviations fails on C X.
    """
    weights = factorisation.weights(ROUNDS, STEP)

    def fits(noise):
        encoded = inverted(weights) @ noise
        correlation = np.linalg.slogdet(np.corrcoef(encoded))[1]
        statistic = -(WIDE - 1 - (2 * ROUNDS + 5) / 6) * correlation
        bartlett = stats.chi2(ROUNDS * (ROUNDS - 1) / 2).sf(statistic)
        return min(bartlett, stats.kstest(encoded.ravel(), "norm").pvalue) > LEVEL

    noise = draw(factorisation)
    assert fits(noise)
    deviations = np.linalg.norm(weights, axis=1, keepdims=True)
    assert not fits(deviations * np.random.default_rng(0).standard_normal(noise.shape))
    assert not fits(0.97 * noise)
    covariance = noise @ noise.T / WIDE
    error = 6 * math.sqrt(2 / WIDE) * float((weights**2).sum(1).max())
    assert covariance == pytest.approx(weights @ weights.T, abs=error)
    neighbours = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in noise]
    assert np.abs(neighbours).max() < 5 / math.sqrt(WIDE)


@pytest.mark.parametrize("factorisation", [SquareRoot(), Optimised()], ids=repr)
def test_encoded_sums_of_neighbours_differ_by_at_most_the_threshold(factorisation):
    """Property 3 over all rounds: one client, which is in one round, becomes zero."""
    encoder = inverted(factorisation.weights(5, STEP))
    rng = np.random.default_rng(0)
    extremes = (1e30, -1e30, math.inf, math.nan)
    distances = []

    def encoded(inputs, threshold):
        sums = []
        for rows in inputs:
            total = PrivateSum(dimension=4, threshold=threshold, noise_multiplier=1.0)
            total.add(rows)
            sums.append(total.release(NO_NOISE))
        return encoder @ np.stack(sums) / threshold

    for _ in range(300):
        threshold = float(10 ** rng.uniform(-3, 3))
        scales = 10 ** rng.uniform(-8, 8, size=(5, 1, 1))
        rows = (rng.normal(size=(5, 3, 4)) * scales).astype(np.float32)
        rows[tuple(rng.integers((5, 3, 4)))] = rng.choice(extremes)
        whole = encoded(rows, threshold)
        for unit in itertools.product(range(5), range(3)):
            neighbour = rows.copy()
            neighbour[unit] = 0.0
            distances.append(np.linalg.norm(whole - encoded(neighbour, threshold)))
    assert 0.99 < max(distances) <= 1 + 1e-6


def test_correlated_release_is_the_sum_and_the_ledgers_combination():
    config = make_config(RUN, {"participation": {"rounds": 4}})
    gradients = np.random.default_rng(0).normal(size=(48, 6))
    plan = config.participation.plan(clients=48, seed=0)
    for index, ((line,), (mean,)) in enumerate(releases_of(config, gradients)):
        assert line.mechanism == "correlated-gaussian"
        assert len(line.combines) == index + 1
        rows = gradients[plan.sample_cohort(index)]
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        clipped = (rows * np.minimum(1, 0.5 / norms)).sum(axis=0)
        noise = sum(
            weight * stream(0, "noise", i).standard_normal(6)
            for i, weight in enumerate(line.combines)
        )
        assert mean * 4 == pytest.approx(clipped + line.noise_std * noise, rel=1e-5)
        assert (line.noise_std, line.sensitivity) == (2.0 * 0.5, 0.5)


def test_correlated_noise_is_planned_for_the_server_and_rounds_of_the_run():
    """The encoder of least error depends on momentum, schedule and number of rounds."""
    combinations = set()
    for momentum, schedule, rounds in (
        (0.9, "constant", 12),
        (0.5, "constant", 12),
        (0.9, "cosine", 12),
        (0.9, "constant", 8),
    ):
        optimizer = {"kind": "sgd", "momentum": momentum}
        server = {"optimizer": optimizer, "schedule": schedule}
        plan = {"server": server, "participation": {"rounds": rounds}}
        run = make_config(FTRL | plan)
        (line,), _ = releases_of(run, np.zeros((48, 2)))[-1]
        expected = Optimised(workload="server").weights(rounds, run.server)[-1]
        assert line.combines == expected.tolist()
        combinations.add(tuple(line.combines[-5:]))
    assert len(combinations) == 4


def test_correlated_run_resumes_with_the_same_bits_and_is_one_gaussian(
    federation, tmp_path, monkeypatch
):
    config = make_config(RUN, {"noise": {"factorisation": {"kind": "optimised"}}})
    whole = train(config, federation, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(conftest.stop_before(patch, 7)):
        train(config, federation, tmp_path / "killed", checkpoint_seconds=0)
    assert train(config, federation, tmp_path / "killed") == whole
    lengths = [len(line.combines) for line in conftest.ledger_in(tmp_path / "whole")]
    assert lengths == list(range(1, 13))
    profiles = conftest.accounted(config, tmp_path / "whole", federation[1])["profiles"]
    for name, z in (("claimed", 2.0), ("proven", 2.0), ("replace_one", 1.0)):
        profile = profiles[name]
        assert profile["status"] == "proved"
        exact = pytest.approx(gaussian_epsilon(z, 1e-3), rel=1e-9)
        assert profile["epsilon_low"] == profile["epsilon_high"] == exact
    assert profiles["image_level"]["epsilon_high"] > gaussian_epsilon(2.0, 1e-3)
