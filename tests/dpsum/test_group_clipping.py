"""Clipping by groups of coordinates: the definition, the noise of each group, the
ledger and the account.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy import stats

import dpsum
from dpsum.accounting.claims import POISSON_MOMENTS, Claim
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.clipping import RuleByGroup, Seen
from dpsum.errors import DpsumError
from dpsum.group_clipping import (
    CoordinateGroups,
    GroupedSum,
    clip_groups,
    joint_noise_multiplier,
)
from dpsum.ledger import parse


def mechanism(path, *, groups=None, threshold=0.5, noise=None, clipping=None, **more):
    """A mechanism over three coordinates, eight clients in two known blocks."""
    return dpsum.Mechanism(
        name="sum",
        unit="client",
        observer="everyone",
        dimension=3,
        participation=dpsum.OnePass(units=8, cohort=4, rounds=2, seed=1),
        clipping=clipping or dpsum.Constant(threshold),
        noise=noise or dpsum.Gaussian(1.0),
        ledger=path,
        seed=3,
        groups=groups,
        **more,
    )


def released(made, rows, rounds=1):
    """The releases of some rounds over the same rows."""
    results = []
    for index in range(rounds):
        total = made.open(index)
        total.add(rows)
        results.append(made.release(total))
    return np.array(results)


LIKE_ONE_GAUSSIAN = Claim(
    epsilon=lambda schedule, sampler, delta: gaussian_epsilon(
        min(z for z, _ in schedule), delta
    ),
    explanation="one Gaussian of the multiplier that the paper states",
)

ROWS = np.random.default_rng(0).standard_normal((4, 3))


# The definition


def test_clip_groups_scales_each_group_to_its_own_threshold():
    groups = CoordinateGroups((0, 2, 3))
    assert clip_groups([3.0, 4.0, 1.0], groups, (1.0, 2.0)) == pytest.approx(
        [0.6, 0.8, 1.0]
    )
    assert not clip_groups([3.0, np.nan, 1.0], groups, (1.0, 2.0)).any()


@pytest.mark.parametrize(
    "thresholds, stds, multiplier",
    [
        # mu = sqrt(1 + 4)
        ((1.0, 2.0), (1.0, 1.0), 1 / math.sqrt(5)),
        # z C in each of four groups: z / 2
        ((0.2,) * 4, (0.2,) * 4, 0.5),
        ((0.7,), (1.4,), 2.0),
        ((1.0, 1.0), (1.0, 0.0), 0.0),
    ],
)
def test_joint_noise_multiplier_by_hand(thresholds, stds, multiplier):
    assert joint_noise_multiplier(thresholds, stds) == pytest.approx(
        multiplier, rel=1e-14
    )


@pytest.mark.parametrize(
    "noise, stds",
    [
        # thresholds 3 and 4, proven multiplier 2
        ("joint", (10.0, 10.0)),
        ("equal-shares", (6 * math.sqrt(2), 8 * math.sqrt(2))),
        ("per-group", (6 * math.sqrt(2), 8 * math.sqrt(2))),
    ],
)
def test_noise_stds_of_each_reading_by_hand(noise, stds):
    groups = CoordinateGroups((0, 1, 3), noise)
    given = groups.noise_stds((3.0, 4.0), 2.0)
    assert given == pytest.approx(stds, rel=1e-14)
    assert joint_noise_multiplier((3.0, 4.0), given) == pytest.approx(2.0, rel=1e-14)
    assert groups.claimed_ratio == (math.sqrt(2) if noise == "per-group" else 1.0)


def test_grouped_sum_adds_what_the_definition_says():
    groups, thresholds = CoordinateGroups((0, 3, 4, 9)), (0.5, 2.0, 1.0)
    rows = 2 * np.random.default_rng(1).standard_normal((50, 9))
    rows[7, 3], rows[8, 0] = np.inf, np.nan
    total = GroupedSum(groups=groups, thresholds=thresholds, noise_multiplier=1.0)
    norms = total.add(rows)
    expected = sum(clip_groups(row, groups, thresholds) for row in rows)
    assert total.non_finite == 2
    assert norms.shape == (50, 3) and np.isnan(norms[[7, 8]]).all()
    assert norms[0, 0] == pytest.approx(np.linalg.norm(rows[0, :3]))

    class NoNoise:
        def standard_normal(self, size):
            return np.zeros(size)

    assert total.release(NoNoise()) == pytest.approx(expected, rel=1e-12)


def test_grouped_sum_moves_by_at_most_its_sensitivity():
    # 300 pairs of neighbours, values up to 1e30 among them.
    rng = np.random.default_rng(2)
    groups, thresholds = CoordinateGroups((0, 2, 5)), np.array([0.3, 1.5])
    for _ in range(300):
        row = rng.standard_normal(5) * 10 ** rng.uniform(-3, 30, 5)
        moved = clip_groups(row, groups, thresholds)
        assert np.linalg.norm(moved) <= math.hypot(*thresholds) * (1 + 1e-12)
        assert np.linalg.norm(moved[2:]) <= 1.5 * (1 + 1e-12)


def test_noise_of_each_group_has_its_own_deviation():
    # Kolmogorov-Smirnov on 20,000 draws a group; false alarms 1e-6 each.
    groups = CoordinateGroups((0, 20_000, 40_000), "per-group")
    total = GroupedSum(groups=groups, thresholds=(1.0, 3.0), noise_multiplier=0.5)
    noise = total.release(np.random.default_rng(3))
    # z C sqrt(m): 0.5 sqrt(2) and three times that.
    for group, std in zip(groups.slices, (0.5 * 2**0.5, 1.5 * 2**0.5), strict=True):
        assert stats.kstest(noise[group] / std, "norm").pvalue > 1e-6
        assert stats.kstest(noise[group] / (0.9 * std), "norm").pvalue < 1e-6


# One group is flat clipping


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
def test_one_group_is_flat_clipping_bit_for_bit(tmp_path, clipping, noise):
    flat = mechanism(tmp_path / "flat", clipping=clipping)
    one = mechanism(
        tmp_path / "one", clipping=clipping, groups=CoordinateGroups((0, 3), noise)
    )
    assert np.array_equal(released(flat, ROWS, 2), released(one, ROWS, 2))
    lines = [dpsum.read_ledger(tmp_path / name) for name in ("flat", "one")]
    for ours, theirs in zip(*lines, strict=True):
        assert dataclasses.replace(theirs, groups=None) == ours
    assert one.states[0]["groups"][0] == flat.states[0]


# The ledger and the account


@pytest.mark.parametrize(
    "noise, proven, claimed",
    [
        ("per-group", 1 / math.sqrt(2), 1.0),
        ("joint", 1.0, None),
        ("equal-shares", 1.0, None),
    ],
)
def test_account_is_of_what_all_groups_show(tmp_path, noise, proven, claimed):
    groups = CoordinateGroups((0, 2, 3), noise, ("kernel", "bias"))
    made = mechanism(tmp_path / "ledger", groups=groups, threshold=(3.0, 4.0))
    released(made, ROWS, 2)
    first, _ = dpsum.read_ledger(tmp_path / "ledger")
    assert first.noise_multiplier == pytest.approx(proven, rel=1e-14)
    assert first.claimed_multiplier == (claimed and pytest.approx(claimed, rel=1e-14))
    assert first.threshold == first.sensitivity == 5.0
    assert first.groups["thresholds"] == [3.0, 4.0]
    assert first.groups["names"] == ["kernel", "bias"]
    stds = {
        "per-group": [3.0, 4.0],
        "joint": [5.0, 5.0],
        "equal-shares": [3 * math.sqrt(2), 4 * math.sqrt(2)],
    }
    assert first.groups["noise_stds"] == pytest.approx(stds[noise], rel=1e-14)
    account = dpsum.account(
        tmp_path / "ledger", delta=1e-5, claims={"one-pass": LIKE_ONE_GAUSSIAN}
    )
    holds, as_claimed = account.profiles["holds"], account.profiles["as_claimed"]
    assert holds.epsilon_high == pytest.approx(gaussian_epsilon(proven, 1e-5))
    assert as_claimed.epsilon_high == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    told = any("noise by group" in notice for notice in account.notices)
    assert told == (noise == "per-group")


@pytest.mark.parametrize(
    "participation",
    [
        dpsum.BallsAndBins(units=100, cohort=10, rounds=10, seed=1),
        dpsum.Poisson(units=100, cohort=10, rounds=10, seed=1),
        dpsum.FixedSize(units=100, cohort=10, rounds=10, seed=1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_account_under_sampling_is_that_of_the_flat_multiplier(tmp_path, participation):
    def account_of(name, z, **more):
        made = dpsum.Mechanism(
            name="sum",
            unit="client",
            observer="everyone",
            dimension=8,
            participation=participation,
            clipping=dpsum.Constant(0.2),
            noise=dpsum.Gaussian(z),
            ledger=tmp_path / name,
            **more,
        )
        for index in range(10):
            made.release(made.open(index))
        return dpsum.account(tmp_path / name, delta=1e-5).profiles["holds"]

    groups = CoordinateGroups((0, 2, 4, 6, 8), "per-group")
    by_group, flat = account_of("groups", 2.0, groups=groups), account_of("flat", 1.0)
    assert by_group.epsilon_high == flat.epsilon_high
    assert by_group.epsilon_low == flat.epsilon_low


@pytest.mark.parametrize(
    "tensors, proven",
    [(1, 4.88655411746221), (5, 12.5952467355067), (14, 24.1425924568805)],
)
def test_account_at_the_published_scale_by_tensor(tmp_path, tensors, proven):
    """One Gaussian of mu = sqrt(tensors) at delta = 1e-6, whose epsilon mpmath solves
    from Theorem 8 of Balle and Wang (2018). The claim is the printed one for any number
    of tensors.
    """
    made = dpsum.Mechanism(
        name="sum",
        unit="client",
        observer="everyone",
        dimension=tensors,
        participation=dpsum.OnePass(units=400_000, cohort=1600, rounds=250, seed=1),
        clipping=dpsum.Constant(0.2),
        noise=dpsum.Gaussian(1.0),
        ledger=tmp_path / "ledger",
        groups=CoordinateGroups(tuple(range(tensors + 1)), "per-group"),
    )
    for index in range(250):
        made.release(made.open(index))
    claims = {"one-pass": POISSON_MOMENTS}
    account = dpsum.account(tmp_path / "ledger", delta=1e-6, claims=claims)
    assert account.profiles["holds"].epsilon_high == pytest.approx(proven, rel=1e-9)
    assert round(account.profiles["as_claimed"].epsilon_high, 2) == 1.52


# Rules per group


def test_percentile_of_raw_norms_moves_each_threshold_by_its_own_group(tmp_path):
    rule = dpsum.PercentileOfRawNorms(
        9.0, window=1, percentile=100.0, never_rising=False
    )
    made = mechanism(
        tmp_path / "ledger", clipping=rule, groups=CoordinateGroups((0, 2, 3))
    )
    released(made, np.array([[3.0, 4.0, 1.0], [0.0, 0.1, 2.0]]), 2)
    second = dpsum.read_ledger(tmp_path / "ledger")[1]
    assert second.groups["thresholds"] == [5.0, 2.0]
    assert second.data_dependent_threshold


def test_rule_by_group_reads_the_release_of_its_own_group():
    # Norms 5 and 12 over a denominator of 10.
    rule = RuleByGroup(
        dpsum.NormOfRelease(1.0, factor=1.0), CoordinateGroups((0, 2, 3))
    )
    state = rule.begin((7.0, 8.0))
    released = np.array([3.0, 4.0, 12.0])
    rule.observe(
        state, Seen(released=released, extra=None, denominator=10.0, raw_norms=None)
    )
    assert state["threshold"] == pytest.approx([0.5, 1.2])


def test_private_quantile_of_groups_counts_and_moves_each_group_by_itself():
    rule = RuleByGroup(
        dpsum.PrivateQuantile(
            1.0, percentile=50.0, quantile_rate=0.2, never_rising=False
        ),
        CoordinateGroups((0, 2, 3)),
    )
    state = rule.begin((1.0, 2.0))
    counted = rule.values(state, np.array([[0.5, 3.0], [1.5, 1.5]]))
    assert counted.tolist() == [[0.5, -0.5], [-0.5, 0.5]]
    # All of ten units below the first threshold, and none below the second.
    seen = Seen(
        released=np.zeros(3),
        extra=np.array([5.0, -5.0]),
        denominator=10.0,
        raw_norms=None,
    )
    rule.observe(state, seen)
    assert state["threshold"] == pytest.approx([math.exp(-0.1), 2 * math.exp(0.1)])


def test_private_quantile_of_groups_costs_what_all_counts_show(tmp_path):
    # Deviation 2 on two counts of 1/2 each: mu^2 = 2 / 16, so that the sum has
    # (1 - 1 / 8)^(-1/2).
    rule = dpsum.PrivateQuantile(0.5, count_noise=2.0)
    made = mechanism(
        tmp_path / "ledger", clipping=rule, groups=CoordinateGroups((0, 2, 3))
    )
    released(made, ROWS)
    total, count = dpsum.read_ledger(tmp_path / "ledger")
    assert total.noise_multiplier == pytest.approx((7 / 8) ** -0.5)
    assert count.noise_multiplier == pytest.approx(8**0.5)
    assert count.groups["noise_stds"] == pytest.approx([2.0, 2.0])
    assert count.dimension == 2
    together = dpsum.account(tmp_path / "ledger", delta=1e-5).profiles["holds"]
    assert together.epsilon_high == pytest.approx(gaussian_epsilon(1.0, 1e-5))


def test_private_quantile_of_groups_claims_the_configured_multiplier(tmp_path):
    groups = CoordinateGroups((0, 2, 3), "per-group")
    rule = dpsum.PrivateQuantile(0.5, count_noise=2.0)
    made = mechanism(tmp_path / "ledger", clipping=rule, groups=groups)
    released(made, ROWS)
    account = dpsum.account(
        tmp_path / "ledger", delta=1e-5, claims={"one-pass": LIKE_ONE_GAUSSIAN}
    )
    claimed, holds = account.profiles["as_claimed"], account.profiles["holds"]
    assert claimed.epsilon_high == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    assert holds.epsilon_high == pytest.approx(gaussian_epsilon(2**-0.5, 1e-5))


@pytest.mark.parametrize("noise", ["per-group", "joint", "equal-shares"])
def test_calibration_keeps_the_proven_epsilon(tmp_path, noise):
    made = mechanism(
        tmp_path / "ledger",
        noise=dpsum.Gaussian(None),
        budget=dpsum.Budget(epsilon=1.0, delta=1e-5),
        groups=CoordinateGroups((0, 1, 2, 3), noise),
    )
    released(made, ROWS, 2)
    holds = dpsum.account(tmp_path / "ledger", delta=1e-5).profiles["holds"]
    assert 0.99 < holds.epsilon_high <= 1.0
    assert made.budget.spent(2)["epsilon_proven"] <= 1.0


def test_state_of_groups_goes_on_after_a_restart(tmp_path):
    rule = dpsum.PrivateQuantile(0.5, count_noise=2.0, never_rising=False)
    build = functools.partial(
        mechanism, clipping=rule, groups=CoordinateGroups((0, 2, 3))
    )
    whole = build(tmp_path / "whole")
    expected = released(whole, ROWS, 2)[1]
    before, after = build(tmp_path / "before"), build(tmp_path / "after")
    released(before, ROWS)
    after.restore(before.state())
    total = after.open(1)
    total.add(ROWS)
    assert np.array_equal(after.release(total), expected)


# Bad input


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: CoordinateGroups((0, 2, 2)), "must ascend"),
        (lambda: CoordinateGroups((1, 2)), "must ascend"),
        (lambda: CoordinateGroups((0, 2), "shared"), "must be one of"),
        (
            lambda: CoordinateGroups.from_slices(
                {"a": slice(0, 3), "b": slice(2, 4)}, 4
            ),
            "group b overlaps",
        ),
        (
            lambda: CoordinateGroups.from_slices(
                {"a": slice(0, 1), "b": slice(2, 4)}, 4
            ),
            "group b leaves coordinates 1 to 2 out",
        ),
        (
            lambda: CoordinateGroups.from_slices({"a": slice(0, 3)}, 4),
            "cover 3 coordinates of 4",
        ),
        (lambda: CoordinateGroups((0, 1, 2)).thresholds((1.0,)), "has 1 values"),
    ],
)
def test_bad_groups_are_refused_in_one_line(make, message):
    with pytest.raises(DpsumError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_mechanism_refuses_groups_that_no_analysis_is_of(tmp_path):
    groups = CoordinateGroups((0, 2, 3))
    with pytest.raises(DpsumError, match="no analysis by groups"):
        mechanism(tmp_path / "a", groups=groups, noise=dpsum.Skellam(1.0))
    weights = dpsum.factorisations.scaled(
        np.array([[1.0, 0.0], [-0.5, 1.0]]), separation=2, participations=1
    )
    with pytest.raises(DpsumError, match="no analysis by groups"):
        mechanism(tmp_path / "b", groups=groups, noise=dpsum.Correlated(1.0, weights))
    with pytest.raises(DpsumError, match="cover 2 coordinates of 3"):
        mechanism(tmp_path / "c", groups=CoordinateGroups((0, 1, 2)))
    with pytest.raises(DpsumError, match="has 3 values"):
        mechanism(tmp_path / "d", groups=groups, threshold=(1.0, 2.0, 3.0))
    rule = dpsum.PrivateQuantile(0.5, count_noise=0.6)
    dear = mechanism(tmp_path / "e", groups=groups, clipping=rule)
    with pytest.raises(DpsumError, match=r"raise clipping.count_noise above 0.7071"):
        dear.open(0)


# A ledger that says something else than its groups


@pytest.mark.parametrize(
    "change, message",
    [
        ({"noise_multiplier": 1.0, "noise_std": 5.0}, "groups make 0.7071"),
        ({"threshold": 4.0, "sensitivity": 4.0}, "groups make 5"),
        ({"dimension": 4}, "cover 3 of 4"),
        ({"groups": {"boundaries": [0, 2, 3]}}, "lack"),
    ],
)
def test_ledger_refuses_groups_that_do_not_add_up(tmp_path, change, message):
    groups = CoordinateGroups((0, 2, 3), "per-group")
    made = mechanism(tmp_path / "ledger", groups=groups, threshold=(3.0, 4.0))
    released(made, ROWS)
    (line,) = dpsum.read_ledger(tmp_path / "ledger")
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(line, **change)
    assert parse(line.line(""), "here") == [line]
