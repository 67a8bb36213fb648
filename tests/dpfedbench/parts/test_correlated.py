"""Correlated noise: its covariance, its streams, its sensitivity, what is refused, and
a run with it.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedbench.errors import BenchError
from dpfedbench.parts.compatibility import check_part
from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.parts.server.server_step import Step
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.correlated_noise import Factorised
from dpsum.factorisations import Optimised, SquareRoot, inverted
from dpsum.ledger import read_ledger
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream
from tests.dpfedbench.federation.conftest import (
    accounted,
    federation,  # noqa: F401
    make_config,
    releases_of,
    stop_before,
    train,
)

ROUNDS, WIDE = 8, 40_000
LEVEL = 1e-3  # of each statistical test, with fixed seeds
STEP = Step(rate=0.1, optimizer=Sgd(momentum=0.9))
RUN = {
    "method": "dp-agr-ftrl",
    "noise": {"multiplier": 2.0, "factorisation": "square-root"},
}


def planned(factorisation, rounds=ROUNDS):
    noise = Factorised(multiplier=1.0, factorisation=factorisation)
    return noise.planned(rounds, STEP, (1, 1))


def drawn(noise, seed=0, dimension=WIDE):
    return np.stack(
        [
            noise.standard(lambda at: stream(seed, "noise", at), i, dimension)
            for i in range(noise.rounds)
        ]
    )


@pytest.mark.parametrize(
    "factorisation",
    [SquareRoot(), SquareRoot(band=2), Optimised(workload="server")],
    ids=repr,
)
def test_its_covariance_is_that_of_the_encoders_inverse(factorisation):
    """C X is independent and standard: by Kolmogorov and Smirnov over all of it, and by
    Bartlett over rounds.

    Of right noise each fails for one seed in a thousand. Independent noise of the same
    deviations fails both of these on C X: its covariance is another.
    """
    noise = planned(factorisation)
    weights = factorisation.weights(ROUNDS, STEP)

    def fits(x):
        encoded = inverted(weights) @ x
        correlation = np.linalg.slogdet(np.corrcoef(encoded))[1]
        bartlett = -(WIDE - 1 - (2 * ROUNDS + 5) / 6) * correlation
        alike = stats.chi2(ROUNDS * (ROUNDS - 1) / 2).sf(bartlett)
        return min(alike, stats.kstest(encoded.ravel(), "norm").pvalue) > LEVEL

    x = drawn(noise)
    assert fits(x)
    deviations = np.linalg.norm(weights, axis=1, keepdims=True)
    assert not fits(deviations * np.random.default_rng(0).standard_normal(x.shape))
    assert not fits(0.97 * x)
    spread = np.einsum("td,sd->ts", x, x) / WIDE
    assert spread == pytest.approx(
        weights @ weights.T,
        abs=6 * math.sqrt(2 / WIDE) * float((weights**2).sum(1).max()),
    )


def test_coordinates_are_independent():
    """Correlations are N(0, 1/n): 5 deviations, false alarm below 1e-5 over all."""
    x = drawn(planned(SquareRoot()))
    neighbours = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in x]
    assert np.abs(neighbours).max() < 5 / math.sqrt(WIDE)


def test_the_same_draws_are_made_again_and_none_of_later_rounds():
    noise, asked = planned(SquareRoot()), []

    def stream_of(index):
        asked.append(index)
        return stream(3, "noise", index)

    alone = noise.standard(stream_of, 5, 50)
    assert asked == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(alone, drawn(noise, seed=3, dimension=50)[5])
    by_hand = sum(
        w * stream(3, "noise", i).standard_normal(50)
        for i, w in enumerate(noise.combines(5))
    )
    assert alone == pytest.approx(by_hand, rel=1e-12)


def test_a_band_asks_for_its_own_draws_alone():
    asked = []
    planned(SquareRoot(band=2)).standard(
        lambda at: asked.append(at) or stream(0, "noise", at), 5, 10
    )
    assert asked == [4, 5]


def test_no_round_beyond_the_factorisation():
    with pytest.raises(BenchError, match="for 8 rounds, and round 8"):
        planned(SquareRoot()).combines(8)


class Silent:
    def standard_normal(self, size):
        return np.zeros(size)


@pytest.mark.parametrize("factorisation", [SquareRoot(), Optimised()], ids=repr)
def test_neighbouring_encoded_sums_differ_by_at_most_the_threshold(factorisation):
    """Property 3 over all rounds: one client, which is in one round, zeroed; extreme
    contributions among them.
    """
    encoder, rng, worst = (
        inverted(factorisation.weights(5, STEP)),
        np.random.default_rng(0),
        0.0,
    )

    def encoded(inputs, threshold):
        sums = []
        for rows in inputs:
            total = PrivateSum(dimension=4, threshold=threshold, noise_multiplier=1.0)
            total.add(rows)
            sums.append(total.release(Silent()))
        return encoder @ np.stack(sums)

    for _ in range(300):
        threshold = float(10 ** rng.uniform(-3, 3))
        drawn_inputs = rng.normal(size=(5, 3, 4)) * 10 ** rng.uniform(
            -8, 8, size=(5, 1, 1)
        )
        inputs = list(torch.from_numpy(drawn_inputs.astype(np.float32)))
        inputs[rng.integers(5)][rng.integers(3), rng.integers(4)] = [
            1e30,
            -1e30,
            math.inf,
            math.nan,
        ][rng.integers(4)]
        whole = encoded(inputs, threshold)
        for at, row in itertools.product(range(5), range(3)):
            neighbour = [rows.clone() for rows in inputs]
            neighbour[at][row] = 0.0
            worst = max(
                worst,
                float(np.linalg.norm(whole - encoded(neighbour, threshold)))
                / threshold,
            )
    assert 0.99 < worst <= 1 + 1e-6


def test_what_left_is_the_sum_and_the_combination_that_the_ledger_says():
    config = make_config(RUN, {"participation": {"rounds": 4}})
    gradients = np.random.default_rng(0).normal(size=(48, 6))
    plan = config.participation.plan(clients=48, seed=0)
    for index, (lines, values) in enumerate(releases_of(config, gradients)):
        (line,), (left,) = lines, values
        assert (
            line.mechanism == "correlated-gaussian" and len(line.combines) == index + 1
        )
        rows = gradients[plan.sample_cohort(index)]
        clipped = rows * np.minimum(
            1, 0.5 / np.linalg.norm(rows, axis=1, keepdims=True)
        )
        noise = sum(
            w * stream(0, "noise", i).standard_normal(6)
            for i, w in enumerate(line.combines)
        )
        assert left * 4 == pytest.approx(
            clipped.sum(axis=0) + line.noise_std * noise, rel=1e-5
        )
        assert (line.noise_std, line.sensitivity) == (2.0 * 0.5, 0.5)


def test_a_runs_noise_is_planned_for_its_own_server_and_rounds():
    """The encoder of the least error is another for each momentum, schedule and number
    of rounds.
    """
    found = []
    for momentum, schedule, rounds in (
        (0.9, "constant", 12),
        (0.5, "constant", 12),
        (0.9, "cosine", 12),
        (0.9, "constant", 8),
    ):
        server = {
            "optimizer": {"kind": "sgd", "momentum": momentum},
            "schedule": schedule,
        }
        run = make_config(
            {
                "method": "dp-agr-ftrl",
                "server": server,
                "participation": {"rounds": rounds},
            }
        )
        line = releases_of(run, np.zeros((48, 2)))[-1][0][0]
        assert (
            line.combines
            == Optimised(workload="server").weights(rounds, run.server)[-1].tolist()
        )
        found.append(tuple(line.combines[-5:]))
    assert len(set(found)) == 4


def test_a_killed_run_ends_with_the_same_bits_and_its_account_is_one_gaussians(
    federation,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    config = make_config(RUN, {"noise": {"factorisation": {"kind": "optimised"}}})
    whole = train(config, federation, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 7)):
        train(config, federation, tmp_path / "killed", checkpoint_seconds=0)
    assert train(config, federation, tmp_path / "killed") == whole
    assert [
        len(line.combines) for line in read_ledger(tmp_path / "whole" / "ledger.jsonl")
    ] == list(range(1, 13))
    profiles = accounted(config, tmp_path / "whole", federation[1])["profiles"]
    exact = gaussian_epsilon(2.0, 1e-3)
    for name in ("as_claimed", "holds"):
        found = profiles[name]
        assert (
            found["epsilon_low"]
            == found["epsilon_high"]
            == pytest.approx(exact, rel=1e-9)
        )
        assert found["status"] == "proved"
    assert profiles["replace_one"]["epsilon_high"] == pytest.approx(
        gaussian_epsilon(1.0, 1e-3), rel=1e-9
    )
    assert profiles["image_level"]["epsilon_high"] > exact


def test_a_null_multiplier_is_that_of_one_gaussian():
    """z = 2.905 for (1.5, 1e-6), as for one pass with independent noise
    (docs/privacy.md).
    """
    config = make_config(
        {
            "method": "dp-agr-ftrl",
            "noise": {"multiplier": None},
            "budget": {"epsilon": 1.5, "delta": 1e-6},
        }
    )
    line = releases_of(config, np.zeros((48, 2)))[0][0][0]
    assert line.noise_multiplier == 2.905


@pytest.mark.parametrize(
    ("overlay", "line"),
    [
        (
            {"participation": "poisson"},
            ('participation.kind is "poisson"'),
        ),
        (
            {"participation": "fixed-size"},
            'participation.kind is "fixed-size"',
        ),
        (
            {"clipping": "private-quantile"},
            'clipping.kind is "private-quantile"',
        ),
        (
            {"noise": {"rounds": 11}},
            (
                "noise.rounds is 11, fewer than participation.rounds (12): a"
                " factorisation has to"
            ),
        ),
        (
            {"noise": {"multiplier": None}},
            "noise.multiplier and budget.epsilon are both null: give one",
        ),
        (
            {"noise": {"kind": "fixed"}},
            'noise.kind is "fixed"',
        ),
    ],
)
def test_bad_values_are_one_line(overlay, line):
    with pytest.raises(BenchError) as caught:
        make_config({"method": "dp-agr-ftrl"}, overlay)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overlay", "line"),
    [
        (
            {"participation": "poisson"},
            (
                "participation.kind is poisson, but correlated noise is accounted for"
                " where each"
            ),
        ),
        (
            {"participation": "fixed-size"},
            "participation.kind is fixed-size, but correlated noise is accounted",
        ),
        (
            {"clipping": "percentile-of-releases"},
            "clipping.kind is percentile-of-releases, but correlated noise takes",
        ),
    ],
)
def test_a_method_that_takes_more_is_refused_by_the_noise_itself(overlay, line):
    run = make_config({"method": "dp-agr"}, overlay)
    with pytest.raises(BenchError) as caught:
        check_part(run, Factorised())
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
