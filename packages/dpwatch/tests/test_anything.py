"""The audit of any release function: refutations, passes and refusals."""

import itertools
import math

import numpy as np
import pytest
from closed_forms import sampled_gaussian_epsilon
from example_mechanisms import EXAMPLE, audit_at_z_1, clip, mechanism
from scipy.special import ndtr

import dpsum
from dpsum import DpsumError
from dpsum.audit.ranks import RankTest
from dpsum.randomness import stream
from dpwatch.audit import attacks
from dpwatch.audit.anything import FALSE_ALARM, audited
from dpwatch.audit.declared import ALONE, OfRounds, Whatever, observations_for
from dpwatch.audit.watched import Watched

# Epsilon of one Gaussian release at z = 1, delta = 1e-5 (Balle and Wang 2018).
EXACT_EPSILON = 4.377


# Refutations and passes


@pytest.mark.parametrize("fault", EXAMPLE["FAULTS"])
def test_audit_refutes_a_planted_fault(fault):
    assert len(EXAMPLE["FAULTS"]) == 7
    audit = audit_at_z_1(mechanism(fault))
    assert audit.refuted
    assert audit.status.startswith("REFUTED")
    assert audit.epsilon > EXACT_EPSILON


def unclipped_row(row_number, seed=0, noise_std=0.5):
    """Return a mechanism that leaves one row of each call unclipped, or none.

    Args:
        row_number: function from the number of rows to the row's number; None: no row.
    """
    rng = np.random.default_rng(seed)

    def release(rows):
        clipped = clip(rows)
        if row_number is not None and len(rows):
            at = row_number(len(rows), rng)
            clipped[at] = rows[at]
        return clipped.sum(axis=0) + noise_std * rng.standard_normal(rows.shape[1])

    return release


PLACES = {
    "first": lambda rows, rng: 0,
    "last": lambda rows, rng: rows - 1,
    "random": lambda rows, rng: rng.integers(rows),
}


@pytest.mark.parametrize(
    ("place", "adjacency", "rows"),
    [
        ("first", "add-or-remove", None),
        ("last", "add-or-remove", None),
        ("random", "add-or-remove", None),
        ("first", "zero-out", 40),
        ("last", "zero-out", 40),
        ("random", "zero-out", 3),
        ("first", "replace-one", 40),
        ("last", "replace-one", None),
    ],
)
def test_audit_refutes_a_row_that_is_not_clipped(place, adjacency, rows):
    """The canary is the first row, the last or any. A random row shows in calls of few
    rows: of three rows, a third of the present canaries are beyond all absent ones,
    where z = 1 allows a rate of false alarms of Phi(Phi^-1(1/3) - 1) = 0.076 at least.
    Of 376 absent calls none has 1e-13 then.
    """
    noise_std = 1.0 if adjacency == "replace-one" else 0.5
    release = unclipped_row(PLACES[place], noise_std=noise_std)
    audit = audit_at_z_1(release, adjacency=adjacency, cohort=rows)
    assert (audit.refuted, audit.worst.name) == (True, "alone")


# Faster: test_audit_with_a_fixed_number_of_rows_passes_right_noise, of few canaries.
@pytest.mark.slow
def test_audit_with_canaries_in_all_places_passes_right_code():
    """One false alarm in a thousand audits: none in 30, with probability 0.97. Chances
    are uniform or larger: 8 or more of 30 below 0.05 have a probability of 1e-4.
    """
    audits = [
        audit_at_z_1(unclipped_row(None, seed), 30, calls=64, seed=seed)
        for seed in range(30)
    ]
    assert not any(audit.refuted for audit in audits)
    assert sum(audit.chance < 0.05 for audit in audits) < 8


def test_answers_of_right_code_are_one_group():
    """A row moves the answer by 1 to 100 deviations of the noise: the worlds are two
    modes at most. An answer far beyond them makes a group.
    """
    rng = np.random.default_rng(1)
    for shift in (0.1, 1.0, 10.0, 100.0):
        absent = rng.standard_normal(64)
        present = shift + rng.standard_normal(64)
        assert len(attacks._borders(absent, present)) == 0
        present[:20] += 50 * (1 + shift)
        assert len(attacks._borders(absent, present)) == 1


