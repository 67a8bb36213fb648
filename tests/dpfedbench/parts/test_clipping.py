"""Clipping rules; property 9: a rule that is said to be private reads only releases."""

import copy

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpsum.clipping import (
    LARGEST_THRESHOLD,
    SMALLEST_THRESHOLD,
    Constant,
    MeanOfRawNorms,
    NoisedMeanNorm,
    NormOfRelease,
    PercentileOfRawNorms,
    PercentileOfReleases,
    PrivateQuantile,
    Seen,
)
from dpsum.private_sum import PrivateSum
from tests.dpsum.helpers import NO_NOISE

MOVING = {"percentile": 90.0, "window": 3, "never_rising": False}
RULES = {
    "constant": Constant(),
    "mean": PercentileOfReleases(form="mean", **MOVING),
    "sum": PercentileOfReleases(form="sum", **MOVING),
    "raw": PercentileOfRawNorms(**MOVING),
    "quantile": PrivateQuantile(percentile=90.0, quantile_rate=0.2, never_rising=False),
    "vector": NormOfRelease(factor=0.5),
    "scalar": NoisedMeanNorm(),
    "raw mean": MeanOfRawNorms(),
}


def observe(rule, state, released, *, denominator=4.0, extra=None, raw=None):
    """Pass one round to a rule, and return its next threshold."""
    released = torch.as_tensor(released, dtype=torch.float64)
    observation = Seen(
        released=released, extra=extra, denominator=denominator, raw_norms=raw
    )
    rule.observe(state, observation)
    return state["threshold"]


def thresholds(rule, releases, raw_norms, state=None, first=1.0):
    """Return the thresholds after each of some releases and raw norms.

    All rules receive the norms here, private rules too.
    """
    state = rule.begin(first) if state is None else state
    return [
        observe(rule, state, released, extra=float(released[0]), raw=norms)
        for released, norms in zip(releases, raw_norms, strict=True)
    ]


def percentile_rule(percentile, window, *, form="sum", never_rising=False):
    return PercentileOfReleases(
        form=form, percentile=percentile, window=window, never_rising=never_rising
    )


@pytest.mark.parametrize("name", RULES)
def test_clipping_rule_is_private_if_and_only_if_it_follows_from_releases(name):
    """Property 9: given the same releases, the same thresholds for any raw norms."""
    rule = RULES[name]
    rng = np.random.default_rng(0)
    releases = [torch.from_numpy(rng.normal(size=5)) for _ in range(12)]
    runs = [
        thresholds(rule, releases, scale * rng.random((12, 4)))
        for scale in (0.1, 1.0, 50.0)
    ]
    assert rule.private == all(run == runs[0] for run in runs)
    assert rule.private == (rule.reason == rule.notice == "")


def test_percentile_of_releases_by_hand():
    """Norms 1, 2, 3 fill the window: the 50th percentile is 2, and that of 2, 3, 10 is
    3. The 90th percentile of 1, 2, 3 by linear interpolation is 2 + 0.8.
    """
    releases = [torch.tensor([float(norm), 0.0]) for norm in (1, 2, 3, 10)]
    median = thresholds(percentile_rule(50.0, 3), releases, [[]] * 4, first=9.0)
    assert median == [9.0, 9.0, 2.0, 3.0]
    rule = percentile_rule(90.0, 3)
    assert thresholds(rule, releases[:3], [[]] * 3)[-1] == pytest.approx(2.8)
    rule = percentile_rule(50.0, 1, form="mean")
    assert observe(rule, rule.begin(9.0), [3.0, 4.0]) == 1.25
    rule = percentile_rule(50.0, 1, never_rising=True)
    releases = [torch.tensor([float(norm)]) for norm in (4, 2, 3, 1)]
    falling = thresholds(rule, releases, [[]] * 4, first=2.5)
    assert falling == [2.5, 2.0, 2.0, 1.0]


def test_percentile_of_raw_norms_is_over_all_clients_of_the_window():
    rule = PercentileOfRawNorms(percentile=50.0, window=2, never_rising=False)
    state = rule.begin(9.0)
    assert observe(rule, state, [0.0], raw=[1.0, 2.0, 3.0]) == 9.0
    assert observe(rule, state, [0.0], raw=[4.0, 5.0, float("nan")]) == 3.0


def test_rules_of_adap_dp_fl_by_hand():
    """Eq. 6 to 8 over 4: |(3, 4)| / 4 times 0.5; |-12| / 4; the mean of 1, 2 and 6 and
    a norm that is not finite. An empty lot has no norms.
    """
    vector = NormOfRelease(factor=0.5)
    threshold = observe(vector, vector.begin(1.0), [3.0, 4.0])
    assert threshold == pytest.approx(0.625, rel=1e-12)
    scalar = NoisedMeanNorm()
    assert observe(scalar, scalar.begin(1.0), [3.0, 4.0], extra=-12.0) == 3.0
    raw = MeanOfRawNorms(factor=2.0)
    norms = [1.0, 2.0, 6.0, float("inf")]
    assert observe(raw, raw.begin(1.0), [3.0, 4.0], raw=norms) == 6.0
    assert observe(raw, raw.begin(7.0), [3.0, 4.0], raw=[]) == 7.0


