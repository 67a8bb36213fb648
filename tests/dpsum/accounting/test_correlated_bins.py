"""Correlated noise in secret rounds without draws (those: `test_importance_sampling`), and of
ledgers: exact values, faults.

These are: a band more than the account knows of, an encoder of another length,
correlation that is ignored.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.optimize import brentq

import dpsum
from dpfedbench.errors import BenchError
from dpsum import factorisations
from dpsum.accounting import analyses, importance_sampling
from dpsum.accounting.account import account
from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import balls_and_bins
from dpsum.accounting.analyses import correlated_balls_and_bins as correlated_bins
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from dpsum.ledger import read_ledger
from tests.dpsum.accounting import test_correlated

DELTA = 1e-4


def banded(rounds, bands):
    """The square root of prefix sums cut to so many bands, its largest column of norm
    1.
    """
    column = np.array(
        [
            math.comb(2 * lag, lag) / 4**lag if lag < bands else 0.0
            for lag in range(rounds)
        ]
    )
    encoder = np.tril(toeplitz(column))
    return encoder / np.linalg.norm(encoder, axis=0).max()


def grid(rounds, z):
    """Points of the releases of so many rounds, float64 [rounds, points], and the
    chance of each without the unit.
    """
    line = np.linspace(-8.5 - 3 / z, 8.5 + 3 / z, {2: 1201, 3: 141}[rounds])
    points = np.stack(np.meshgrid(*[line] * rounds, indexing="ij")).reshape(rounds, -1)
    chances = (
        np.exp(-(points**2).sum(axis=0) / 2)
        * ((line[1] - line[0]) / math.sqrt(2 * math.pi)) ** rounds
    )
    return points, chances


def ratio(encoder, z, points, contributions=None):
    """f at each point; `contributions` [rounds, points]: those of each round, by
    default 1.
    """
    sizes = np.ones_like(points) if contributions is None else contributions
    found = np.zeros(points.shape[1])
    for at in range(len(encoder)):
        column = encoder[:, at] / z
        found += np.exp(
            sizes[at] * (column @ points) - (column @ column) * sizes[at] ** 2 / 2
        ) / len(encoder)
    return found


def exact(found, chances, delta=DELTA):
    """Epsilon of both directions by summation over the grid."""

    def root(excess):
        return brentq(excess, 0.0, 40.0, xtol=1e-9) if excess(0.0) > 0 else 0.0

    return max(
        root(
            lambda epsilon: (
                float(chances @ np.maximum(found - math.exp(epsilon), 0.0)) - delta
            )
        ),
        root(
            lambda epsilon: (
                float(chances @ np.maximum(1 - math.exp(epsilon) * found, 0.0)) - delta
            )
        ),
    )


def ends(encoder, z, done=None, delta=DELTA):
    rounds, run = len(encoder), done or len(encoder)
    part = encoder[:run, :run] / z
    gram, sizes = part.T @ part, np.abs(part).T @ np.abs(part)
    high = correlated_bins.upper_epsilon(
        correlated_bins.overlaps(sizes), rounds, run, delta
    )
    return correlated_bins.lower_epsilon(gram, rounds, delta), high


def high_end(encoder, z, delta):
    sizes = np.abs(encoder).T @ np.abs(encoder) / z**2
    return correlated_bins.upper_epsilon(
        correlated_bins.overlaps(sizes), len(encoder), len(encoder), delta
    )


@pytest.mark.parametrize("z", [0.7, 1.5, 4.0])
@pytest.mark.parametrize(("rounds", "bands"), [(2, 1), (2, 2), (3, 2), (3, 3)])
def test_two_and_three_rounds_are_a_quadrature(rounds, bands, z):
    encoder = banded(rounds, bands)
    encoder /= np.linalg.norm(encoder, axis=0)
    points, chances = grid(rounds, z)
    assert chances.sum() == pytest.approx(1.0, abs=1e-9)
    low, high = ends(encoder, z)
    found = exact(ratio(encoder, z, points), chances)
    assert low <= found + 2e-4 and found <= high + 2e-4  # of the grid's summation
    assert high <= gaussian_epsilon(z, DELTA) + 1e-9  # of the round told
    if bands == 1:
        assert high == pytest.approx(found, abs=2e-3) and low == pytest.approx(
            found, abs=2e-3
        )
    else:
        # Correlation that is ignored would be below the truth.
        assert ends(banded(rounds, 1), z)[1] < found


def test_what_follows_releases_is_no_worse():
    """Two rounds; the second round's contribution has its sign, and its size, by the
    first release.
    """
    encoder, z = banded(2, 2), 1.0
    points, chances = grid(2, z)
    most = exact(ratio(encoder, z, points), chances)
    ones, first = np.ones(points.shape[1]), points[0]
    for second in (
        np.sign(first),
        np.where(first > 0.5, 1.0, 0.0),
        np.where(first > 1.0, -1.0, 1.0),
        np.tanh(first),
    ):
        found = exact(ratio(encoder, z, points, np.stack([ones, second])), chances)
        assert found <= most + 1e-6
    assert found < most - 1e-3  # the pair is not reached by all


def test_an_encoder_with_weights_below_nothing_is_taken_by_size():
    """Contributions of opposite signs make it the encoder of the sizes: the high end
    holds, the low end says 0.
    """
    encoder, z = np.array([[1.0, 0.0], [-0.6, 1.0]]) / math.sqrt(1.36), 1.0
    points, chances = grid(2, z)
    low, high = ends(encoder, z)
    assert low == 0.0
    for signs in ((1.0, 1.0), (1.0, -1.0)):
        given = np.outer(signs, np.ones(points.shape[1]))
        assert exact(ratio(encoder, z, points, given), chances) <= high
    assert high == pytest.approx(ends(np.abs(encoder), z)[1], rel=1e-12)


def test_without_correlation_it_is_balls_and_bins():
    low, high = ends(np.eye(40), 1.0, delta=1e-6)
    assert high == balls_and_bins.upper_epsilon(1.0, 40, 40, 1e-6)
    assert low == balls_and_bins.lower_epsilon(1.0, 40, 40, 1e-6)


def test_bands_cost_no_more_than_the_residue_of_the_round():
    """Told i modulo the bands, columns do not overlap: balls-and-bins of as many bins
    fewer.
    """
    three, four, full = (high_end(banded(40, bands), 1.0, 1e-6) for bands in (3, 4, 40))
    assert three <= balls_and_bins.upper_epsilon(1.0, 40 // 3, 40 // 3, 1e-6) + 1e-9
    # A band more than is known of is another number.
    assert three + 0.1 < four < full < 0.8 * gaussian_epsilon(1.0, 1e-6)


def test_simulation_of_forty_rounds_lies_between():
    """E_P (1 - e^eps / f)+ at both ends: 200,000 draws, seed 4; six standard errors
    (false alarm 1e-8).
    """
    encoder, z, rounds, delta = banded(40, 8), 1.0, 40, 1e-2
    low, high = ends(encoder, z, delta=delta)
    rng, columns = np.random.default_rng(4), encoder.T / z
    own = columns[rng.integers(rounds, size=200_000)]
    y = own + rng.standard_normal(own.shape)
    logs = y @ columns.T - (columns**2).sum(axis=1) / 2
    f = np.exp(logs).mean(axis=1)
    for epsilon, side in ((low, 1), (high, -1)):
        values = np.maximum(1 - math.exp(epsilon) / f, 0.0)
        assert side * (values.mean() - delta) > -6 * values.std() / len(values) ** 0.5
    assert low < high < gaussian_epsilon(z, delta)


def test_a_run_that_was_stopped():
    """One of two rounds: with half a chance the unit was in it. By the closed form of
    one sampled Gaussian.
    """
    encoder, z = banded(2, 2), 1.0
    one = np.linspace(-12, 14, 400_001)
    column = encoder[0, 0] / z
    chances = np.exp(-(one**2) / 2) * (one[1] - one[0]) / math.sqrt(2 * math.pi)
    found = exact(0.5 + 0.5 * np.exp(column * one - column**2 / 2), chances)
    low, high = ends(encoder, z, done=1)
    assert low <= found + 1e-5 and found - 1e-5 <= high <= found + 2e-3


Z, C = 2.0, 0.5
SAMPLER = {
    "kind": "balls-and-bins",
    "clients": 400,
    "cohort": 100,
    "rounds": 4,
    "rate": 0.25,
}


def ledger(weights=None, **values):
    lines = test_correlated.ledger(
        np.linalg.inv(banded(4, 2)) if weights is None else weights, **values
    )
    return [dataclasses.replace(line, sampler=SAMPLER) for line in lines]


def drawn(encoder, rounds):
    return list(importance_sampling.bracket(encoder / Z, rounds, DELTA))


def test_a_ledger_is_accounted_for_by_its_weights():
    found = account(ledger(), delta=DELTA, claims={})
    holds = found.profiles["holds"]
    assert [holds.epsilon_low, holds.epsilon_high] == pytest.approx(
        drawn(banded(4, 2), 4), rel=1e-9
    )
    assert (
        ends(banded(4, 2), Z)[0]
        < holds.epsilon_low
        < holds.epsilon_high
        < ends(banded(4, 2), Z)[1]
    )
    assert "chance of at most delta / 1,000" in holds.explanation
    assert (
        holds.status == "proved"
        and found.profiles["replace_one"].epsilon_high > holds.epsilon_high
    )
    stopped = account(ledger(rounds=3), delta=DELTA, claims={}).profiles["holds"]
    assert [stopped.epsilon_low, stopped.epsilon_high] == pytest.approx(
        drawn(banded(4, 2)[:3, :3], 4), rel=1e-9
    )
    assert found.sampler == SAMPLER


def test_weights_of_another_length_or_none_are_refused():
    for change in (lambda row: row[:-1], lambda row: [*row, 0.0], lambda row: None):
        lines = ledger()
        lines[2] = dataclasses.replace(lines[2], combines=change(lines[2].combines))
        with pytest.raises(BenchError, match="release 2 does not say which draws"):
            account(lines, delta=DELTA, claims={})
    with pytest.raises(BenchError, match="by the encoder's weights, not by z alone"):
        analyses.find("correlated-gaussian", "balls-and-bins").high(
            Events.planned(((Z, 4),), SAMPLER), DELTA
        )


def test_an_image_of_several_clients():
    releases = ledger()
    analysis = analyses.of(releases)
    use = ImageUse(images=np.zeros((3, 1), int), rounds=None)
    low, high = analysis.image(analysis.read(releases), use, DELTA)
    assert low == pytest.approx(drawn(banded(4, 2), 4)[0], rel=1e-9)
    assert high == pytest.approx(gaussian_epsilon(Z / 3, DELTA), rel=1e-9)


def test_what_an_inversion_leaves_of_zero_changes_no_end():
    """Libraries for linear algebra leave zeros above a band, or 1e-18 and 1e-35: their
    ratios are no factors.
    """
    encoder = banded(8, 2) / 1.5
    rng = np.random.default_rng(0)
    for size in (1e-17, 1e-34):
        left = size * rng.random((8, 8)) * 10.0 ** rng.integers(-18, 1, (8, 8))
        found = importance_sampling.bracket(encoder + np.tril(left, -2), 8, 1e-6)
        assert found == pytest.approx(
            importance_sampling.bracket(encoder, 8, 1e-6), rel=1e-3
        )


def test_a_mechanism_plans_with_its_encoder_and_its_ledger_agrees(tmp_path):
    rounds = dpsum.BallsAndBins(units=80, cohort=10, rounds=8, seed=1)
    noise = dpsum.Correlated(
        multiplier=None, weights=factorisations.scaled(np.linalg.inv(banded(8, 2)))
    )
    mechanism = dpsum.Mechanism(
        name="sum",
        unit="client",
        observer="everyone",
        dimension=3,
        participation=rounds,
        noise=noise,
        clipping=dpsum.Constant(0.5),
        ledger=tmp_path / "ledger.jsonl",
        seed=1,
        budget=dpsum.Budget(epsilon=1.5, delta=1e-6),
    )
    for index in range(8):
        mechanism.release(mechanism.open(index))
    holds = account(
        read_ledger(tmp_path / "ledger.jsonl"), delta=1e-6, claims={}
    ).profiles["holds"]
    assert 1.49 < holds.epsilon_high <= 1.5
    alone = gaussian_epsilon(mechanism.noise_multiplier, 1e-6)
    assert (
        0.97 * holds.epsilon_high < holds.epsilon_low < holds.epsilon_high < 0.8 * alone
    )


def test_many_rounds_with_little_noise_have_a_low_end():
    """The low end was 0 where the high end was 1.7. Drawing a unit's round in secret
    costs less than a known round, which is one Gaussian of the largest column.
    """
    encoder = banded(128, 8) / 0.775
    low, high = correlated_bins._bracket(encoder, 128, 6.3e-6)
    largest_norm = np.linalg.norm(encoder, axis=0).max()
    known_round = gaussian_epsilon(1 / largest_norm, 6.3e-6)
    assert 0.9 * high < low <= high < known_round