def test_far_answers_are_groups_however_few_calls_are_near():
    """A random row of three is unclipped: a third of the absent answers and two thirds
    of the present ones are far, and here only 10 of 64 present ones are near.
    """
    rng = np.random.default_rng(1)
    absent = rng.standard_normal(64)
    absent[:21] -= 1e6
    present = 1 + rng.standard_normal(64)
    present[:24] -= 1e6
    present[24:54] += 2e6
    borders = attacks._borders(absent, present)
    assert borders == pytest.approx([-5e5, 1e6], abs=10)


@pytest.mark.parametrize("depends", [False, True])
def test_shares_of_groups_are_of_a_place_only_where_they_depend_on_it(depends):
    """30 calls at three places: the far ones are all at the first, or ten spread
    evenly. Half a call is added to each group.
    """
    places = np.arange(30) % 3
    groups = (places == 0) if depends else (np.arange(30) < 10)
    shares = attacks._shares_by_position(groups.astype(int), 2, places)
    even = np.full((3, 2), [20 / 3 + 0.5, 10 / 3 + 0.5]) / 11
    by_place = np.array([[0.5, 10.5], [10.5, 0.5], [10.5, 0.5]]) / 11
    assert shares == pytest.approx(by_place if depends else even)


def test_audit_takes_far_answers_of_chance_not_for_state():
    """Each call draws anew which row is unclipped: a third of the answers to the
    background alone are far away, and exactly half of 32 in one of 47 series.
    """
    for seed in range(20):
        release = unclipped_row(PLACES["random"], seed)
        watched = Watched(release, 50, "zero-out", 3)
        watched.learn(stream(seed, "audit-anything"))
        assert watched.aligned