def test_norm_query_is_a_sum_that_clips_each_norm():
    """The sensitivity of eq. 6: each norm is cut to C, so a record of 1e30 moves the
    query by at most C.
    """
    rule = NoisedMeanNorm()
    query = rule.extra(rule.begin(2.0), noise_multiplier=3.0, cohort=8.0)
    assert query.threshold == 2.0
    assert query.noise_multiplier == 3.0
    assert not query.counted
    assert not query.within
    total = PrivateSum(dimension=1, threshold=2.0, noise_multiplier=3.0)
    norms = np.array([0.5, 1e30, 2.0, np.nan])
    total.add(torch.from_numpy(rule.values({"threshold": 2.0}, norms)))
    assert total.release(NO_NOISE).item() == 4.5
    assert total.non_finite == 1


def test_private_quantile_by_hand():
    """gamma = 0.9 and rate 0.5. Over 4, a count of +2 is a share of 1: C e^-0.05. A
    count of -1 is a share of 1/4: C e^0.325.
    """
    settings = {"percentile": 90.0, "quantile_rate": 0.5}
    rule = PrivateQuantile(**settings, never_rising=False)
    state = rule.begin(2.0)
    threshold = observe(rule, state, [0.0], extra=2.0)
    assert threshold == pytest.approx(2 * np.exp(-0.05))
    threshold = observe(rule, state, [0.0], extra=-1.0)
    assert threshold == pytest.approx(2 * np.exp(-0.05 + 0.325))
    falling = PrivateQuantile(**settings, never_rising=True)
    state = falling.begin(2.0)
    assert observe(falling, state, [0.0], extra=-1.0) == 2.0
    assert observe(falling, state, [0.0], extra=1e9) == SMALLEST_THRESHOLD


@pytest.mark.parametrize("first", [0.01, 500.0])
def test_private_quantile_finds_the_quantile(first):
    """Log-normal norms, no noise: the 90th percentile is e^1.2816 = 3.60."""
    rng = np.random.default_rng(3)
    rule = RULES["quantile"]
    state = rule.begin(first)
    last_thresholds = []
    for _ in range(600):
        count = float(rule.values(state, np.exp(rng.normal(size=200))).sum())
        threshold = observe(rule, state, [0.0], extra=count, denominator=200.0)
        last_thresholds.append(threshold)
    mean = np.mean(last_thresholds[-200:])
    assert mean == pytest.approx(np.exp(1.2816), rel=0.05)


def test_private_quantile_indicators_are_a_half_and_zero_for_zero():
    """A private sum counts values that are not finite as zero."""
    norms = np.array([0.0, 0.5, 1.0, np.nextafter(1.0, 2), 1e30, np.inf, np.nan])
    values = PrivateQuantile().values({"threshold": 1.0}, norms)
    assert values[:5, 0].tolist() == [0.0, 0.5, 0.5, -0.5, -0.5]
    assert np.isnan(values[5:]).all()


@pytest.mark.parametrize(("count_noise", "multiplier"), [(3.0, 6.0), (None, 10.0)])
def test_private_quantile_count_has_its_configured_noise(count_noise, multiplier):
    """Indicators are a half, so a deviation of 3 is a multiplier of 6. The default
    deviation is a twentieth of the cohort: 5, so 10.
    """
    rule = PrivateQuantile(count_noise=count_noise)
    count = rule.extra({"threshold": 1.0}, noise_multiplier=1.0, cohort=100.0)
    assert count.threshold == 0.5
    assert count.noise_multiplier == multiplier
    assert count.counted
    assert count.within


def test_threshold_stays_within_the_range_of_a_sum():
    rule = NormOfRelease(factor=1.0)
    assert observe(rule, rule.begin(1.0), [1e30]) == LARGEST_THRESHOLD
    assert observe(rule, rule.begin(1.0), [0.0]) == SMALLEST_THRESHOLD
    for threshold in (0.0, -1.0, float("nan"), float("inf"), 1e-151, 1.1e150):
        with pytest.raises(BenchError, match="it must be fin"):
            Constant().begin(threshold)


@pytest.mark.parametrize("name", RULES)
def test_clipping_rule_goes_on_from_its_state(name):
    rng = np.random.default_rng(2)
    rule = RULES[name]
    releases = [torch.from_numpy(rng.normal(size=5)) for _ in range(8)]
    norms = rng.random((8, 4))
    whole = thresholds(rule, releases, norms)
    state = rule.begin(1.0)
    thresholds(rule, releases[:4], norms[:4], state)
    resumed = thresholds(rule, releases[4:], norms[4:], copy.deepcopy(state))
    assert resumed == whole[4:]
