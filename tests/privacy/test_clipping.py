"""Clipping rules; property 9, that a rule said to be private reads nothing but releases."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.privacy.clipping import (
    SMALLEST_THRESHOLD,
    Constant,
    PercentileOfRawNorms,
    PercentileOfReleases,
    PrivateQuantile,
    centred_indicators,
    make_rule,
)

MOVING = {"threshold": 1.0, "percentile": 90.0, "window": 3, "never_rising": False}
RULES = {
    "constant": lambda: Constant(threshold=1.0),
    "mean": lambda: PercentileOfReleases(form="mean", **MOVING),
    "sum": lambda: PercentileOfReleases(form="sum", **MOVING),
    "raw": lambda: PercentileOfRawNorms(**MOVING),
    "quantile": lambda: PrivateQuantile(threshold=1.0, percentile=90.0, rate=0.2, never_rising=False),
}


def thresholds(rule, releases, raw_norms):
    """The thresholds of a run with given releases and raw norms: what the engine does with a rule."""
    seen = []
    for released, norms in zip(releases, raw_norms, strict=True):
        if rule.reads_raw_norms:
            rule.observe_raw(norms)
        rule.observe(released, 4.0)
        if rule.reads_count_release:
            rule.observe_count(float(released[0]), 4.0)
        seen.append(rule.threshold)
    return seen


def follows_from_releases(make):
    """Property 9: the same thresholds for any raw gradients, given the same releases."""
    rng = np.random.default_rng(0)
    releases = [torch.from_numpy(rng.normal(size=5)) for _ in range(12)]
    runs = [
        thresholds(make(), releases, [list(scale * rng.random(4)) for _ in range(12)]) for scale in (0.1, 1.0, 50.0)
    ]
    return all(run == runs[0] for run in runs)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_private_if_and_only_if_it_follows_from_releases(name):
    rule = RULES[name]()
    assert rule.private == follows_from_releases(RULES[name])
    assert rule.private != rule.reads_raw_norms


def test_the_window_and_the_percentile_by_hand():
    """Norms 1, 2, 3 fill the window; their 50th percentile is 2, then of 2, 3, 10 it is 3."""
    rule = PercentileOfReleases(form="sum", threshold=9.0, percentile=50.0, window=3, never_rising=False)
    releases = [torch.tensor([float(norm), 0.0]) for norm in (1, 2, 3, 10)]
    assert thresholds(rule, releases, [[]] * 4) == [9.0, 9.0, 2.0, 3.0]
    # 90th percentile of 1, 2, 3 by linear interpolation: 2 + 0.8.
    rule = PercentileOfReleases(form="sum", threshold=9.0, percentile=90.0, window=3, never_rising=False)
    assert thresholds(rule, releases[:3], [[]] * 3)[-1] == pytest.approx(2.8)


def test_the_mean_form_divides_by_the_denominator():
    rule = PercentileOfReleases(form="mean", threshold=9.0, percentile=50.0, window=1, never_rising=False)
    rule.observe(torch.tensor([3.0, 4.0]), 4.0)
    assert rule.threshold == 1.25


def test_never_rising_takes_no_larger_threshold():
    rule = PercentileOfReleases(form="sum", threshold=2.5, percentile=50.0, window=1, never_rising=True)
    releases = [torch.tensor([float(norm)]) for norm in (4, 2, 3, 1)]
    assert thresholds(rule, releases, [[]] * 4) == [2.5, 2.0, 2.0, 1.0]


def test_the_mean_form_collapses_onto_its_own_noise_and_stays_positive():
    """With no gradient at all C shrinks by z sqrt(d)/L a window: here 0.1, down to the stated floor."""
    rng = np.random.default_rng(1)
    rule = PercentileOfReleases(form="mean", threshold=0.2, percentile=90.0, window=2, never_rising=True)
    for _ in range(80):
        rule.observe(torch.from_numpy(rule.threshold * rng.normal(size=100)), 100.0)
    assert rule.threshold == SMALLEST_THRESHOLD > 0


def test_raw_norms_pool_the_clients_of_the_window():
    rule = PercentileOfRawNorms(threshold=9.0, percentile=50.0, window=2, never_rising=False)
    rule.observe_raw([1.0, 2.0])
    rule.observe_raw([3.0])
    rule.observe(torch.zeros(1), 3.0)
    assert rule.threshold == 9.0
    rule.observe_raw([4.0, 5.0, float("nan")])
    rule.observe(torch.zeros(1), 3.0)
    assert rule.threshold == 3.0


def test_the_private_quantile_by_hand():
    """gamma = 0.9, rate 0.5. Counts over 4: +2 is a share of 1, C e^-0.05; -1 is a share of 1/4, C e^0.325."""
    rule = PrivateQuantile(threshold=2.0, percentile=90.0, rate=0.5, never_rising=False)
    rule.observe_count(2.0, 4.0)
    assert rule.threshold == pytest.approx(2 * np.exp(-0.05))
    rule.observe_count(-1.0, 4.0)
    assert rule.threshold == pytest.approx(2 * np.exp(-0.05 + 0.325))
    held = PrivateQuantile(threshold=2.0, percentile=90.0, rate=0.5, never_rising=True)
    held.observe_count(-1.0, 4.0)
    assert held.threshold == 2.0
    held.observe_count(1e9, 4.0)
    assert held.threshold == SMALLEST_THRESHOLD


def test_the_private_quantile_finds_the_quantile():
    """Log-normal norms, no noise: the 90th percentile is e^1.2816 = 3.60, from far below and from far above."""
    rng = np.random.default_rng(3)
    for first in (0.01, 500.0):
        rule = PrivateQuantile(threshold=first, percentile=90.0, rate=0.2, never_rising=False)
        seen = []
        for _ in range(600):
            norms = np.exp(rng.normal(size=200))
            rule.observe_count(float(centred_indicators(norms, rule.threshold).sum()), 200.0)
            seen.append(rule.threshold)
        assert np.mean(seen[-200:]) == pytest.approx(np.exp(1.2816), rel=0.05)


def test_an_indicator_is_a_half_and_that_of_a_zero_contribution_is_zero():
    found = centred_indicators(np.array([0.0, 0.5, 1.0, np.nextafter(1.0, 2), 1e30, np.inf, np.nan]), 1.0)
    assert found[:5, 0].tolist() == [0.0, 0.5, 0.5, -0.5, -0.5]
    assert np.isnan(found[5:]).all()  # the private sum counts it as zero


def test_a_private_rule_refuses_raw_norms():
    with pytest.raises(RuntimeError):
        Constant(threshold=1.0).observe_raw([1.0])


@pytest.mark.parametrize("name", RULES)
def test_state_goes_through_a_restart(name):
    rng = np.random.default_rng(2)
    releases = [torch.from_numpy(rng.normal(size=5)) for _ in range(8)]
    norms = [list(rng.random(4)) for _ in range(8)]
    whole = thresholds(RULES[name](), releases, norms)
    first, second = RULES[name](), RULES[name]()
    thresholds(first, releases[:4], norms[:4])
    second.load_state_dict(first.state_dict())
    assert thresholds(second, releases[4:], norms[4:]) == whole[4:]


@pytest.mark.parametrize(
    "change",
    [{"threshold": 0.0}, {"threshold": float("nan")}, {"percentile": 101.0}, {"window": 0}, {"form": "median"},
     {"rule": "quantile"}, {"quantile_rate": 0.0, "rule": "private-quantile"},
     {"percentile": -1.0, "rule": "private-quantile"}],
)  # fmt: skip
def test_bad_values_are_refused(change):
    values = {"rule": "percentile-of-releases", "form": "mean", "quantile_rate": 0.2, **MOVING} | change
    with pytest.raises(BenchError, match=next(iter(change))):
        make_rule(SimpleNamespace(**values))