@pytest.mark.parametrize(("dimension", "period"), [(300, 1), (30, 4), (5000, 2)])
def test_audit_refutes_noise_that_repeats(dimension, period):
    """The generator is seeded in each call, or in every few calls."""
    noise = 0.5 * np.random.default_rng(4).standard_normal((period, dimension))
    calls = itertools.count()

    def release(rows):
        return clip(rows).sum(axis=0) + noise[next(calls) // 2 % period]

    assert audit_at_z_1(release, dimension, calls=200).refuted


# Faster: test_audit_with_a_fixed_number_of_rows_passes_right_noise, of one seed a kind.
@pytest.mark.slow
def test_audit_passes_right_code_on_twenty_seeds():
    """With one false alarm in a thousand, all twenty pass in 98 of 100 sets of seeds.

    The bound is above the truth in one of 20: five or more of twenty in 3 of 1,000
    sets. An ideal attacker shows as much in half of all audits, so the means are close.
    """
    audits = [audit_at_z_1(mechanism(seed=seed), seed=seed) for seed in range(20)]
    assert not any(audit.refuted for audit in audits)
    assert audits[0].claimed == pytest.approx(EXACT_EPSILON, abs=1e-3)
    assert sum(audit.epsilon > EXACT_EPSILON for audit in audits) < 5
    mean_ideal = np.mean([audit.ideal for audit in audits])
    mean_epsilon = np.mean([audit.epsilon for audit in audits])
    assert mean_epsilon == pytest.approx(mean_ideal, rel=0.1)
    assert min(audit.little for audit in audits) > 1e-4


def test_audit_reports_too_much_noise_as_another_mechanism():
    right = mechanism()

    def release(rows):
        return right(rows) + sum(right(rows[:0]) for _ in range(3))

    audit = audit_at_z_1(release)
    assert not audit.refuted
    assert audit.little < 1e-4
    assert "another mechanism than declared" in audit.status


def test_audit_claims_the_epsilon_of_the_participation():
    """z = 1 and a rate of 1 in three rounds is one Gaussian of 1/sqrt(3) (Dong, Roth
    and Su 2022), 8.50 at 1e-5.
    """
    plan = dpsum.Poisson(units=10, cohort=10, rounds=3)
    audit = audit_at_z_1(mechanism(), participation=plan)
    exact = sampled_gaussian_epsilon(3**-0.5, 1.0, 1e-5)
    assert audit.claimed == pytest.approx(exact, rel=1e-3)
    assert not audit.refuted


def test_audit_calibrates_noise_from_epsilon():
    """The calibrated noise is 0.949, and the code has 1.0."""
    plan = dpsum.Poisson(units=1000, cohort=50, rounds=50)
    audit = audited(mechanism(), dimension=200, epsilon=3.0, participation=plan)
    assert audit.claimed == 3.0
    assert 0.9 < audit.noise_multiplier < 1.0
    assert not audit.refuted


def with_further_rounds(kind, count):
    """Return participations of a kind whose units are in each of the next rounds too."""

    class Further(kind):
        def sample_cohort(self, index):
            rounds = [(index + further) % self.rounds for further in range(count)]
            cohorts = [kind.sample_cohort(self, number) for number in rounds]
            return np.unique(np.concatenate(cohorts))

    return Further


@pytest.mark.parametrize(
    ("right", "count"),
    [
        (dpsum.Poisson, 4),
        # Faster: Poisson samples.
        pytest.param(dpsum.BallsAndBins, 2, marks=pytest.mark.slow),
        pytest.param(dpsum.OnePass, 2, marks=pytest.mark.slow),
    ],
)
def test_audit_refutes_a_participation_that_draws_otherwise(right, count):
    """Both participations have the same description."""

    def audit_of(kind):
        return audit_at_z_1(
            mechanism(seed=1),
            participation=lambda seed: kind(units=400, cohort=40, rounds=10, seed=seed),
            leak=1.25,
        )

    passed = audit_of(right)
    refuted = audit_of(with_further_rounds(right, count))
    assert (passed.sampler, passed.claimed) == (refuted.sampler, refuted.claimed)
    assert (passed.refuted, refuted.refuted) == (False, True)
    assert refuted.worst.name == passed.attacks[-1].name == "over rounds"
    over_rounds = passed.attacks[-1].bound
    assert over_rounds.ideal == pytest.approx(over_rounds.epsilon, rel=0.5)
    assert over_rounds.chances["as_little"] > 1e-4
    assert refuted.worst.calls == passed.attacks[-1].calls > 100


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_audit_lets_a_release_divide_by_a_public_number_of_rows(adjacency, scale):
    """The audit still refutes half the noise."""
    sensitivity = 2.0 if adjacency == "replace-one" else 1.0
    noise = EXAMPLE["Mechanisms"](5).draw_noise
    row_counts = set()

    def release(rows):
        row_counts.add(len(rows))
        return (clip(rows).sum(axis=0) + noise(scale * sensitivity)) / len(rows)

    audit = audit_at_z_1(release, adjacency=adjacency, cohort=40)
    assert (row_counts, audit.refuted) == ({40}, scale < 1)


def laplace_release(seed, epsilon):
    """Return Laplace noise of scale 1/eps on L1-clipped rows: eps-DP, and no less
    (Dwork et al. 2006).
    """
    rng = np.random.default_rng(seed)

    def release(rows):
        norms = np.abs(rows).sum(axis=1, keepdims=True)
        clipped = rows * np.minimum(1, 1 / np.maximum(norms, 1e-12))
        return clipped.sum(axis=0) + rng.laplace(scale=1 / epsilon, size=20)

    return release


@pytest.mark.parametrize("seed", range(3))
def test_audit_of_an_undeclared_mechanism_refutes_a_larger_epsilon_alone(seed):
    options = {"dimension": 20, "epsilon": 1.0, "mechanism": None, "seed": seed}
    for epsilon, low, high in ((1.0, 0.2, 1.0), (2.5, 1.0, 2.5)):
        audit = audited(laplace_release(seed, epsilon), **options)
        assert audit.refuted == (epsilon > 1.0)
        assert low < audit.epsilon < high
    undeclared = audited(laplace_release(seed, 2.5), dimension=20, seed=seed)
    assert (undeclared.claimed, undeclared.refuted) == (None, False)


def test_audit_refutes_a_release_that_no_mean_shows():
    """The sum with a random sign reveals as much about one row as the sum."""
    noise = EXAMPLE["Mechanisms"](0).draw_noise
    signs = np.random.default_rng(0)

    def release(rows):
        return signs.choice([-1.0, 1.0]) * clip(rows).sum(axis=0) + noise(0.05)

    audit = audit_at_z_1(release)
    assert (audit.refuted, audit.worst.name) == (True, "alone")
    assert audit.epsilon > EXACT_EPSILON


@pytest.mark.parametrize(("scale", "is_refuted"), [(1.0, False), (0.5, True)])
def test_audit_takes_several_arrays_of_another_size(scale, is_refuted):
    rng = np.random.default_rng(0)

    def release(rows):
        total = clip(rows, 1.0).sum(axis=0) + scale * rng.standard_normal(6)
        return {"sum": total, "parts": [rng.standard_normal(2), 1.0]}

    assert audit_at_z_1(release, 6).refuted == is_refuted


# Statistics


def p_values(family, audits, coins, noise_std, seed):
    """Return normal tails of the statistic, as the audit takes them."""
    test = RankTest(family, coins, confidence=0.98, generator=stream(0, "test"))
    rng = np.random.default_rng(seed)
    present = rng.integers(2, size=(audits, coins)).astype(bool)
    scores = present + noise_std * rng.standard_normal(present.shape)
    ranked = np.take_along_axis(present, np.argsort(-scores, axis=1), axis=1)
    draws = test.draws(1.0)
    return ndtr((draws.mean() - ranked @ test.weights) / draws.std())


def test_false_alarms_are_as_rare_as_stated():
    """20,000 audits of correct code: 6.7 alarms are expected, and more than 20
    (Poisson) have probability 1 in 50,000.
    """
    values = p_values(OfRounds(1.0, ALONE), 20_000, 200, 1.0, seed=1)
    assert (values < FALSE_ALARM / 3).sum() <= 20


@pytest.mark.parametrize(("z", "leak"), [(1.0, math.sqrt(2)), (0.5, 2.0)])
def test_observations_for_a_leak_have_the_stated_power(z, leak):
    """One Gaussian of z / leak: 380 of 400 audits are expected to refute, and fewer
    than 360 have probability 5e-5.
    """
    family = OfRounds(z, ALONE)
    count = observations_for(family, leak, power=0.95, false_alarm=3e-4)
    detected = (p_values(family, 400, count, z / leak, seed=2) < 3e-4).sum()
    assert detected >= 360
    assert detected < 400 or count == 200


def test_scores_are_likelihood_ratios():
    """(x - s/2) s for independent noise. For noise that is used twice, both coins
    count: where the second call has no canary its answer is the noise.
    """
    rng = np.random.default_rng(3)
    shift = 1.5
    count = 20_000
    shifts = np.full(count, shift)
    has_canary = rng.integers(2, size=(2, count)).astype(bool)
    coins = has_canary & rng.integers(2, size=has_canary.shape).astype(bool)
    means = shift * coins - np.where(has_canary, shift / 2, 0.0)
    independent = rng.standard_normal(has_canary.shape) + means
    scores = attacks._ratios(independent, has_canary, shifts)[has_canary]
    expected = (shift * independent)[has_canary]
    assert np.corrcoef(scores, expected)[0, 1] > 0.999
    assert scores == pytest.approx(expected, abs=0.15)
    repeated = rng.standard_normal(count) + means
    scores = attacks._ratios(repeated, has_canary, shifts)[0]
    is_certain = has_canary[0] & ~has_canary[1]
    assert scores[is_certain & coins[0]].min() > 100
    assert scores[is_certain & ~coins[0]].max() < -100


def test_undeclared_family_has_the_curve_of_its_definition():
    """For (eps, delta) a share delta of present units is certain, and the others have
    e^eps / (1 + e^eps); mirrored, except at its steps.
    """
    posteriors = Whatever(1.0, 0.1).posteriors(2.0)
    cells = len(posteriors)
    certain = int(0.05 * cells)
    assert posteriors[: certain - 1] == pytest.approx(1.0)
    middle = posteriors[certain + 1 : cells // 2 - 1]
    assert middle == pytest.approx(1 / (1 + math.exp(-2.0)))
    assert (np.abs(posteriors + posteriors[::-1] - 1) > 1e-9).sum() < 5


def test_audit_repeats_with_its_seed():
    audits = [audit_at_z_1(mechanism(), seed=1) for _ in range(2)]
    assert repr(audits[0]) == repr(audits[1])


# Refusals

RNG = np.random.default_rng(0)


def with_momentum():
    """Return a release of the sum and 0.9 of its last answer."""
    last = np.zeros(50)

    def release(rows):
        last[:] = clip(rows, 1.0).sum(axis=0) + RNG.standard_normal(50) + 0.9 * last
        return last.copy()

    return release


def with_rising_threshold():
    """Return a release whose threshold and noise grow with each full call."""
    threshold = np.ones(1)

    def release(rows):
        total = clip(rows, threshold).sum(axis=0) + threshold * RNG.standard_normal(50)
        if len(rows) > 20:
            threshold[:] *= 1.2
        return total

    return release


@pytest.mark.parametrize(
    ("release", "message"),
    [
        (with_momentum(), "keeps state"),
        (with_rising_threshold(), "keeps state: .* has other noise"),
        (lambda rows: RNG.standard_normal(50), "ignores its input"),
        (lambda rows: np.zeros(50), "ignores its input"),
        (lambda rows: np.full(50, np.nan), "not finite"),
    ],
)
def test_audit_refuses_a_release_that_it_cannot_judge(release, message):
    with pytest.raises(DpsumError, match=message):
        audit_at_z_1(release, 50)


KINDS = (dpsum.OnePass, dpsum.BallsAndBins, dpsum.Poisson, dpsum.FixedSize)
KINDS += (dpsum.ShuffledEpochs, dpsum.MinSeparation)


@pytest.mark.parametrize(
    ("kind", "adjacency", "rows", "rounds"),
    [
        *((kind, "zero-out", 100, 20) for kind in KINDS),
        (dpsum.FixedSize, "replace-one", 100, 20),
        (dpsum.Poisson, "replace-one", None, 4),
        (dpsum.OnePass, "zero-out", 100, 1),
    ],
)
def test_audit_with_a_fixed_number_of_rows_passes_right_noise(
    kind, adjacency, rows, rounds
):
    """Cohorts are as large as a call has rows (100, or 1,001 where none are named), or
    larger. In one known round of 100 of 2,000 none of four canaries is, so that no
    attack over rounds is left. Right code fails once in a thousand.
    """
    units, cohort = (2000, 100) if rows else (4400, 1100)
    generator = stream(0, "release")
    noise_std = 4.0 if adjacency == "replace-one" else 2.0
    row_counts = set()

    def release(contributions):
        row_counts.add(len(contributions))
        noise = noise_std * generator.standard_normal(4)
        return clip(contributions, 1.0).sum(axis=0) + noise

    plan = kind(units=units, cohort=cohort, rounds=rounds, seed=0)
    options = {"adjacency": adjacency, "cohort": rows, "calls": 100}
    audit = audited(
        release, dimension=4, noise_multiplier=2.0, participation=plan, **options
    )
    assert (audit.attacks[-1].name == "over rounds") == (rounds > 1)
    assert not audit.refuted
    assert row_counts == {rows or 1001}
