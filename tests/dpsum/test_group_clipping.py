"""Clipping by groups of coordinates: definition, noise, ledger, account and rules."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

import dpsum
from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.accounting.claims import POISSON_MOMENTS, Claim
from dpsum.clipping import RuleByGroup, Seen
from dpsum.group_clipping import (
    CoordinateGroups,
    GroupedSum,
    joint_noise_multiplier,
)
from dpsum.ledger import parse
from tests.dpsum.helpers import NO_NOISE, make_mechanism, release_rounds

ROWS = np.random.default_rng(0).standard_normal((4, 3))
TWO_GROUPS = CoordinateGroups((0, 2, 3))
CORRELATED = dpsum.Factorised(1.0, rounds=2)
PER_GROUP = CoordinateGroups((0, 2, 3), "per-group", ("kernel", "bias"))
ONE_GAUSSIAN = Claim(
    epsilon=lambda schedule, _, delta: gaussian_epsilon(schedule[0][0], delta),
    explanation="one Gaussian of the multiplier that the paper states",
)


def make(*, threshold=0.5, z=1.0, **changes):
    """Make a mechanism over three coordinates and two known blocks of four clients."""
    values = {
        "dimension": 3,
        "participation": dpsum.OnePass(units=8, cohort=4, rounds=2, seed=1),
        "clipping": dpsum.Constant(threshold),
        "noise": dpsum.Gaussian(z),
        "seed": 3,
    }
    return make_mechanism(ledger=[], **values | changes)


def run_rounds(mechanism, rows=ROWS, rounds=2, first=0):
    return release_rounds(mechanism, rows, rounds, first)


def epsilons(mechanism, delta=1e-5, claim=ONE_GAUSSIAN):
    """Return the proven and the claimed epsilon of what a mechanism released."""
    claims = {"one-pass": claim}
    profiles = dpsum.account(mechanism.ledger, delta=delta, claims=claims).profiles
    return profiles["proven"].epsilon_high, profiles["claimed"].epsilon_high


def clipped_sum(rows, groups, thresholds):
    """Return the sum of rows that are clipped by groups, without its noise."""
    grouped_sum = GroupedSum(groups=groups, thresholds=thresholds, noise_multiplier=1.0)
    grouped_sum.add(rows)
    return grouped_sum.release(NO_NOISE)


def test_grouped_sum_scales_each_group_to_its_own_threshold():
    clipped = clipped_sum([[3.0, 4.0, 1.0]], TWO_GROUPS, (1.0, 2.0))
    assert clipped == pytest.approx([0.6, 0.8, 1.0])
    assert not clipped_sum([[3.0, np.nan, 1.0]], TWO_GROUPS, (1.0, 2.0)).any()


def test_joint_noise_multiplier_by_hand():
    """1 / mu, with mu^2 the sum of (threshold / std)^2."""
    equal = (0.2,) * 4
    pairs = [((1.0, 2.0), (1.0, 1.0)), (equal, equal), ((0.7,), (1.4,))]
    pairs.append(((1.0, 1.0), (1.0, 0.0)))
    joint = [joint_noise_multiplier(*pair) for pair in pairs]
    assert joint == pytest.approx([5**-0.5, 0.5, 2.0, 0.0], rel=1e-14)


def test_grouped_sum_adds_clipped_rows():
    groups = CoordinateGroups((0, 3, 4, 9))
    thresholds = (0.5, 2.0, 1.0)
    rows = 2 * np.random.default_rng(1).standard_normal((50, 9))
    rows[7, 3] = np.inf
    rows[8, 0] = np.nan
    grouped_sum = GroupedSum(groups=groups, thresholds=thresholds, noise_multiplier=1.0)
    norms = grouped_sum.add(rows)
    assert grouped_sum.non_finite == 2
    exact_norms = [np.linalg.norm(rows[:, group], axis=1) for group in groups.slices]
    exact_norms = np.where(np.isfinite(rows).all(axis=1), exact_norms, np.nan)
    np.testing.assert_allclose(norms.T, exact_norms, rtol=1e-13)
    factors = np.minimum(1.0, thresholds / exact_norms.T)
    clipped = np.repeat(factors, np.diff(groups.boundaries), axis=1) * rows
    expected = np.nansum(clipped, axis=0)
    assert grouped_sum.release(NO_NOISE) == pytest.approx(expected, rel=1e-12)


def test_row_moves_a_grouped_sum_by_at_most_its_sensitivity():
    rng = np.random.default_rng(2)
    groups = CoordinateGroups((0, 2, 5))
    for _ in range(300):
        row = rng.standard_normal(5) * 10 ** rng.uniform(-3, 30, 5)
        clipped = clipped_sum([row], groups, (0.3, 1.5))
        assert np.linalg.norm(clipped) <= math.hypot(0.3, 1.5) * (1 + 1e-12)
        assert np.linalg.norm(clipped[2:]) <= 1.5 * (1 + 1e-12)


def test_grouped_sum_noise_has_a_deviation_for_each_group():
    """Kolmogorov-Smirnov, 20,000 draws a group, false alarm 1e-6: z C sqrt(2)."""
    groups = CoordinateGroups((0, 20_000, 40_000), "per-group")
    grouped_sum = GroupedSum(groups=groups, thresholds=(1.0, 3.0), noise_multiplier=0.5)
    noise = grouped_sum.release(np.random.default_rng(3).standard_normal(40_000))
    for group, std in zip(groups.slices, (0.5 * 2**0.5, 1.5 * 2**0.5), strict=True):
        assert stats.kstest(noise[group] / std, "norm").pvalue > 1e-6
        assert stats.kstest(noise[group] / (0.9 * std), "norm").pvalue < 1e-6


@pytest.mark.parametrize("noise", ["joint", "per-group", "equal-shares"])
@pytest.mark.parametrize(
    "clipping",
    [
        dpsum.Constant(0.5),
        dpsum.PrivateQuantile(0.5, percentile=30.0, count_noise=4.0),
        dpsum.PercentileOfReleases(0.5, window=1, form="mean"),
        dpsum.PercentileOfRawNorms(0.5, window=1, percentile=50.0),
        dpsum.NormOfRelease(0.5, factor=0.5),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_one_group_has_the_bits_of_flat_clipping(clipping, noise):
    flat = make(clipping=clipping)
    groups = CoordinateGroups((0, 3), noise)
    grouped = make(clipping=clipping, groups=groups)
    assert np.array_equal(run_rounds(flat), run_rounds(grouped))
    grouped_lines = [dataclasses.replace(line, groups=None) for line in grouped.ledger]
    assert flat.ledger == grouped_lines
    assert grouped.states[0]["groups"][0] == flat.states[0]


@pytest.mark.parametrize(
    "noise, proven, claimed, stds",
    [
        ("per-group", 1 / math.sqrt(2), 1.0, [3.0, 4.0]),
        ("joint", 1.0, None, [5.0, 5.0]),
        ("equal-shares", 1.0, None, [3 * math.sqrt(2), 4 * math.sqrt(2)]),
    ],
)
def test_account_of_groups_is_of_all_groups_together(noise, proven, claimed, stds):
    groups = dataclasses.replace(PER_GROUP, noise=noise)
    mechanism = make(groups=groups, threshold=(3.0, 4.0))
    run_rounds(mechanism)
    line, _ = mechanism.ledger
    assert line.noise_multiplier == pytest.approx(proven, rel=1e-14)
    assert line.claimed_multiplier == (claimed and pytest.approx(claimed, rel=1e-14))
    assert line.threshold == line.sensitivity == 5.0
    assert line.groups["thresholds"] == [3.0, 4.0]
    assert line.groups["names"] == ["kernel", "bias"]
    assert line.groups["noise_stds"] == pytest.approx(stds, rel=1e-14)
    exact = gaussian_epsilon(proven, 1e-5), gaussian_epsilon(1.0, 1e-5)
    assert epsilons(mechanism) == pytest.approx(exact)
    notices = dpsum.account(mechanism.ledger, delta=1e-5).notices
    assert ("noise by group" in str(notices)) == (noise == "per-group")


@pytest.mark.parametrize("kind", [dpsum.BallsAndBins, dpsum.Poisson, dpsum.FixedSize])
def test_account_of_groups_under_sampling_is_of_the_joint_multiplier(kind):
    """Noise of z = 2 in each of four groups is z = 1. A repair's sampling has no claim
    of a paper, so that its own account stands.
    """
    participation = kind(units=100, cohort=10, rounds=10, seed=1)
    values = {"dimension": 8, "participation": participation}
    groups = CoordinateGroups((0, 2, 4, 6, 8), "per-group")
    grouped = make(z=2.0, groups=groups, **values)
    flat = make(**values)
    for mechanism in (grouped, flat):
        run_rounds(mechanism, np.zeros((0, 8)), 10)
    proven, claimed = epsilons(grouped)
    assert claimed == proven
    assert epsilons(flat) == (proven, claimed)
    accounts = [
        dpsum.account(mechanism.ledger, delta=1e-5) for mechanism in (grouped, flat)
    ]
    low, flat_low = (account.profiles["proven"].epsilon_low for account in accounts)
    assert low == flat_low


@pytest.mark.parametrize(
    "tensors, proven", [(1, 4.88655411746221), (14, 24.1425924568805)]
)
def test_account_by_tensor_at_the_published_scale(tensors, proven):
    """One Gaussian of mu = sqrt(tensors) at delta = 1e-6, whose epsilon mpmath solves
    from Theorem 8 of Balle and Wang (2018). The claim is that for one tensor.
    """
    participation = dpsum.OnePass(units=400_000, cohort=1600, rounds=250, seed=1)
    groups = CoordinateGroups(tuple(range(tensors + 1)), "per-group")
    mechanism = make(dimension=tensors, participation=participation, groups=groups)
    run_rounds(mechanism, np.zeros((0, tensors)), 250)
    high, claimed = epsilons(mechanism, 1e-6, POISSON_MOMENTS)
    assert high == pytest.approx(proven, rel=1e-9)
    assert round(claimed, 2) == 1.52


def test_percentile_of_raw_norms_has_a_threshold_for_each_group():
    values = {"window": 1, "percentile": 100.0, "never_rising": False}
    rule = dpsum.PercentileOfRawNorms(9.0, **values)
    mechanism = make(clipping=rule, groups=TWO_GROUPS)
    run_rounds(mechanism, np.array([[3.0, 4.0, 1.0], [0.0, 0.1, 2.0]]))
    _, second = mechanism.ledger
    assert second.groups["thresholds"] == [5.0, 2.0]
    assert second.data_dependent_threshold


def observe(rule, state, released, extra=None):
    """Give a rule the releases of a round, with the denominator 10."""
    values = {"denominator": 10.0, "raw_norms": None, "norm": np.linalg.norm}
    rule.observe(state, Seen(released=np.array(released), extra=extra, **values))


def test_norm_of_release_of_groups_reads_the_release_of_each_group():
    """Norms 5 and 12 over the denominator."""
    rule = RuleByGroup(dpsum.NormOfRelease(1.0, factor=1.0), TWO_GROUPS)
    state = rule.begin((7.0, 8.0))
    observe(rule, state, [3.0, 4.0, 12.0])
    assert state["threshold"] == pytest.approx([0.5, 1.2])


def test_private_quantile_of_groups_counts_each_group():
    """All of ten units are below the first threshold, and none below the second."""
    values = {"percentile": 50.0, "quantile_rate": 0.2, "never_rising": False}
    rule = RuleByGroup(dpsum.PrivateQuantile(1.0, **values), TWO_GROUPS)
    state = rule.begin((1.0, 2.0))
    values = rule.values(state, np.array([[0.5, 3.0], [1.5, 1.5]]))
    assert values.tolist() == [[0.5, -0.5], [-0.5, 0.5]]
    observe(rule, state, [0.0, 0.0, 0.0], np.array([5.0, -5.0]))
    assert state["threshold"] == pytest.approx([math.exp(-0.1), 2 * math.exp(0.1)])


@pytest.mark.parametrize(("noise", "proven"), [("joint", 1.0), ("per-group", 0.5**0.5)])
def test_private_quantile_of_groups_shares_the_budget_of_the_sum(noise, proven):
    """Noise of deviation 2 on two counts of 1/2: mu^2 = 2 / 16, so that the sum has z =
    (1 - 1/8)^(-1/2), and both together z = 1, as the paper claims. Noise by group proves
    less.
    """
    rule = dpsum.PrivateQuantile(0.5, count_noise=2.0)
    mechanism = make(clipping=rule, groups=CoordinateGroups((0, 2, 3), noise))
    run_rounds(mechanism, rounds=1)
    total, count = mechanism.ledger
    if noise == "joint":
        assert total.noise_multiplier == pytest.approx((7 / 8) ** -0.5)
    assert count.noise_multiplier == pytest.approx(8**0.5)
    assert count.groups["noise_stds"] == pytest.approx([2.0, 2.0])
    exact = gaussian_epsilon(proven, 1e-5), gaussian_epsilon(1.0, 1e-5)
    assert epsilons(mechanism) == pytest.approx(exact)


@pytest.mark.parametrize("noise", ["per-group", "joint"])
def test_calibration_of_groups_meets_the_proven_epsilon(noise):
    budget = dpsum.Budget(epsilon=1.0, delta=1e-5)
    mechanism = make(
        z=None, budget=budget, groups=CoordinateGroups((0, 1, 2, 3), noise)
    )
    run_rounds(mechanism)
    assert 0.99 < epsilons(mechanism)[0] <= 1.0
    assert mechanism.epsilon_spent(2)["epsilon_proven"] <= 1.0


def test_mechanism_of_groups_restarts_with_the_same_bits():
    rule = dpsum.PrivateQuantile(0.5, count_noise=2.0, never_rising=False)
    expected = run_rounds(make(clipping=rule, groups=TWO_GROUPS))[1]
    before, after = (make(clipping=rule, groups=TWO_GROUPS) for _ in range(2))
    run_rounds(before, rounds=1)
    after.restore(before.state())
    assert np.array_equal(run_rounds(after, first=1)[0], expected)


def partition(*bounds):
    slices = {str(index): slice(*ends) for index, ends in enumerate(bounds)}
    return CoordinateGroups.from_slices(slices, 4)


@pytest.mark.parametrize(
    "create, message",
    [
        (lambda: partition((0, 3), (2, 4)), "group 1 overlaps"),
        (lambda: partition((0, 1), (2, 4)), "leaves coordinates 1 to 2 out"),
        (lambda: partition((0, 3)), "cover 3 coordinates of 4"),
        (lambda: partition((0, 2), (2, 2), (2, 4)), "must ascend"),
        (lambda: make(noise=dpsum.Skellam(1.0), groups=TWO_GROUPS), "no analysis"),
        (lambda: make(noise=CORRELATED, groups=TWO_GROUPS), "no analysis by groups"),
        (lambda: make(groups=CoordinateGroups((0, 2))), "cover 2 coordinates of 3"),
        (lambda: make(threshold=(1.0,) * 3, groups=TWO_GROUPS), "has 3 values"),
    ],
)
def test_groups_that_are_no_partition_or_have_no_analysis_are_refused(create, message):
    with pytest.raises(DpsumError, match=message):
        create()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"noise_multiplier": 1.0, "noise_std": 5.0}, "groups make 0.7071"),
        ({"threshold": 4.0, "sensitivity": 4.0}, "groups make 5"),
        ({"dimension": 4}, "cover 3 of 4"),
        ({"groups": {"boundaries": [0, 2, 3]}}, "lack"),
    ],
)
def test_ledger_refuses_groups_that_contradict_its_line(change, message):
    mechanism = make(groups=PER_GROUP, threshold=(3.0, 4.0))
    run_rounds(mechanism, rounds=1)
    (line,) = mechanism.ledger
    assert parse(line.line(""), "here") == [line]
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(line, **change)
