"""Correlated noise: its covariance, streams and sensitivity, and a run with it."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.parts.server.server_step import Step
from dploss.gaussian import gaussian_epsilon
from dpsum.correlated_noise import Factorised
from dpsum.factorisations import Optimised, SquareRoot, inverted
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream
from tests.dpfedbench.training.conftest import (
    accounted,
    ledger_in,
    make_config,
    releases_of,
    stop_before,
    train,
)
from tests.dpsum.helpers import NO_NOISE

ROUNDS = 8
WIDE = 40_000
LEVEL = 1e-3  # of each statistical test, with fixed seeds
STEP = Step(rate=0.1, optimizer=Sgd(momentum=0.9))
FTRL = {"method": "dp-agr-ftrl"}
RUN = FTRL | {"noise": {"multiplier": 2.0, "factorisation": "square-root"}}


def planned(factorisation):
    noise = Factorised(multiplier=1.0, factorisation=factorisation)
    return noise.planned(ROUNDS, STEP, (1, 1))


def draw(noise, seed=0, dimension=WIDE):
    """Return the noise of all rounds, float64 [rounds, d]."""
    return np.stack(
        [
            noise.standard(lambda i: stream(seed, "noise", i), index, dimension)
            for index in range(noise.rounds)
        ]
    )


@pytest.mark.parametrize(
    "factorisation",
    [SquareRoot(), SquareRoot(band=2), Optimised(workload="server")],
    ids=repr,
)
def test_correlated_noise_has_the_covariance_of_the_encoders_inverse(factorisation):
    """C X is independent and standard (Kolmogorov-Smirnov over all of it, Bartlett over
    rounds).

    Each test rejects correct noise for one seed in a thousand. Independent noise of the
    same deviations fails on C X, since its covariance is another one.
    """
    weights = factorisation.weights(ROUNDS, STEP)

    def fits(noise):
        encoded = inverted(weights) @ noise
        correlation = np.linalg.slogdet(np.corrcoef(encoded))[1]
        statistic = -(WIDE - 1 - (2 * ROUNDS + 5) / 6) * correlation
        bartlett = stats.chi2(ROUNDS * (ROUNDS - 1) / 2).sf(statistic)
        return min(bartlett, stats.kstest(encoded.ravel(), "norm").pvalue) > LEVEL

    noise = draw(planned(factorisation))
    assert fits(noise)
    deviations = np.linalg.norm(weights, axis=1, keepdims=True)
    assert not fits(deviations * np.random.default_rng(0).standard_normal(noise.shape))
    assert not fits(0.97 * noise)
    covariance = np.einsum("td,sd->ts", noise, noise) / WIDE
    largest = float((weights**2).sum(1).max())
    error = 6 * math.sqrt(2 / WIDE) * largest
    assert covariance == pytest.approx(weights @ weights.T, abs=error)


def test_correlated_noise_is_independent_over_coordinates():
    """Correlations are N(0, 1/n), and 5 deviations have a false-alarm rate below 1e-5."""
    noise = draw(planned(SquareRoot()))
    neighbours = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in noise]
    assert np.abs(neighbours).max() < 5 / math.sqrt(WIDE)


@pytest.mark.parametrize("factorisation", [SquareRoot(), Optimised()], ids=repr)
def test_encoded_sums_of_neighbours_differ_by_at_most_the_threshold(factorisation):
    """Property 3 over all rounds: one client, which is in one round, becomes zero. Some
    contributions are extreme.
    """
    encoder = inverted(factorisation.weights(5, STEP))
    rng = np.random.default_rng(0)
    extremes = (1e30, -1e30, math.inf, math.nan)
    largest = 0.0

    def encoded(inputs, threshold):
        sums = []
        for rows in inputs:
            total = PrivateSum(dimension=4, threshold=threshold, noise_multiplier=1.0)
            total.add(rows)
            sums.append(total.release(NO_NOISE))
        return encoder @ np.stack(sums)

    for _ in range(300):
        threshold = float(10 ** rng.uniform(-3, 3))
        scales = 10 ** rng.uniform(-8, 8, size=(5, 1, 1))
        rows = (rng.normal(size=(5, 3, 4)) * scales).astype(np.float32)
        inputs = list(torch.from_numpy(rows))
        value = extremes[rng.integers(4)]
        inputs[rng.integers(5)][rng.integers(3), rng.integers(4)] = value
        whole = encoded(inputs, threshold)
        for index, client in itertools.product(range(5), range(3)):
            neighbour = [rows.clone() for rows in inputs]
            neighbour[index][client] = 0.0
            distance = np.linalg.norm(whole - encoded(neighbour, threshold))
            largest = max(largest, float(distance) / threshold)
    assert 0.99 < largest <= 1 + 1e-6


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
        assert line.noise_std == 2.0 * 0.5
        assert line.sensitivity == 0.5


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
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 7)):
        train(config, federation, tmp_path / "killed", checkpoint_seconds=0)
    assert train(config, federation, tmp_path / "killed") == whole
    lengths = [len(line.combines) for line in ledger_in(tmp_path / "whole")]
    assert lengths == list(range(1, 13))
    profiles = accounted(config, tmp_path / "whole", federation[1])["profiles"]
    exact = gaussian_epsilon(2.0, 1e-3)
    for name in ("claimed", "proven"):
        profile = profiles[name]
        assert profile["epsilon_low"] == profile["epsilon_high"]
        assert profile["epsilon_high"] == pytest.approx(exact, rel=1e-9)
        assert profile["status"] == "proved"
    replaced = gaussian_epsilon(1.0, 1e-3)
    assert profiles["replace_one"]["epsilon_high"] == pytest.approx(replaced, rel=1e-9)
    assert profiles["image_level"]["epsilon_high"] > exact


def test_calibrated_correlated_noise_is_that_of_one_gaussian():
    """z = 2.905 for (1.5, 1e-6), as for one pass with independent noise
    (docs/privacy.md).
    """
    budget = {"noise": {"multiplier": None}, "budget": {"epsilon": 1.5, "delta": 1e-6}}
    (line,), _ = releases_of(make_config(FTRL | budget), np.zeros((48, 2)))[0]
    assert line.noise_multiplier == 2.905
