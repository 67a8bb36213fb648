"""Clipping rules; property 9: a rule that is said to be private reads only releases."""

import numpy as np
import pytest

import dpsum
from dpsum.clipping import LARGEST_THRESHOLD, SMALLEST_THRESHOLD, Seen
from dpsum.errors import DpsumError

MOVING = {"percentile": 90.0, "window": 3, "never_rising": False}
RULES = {
    "constant": dpsum.Constant(),
    "mean": dpsum.PercentileOfReleases(form="mean", **MOVING),
    "sum": dpsum.PercentileOfReleases(form="sum", **MOVING),
    "raw": dpsum.PercentileOfRawNorms(**MOVING),
    "quantile": dpsum.PrivateQuantile(quantile_rate=0.2, never_rising=False),
    "vector": dpsum.NormOfRelease(factor=0.5),
    "scalar": dpsum.NoisedMeanNorm(),
    "raw mean": dpsum.MeanOfRawNorms(),
}


def thresholds(rule, first, **observed):
    """Return the thresholds after each of some rounds over the denominator 4.

    All rules receive the norms here, private rules too.
    """
    state = rule.begin(first)
    by_round = []
    for values in zip(*observed.values(), strict=True):
        observation = {"released": [0.0], "extra": None, "raw_norms": None}
        observation |= dict(zip(observed, values, strict=True))
        observation["released"] = np.asarray(observation["released"], np.float64)
        seen = Seen(denominator=4.0, norm=np.linalg.norm, **observation)
        rule.observe(state, seen)
        by_round.append(state["threshold"])
    return by_round


@pytest.mark.parametrize("name", RULES)
def test_clipping_rule_is_private_if_and_only_if_it_follows_from_releases(name):
    """Property 9: given the same releases, the same thresholds for any raw norms."""
    rule = RULES[name]
    rng = np.random.default_rng(0)
    released = rng.normal(size=(12, 5))
    releases = {"released": released, "extra": released[:, 0]}
    runs = [
        thresholds(rule, 1.0, **releases, raw_norms=scale * rng.random((12, 4)))
        for scale in (0.1, 1.0, 50.0)
    ]
    assert rule.private == all(run == runs[0] for run in runs)
    assert rule.private == (rule.reason == rule.notice == "")


def percentile(percent, window, form="sum", never_rising=False):
    return dpsum.PercentileOfReleases(
        form=form, percentile=percent, window=window, never_rising=never_rising
    )


def test_percentile_of_releases_by_hand():
    """Norms 1, 2, 3 fill the window: the 50th percentile is 2, and that of 2, 3, 10 is
    3. The 90th percentile of 1, 2, 3 by linear interpolation is 2 + 0.8.
    """
    norms = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [10.0, 0.0]]
    median = thresholds(percentile(50.0, 3), 9.0, released=norms)
    assert median == [9.0, 9.0, 2.0, 3.0]
    high = thresholds(percentile(90.0, 3), 1.0, released=norms[:3])
    assert high[-1] == pytest.approx(2.8)
    mean_form = percentile(50.0, 1, form="mean")
    assert thresholds(mean_form, 9.0, released=[[3.0, 4.0]]) == [1.25]
    rule = percentile(50.0, 1, never_rising=True)
    falling = thresholds(rule, 2.5, released=[[4.0], [2.0], [3.0], [1.0]])
    assert falling == [2.5, 2.0, 2.0, 1.0]


def test_percentile_of_raw_norms_is_over_all_clients_of_the_window():
    rule = dpsum.PercentileOfRawNorms(percentile=50.0, window=2, never_rising=False)
    raw_norms = [[1.0, 2.0, 3.0], [4.0, 5.0, np.nan]]
    assert thresholds(rule, 9.0, raw_norms=raw_norms) == [9.0, 3.0]


def test_rules_of_adap_dp_fl_by_hand():
    """Eq. 6 to 8 over 4: |(3, 4)| / 4 times 0.5; |-12| / 4; the mean of 1, 2 and 6 and
    a norm that is not finite. An empty lot has no norms.
    """
    vector = thresholds(dpsum.NormOfRelease(factor=0.5), 1.0, released=[[3.0, 4.0]])
    assert vector == pytest.approx([0.625], rel=1e-12)
    assert thresholds(dpsum.NoisedMeanNorm(), 1.0, extra=[-12.0]) == [3.0]
    raw_norms = [[], [1.0, 2.0, 6.0, np.inf]]
    assert thresholds(dpsum.MeanOfRawNorms(factor=2.0), 7.0, raw_norms=raw_norms) == [
        7.0,
        6.0,
    ]


def test_private_quantile_by_hand():
    """gamma = 0.9 and rate 0.5. Over 4, a count of +2 is a share of 1: C e^-0.05. A
    count of -1 is a share of 1/4: C e^0.325.
    """
    settings = {"percentile": 90.0, "quantile_rate": 0.5}
    rule = dpsum.PrivateQuantile(**settings, never_rising=False)
    expected = [2 * np.exp(-0.05), 2 * np.exp(-0.05 + 0.325)]
    assert thresholds(rule, 2.0, extra=[2.0, -1.0]) == pytest.approx(expected)
    rule = dpsum.PrivateQuantile(**settings, never_rising=True)
    assert thresholds(rule, 2.0, extra=[-1.0, 1e9]) == [2.0, SMALLEST_THRESHOLD]


def test_private_quantile_indicators_are_a_half_and_zero_for_zero():
    """A private sum counts values that are not finite as zero."""
    norms = np.array([0.0, 0.5, 1.0, np.nextafter(1.0, 2), 1e30, np.inf, np.nan])
    values = dpsum.PrivateQuantile().values({"threshold": 1.0}, norms)
    assert values[:5, 0].tolist() == [0.0, 0.5, 0.5, -0.5, -0.5]
    assert np.isnan(values[5:]).all()


def test_threshold_stays_within_the_range_of_a_sum():
    limits = [LARGEST_THRESHOLD, SMALLEST_THRESHOLD]
    assert (
        thresholds(dpsum.NormOfRelease(factor=1.0), 1.0, released=[[1e30], [0.0]])
        == limits
    )
    for threshold in (0.0, -1.0, float("nan"), float("inf"), 1e-151, 1.1e150):
        with pytest.raises(DpsumError, match="it must be fin"):
            dpsum.Constant().begin(threshold)
