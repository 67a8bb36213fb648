"""Clipping rules; property 9: a rule that is said to be private reads only releases."""

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


def thresholds(rule, releases, raw_norms, first=1.0):
    """Return the thresholds after each of some releases and raw norms.

    All rules receive the norms here, private rules too.
    """
    state = rule.begin(first)
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


def test_private_quantile_indicators_are_a_half_and_zero_for_zero():
    """A private sum counts values that are not finite as zero."""
    norms = np.array([0.0, 0.5, 1.0, np.nextafter(1.0, 2), 1e30, np.inf, np.nan])
    values = PrivateQuantile().values({"threshold": 1.0}, norms)
    assert values[:5, 0].tolist() == [0.0, 0.5, 0.5, -0.5, -0.5]
    assert np.isnan(values[5:]).all()


def test_threshold_stays_within_the_range_of_a_sum():
    rule = NormOfRelease(factor=1.0)
    assert observe(rule, rule.begin(1.0), [1e30]) == LARGEST_THRESHOLD
    assert observe(rule, rule.begin(1.0), [0.0]) == SMALLEST_THRESHOLD
    for threshold in (0.0, -1.0, float("nan"), float("inf"), 1e-151, 1.1e150):
        with pytest.raises(BenchError, match="it must be fin"):
            Constant().begin(threshold)
