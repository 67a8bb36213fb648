"""Clipping rules; property 9, that a rule said to be private reads nothing but
releases.
"""

import copy

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import kinds_of
from dpsum.clipping import (
    LARGEST_THRESHOLD,
    SMALLEST_THRESHOLD,
    ClippingRule,
    Constant,
    MeanOfRawNorms,
    NoisedMeanNorm,
    NormOfRelease,
    PercentileOfRawNorms,
    PercentileOfReleases,
    PrivateQuantile,
    Seen,
)
from tests.dpfedbench.federation.conftest import LOTS, make_config

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
READS_A_RELEASE_OF_ITS_OWN = ("quantile", "scalar")


def observe(rule, state, released, *, denominator=4.0, extra=None, raw=None):
    """One round, as the book tells a rule of it."""
    released = torch.as_tensor(released, dtype=torch.float64)
    rule.observe(
        state,
        Seen(released=released, extra=extra, denominator=denominator, raw_norms=raw),
    )
    return state["threshold"]


def thresholds(rule, releases, raw_norms, state=None, first=1.0):
    """The thresholds of a run with given releases and raw norms, which only a rule that
    is not private sees.
    """
    state = rule.begin(first) if state is None else state
    return [
        observe(
            rule,
            state,
            released,
            extra=float(released[0]),
            raw=None if rule.private else norms,
        )
        for released, norms in zip(releases, raw_norms, strict=True)
    ]


def test_every_rule_is_tested_here():
    elsewhere = {"median-of-run", "by-kernel"}  # in tests/federation
    tested = {rule.kind for rule in RULES.values()}
    assert set(kinds_of(ClippingRule)) - tested == elsewhere


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_private_if_and_only_if_it_follows_from_releases(name):
    """Property 9: the same thresholds for any raw gradients, given the same
    releases.
    """
    rule, rng = RULES[name], np.random.default_rng(0)
    releases = [torch.from_numpy(rng.normal(size=5)) for _ in range(12)]
    norms = [
        [list(scale * rng.random(4)) for _ in range(12)] for scale in (0.1, 1.0, 50.0)
    ]
    # All see the norms here, whatever they say of themselves.
    runs = []
    for raw in norms:
        state = rule.begin(1.0)
        runs.append(
            [
                observe(rule, state, r, extra=float(r[0]), raw=n)
                for r, n in zip(releases, raw, strict=True)
            ]
        )
    assert rule.private == all(run == runs[0] for run in runs)
    assert rule.private == (rule.reason == rule.notice == "")


def test_the_window_and_the_percentile_by_hand():
    """Norms 1, 2, 3 fill the window; their 50th percentile is 2, then of 2, 3, 10 it is
    3.
    """
    rule = PercentileOfReleases(
        form="sum", percentile=50.0, window=3, never_rising=False
    )
    releases = [torch.tensor([float(norm), 0.0]) for norm in (1, 2, 3, 10)]
    assert thresholds(rule, releases, [[]] * 4, first=9.0) == [9.0, 9.0, 2.0, 3.0]
    # 90th percentile of 1, 2, 3 by linear interpolation: 2 + 0.8.
    rule = PercentileOfReleases(
        form="sum", percentile=90.0, window=3, never_rising=False
    )
    assert thresholds(rule, releases[:3], [[]] * 3, first=9.0)[-1] == pytest.approx(2.8)


def test_the_mean_form_divides_by_the_denominator():
    rule = PercentileOfReleases(
        form="mean", percentile=50.0, window=1, never_rising=False
    )
    assert observe(rule, rule.begin(9.0), [3.0, 4.0]) == 1.25


def test_never_rising_takes_no_larger_threshold():
    rule = PercentileOfReleases(
        form="sum", percentile=50.0, window=1, never_rising=True
    )
    releases = [torch.tensor([float(norm)]) for norm in (4, 2, 3, 1)]
    assert thresholds(rule, releases, [[]] * 4, first=2.5) == [2.5, 2.0, 2.0, 1.0]


def test_the_mean_form_collapses_onto_its_own_noise_and_stays_positive():
    """With no gradient at all C shrinks by z sqrt(d)/L a window: here 0.1, down to the
    stated floor.
    """
    rng = np.random.default_rng(1)
    rule = PercentileOfReleases(
        form="mean", percentile=90.0, window=2, never_rising=True
    )
    state = rule.begin(0.2)
    for _ in range(80):
        observe(
            rule, state, state["threshold"] * rng.normal(size=100), denominator=100.0
        )
    assert state["threshold"] == SMALLEST_THRESHOLD > 0


def test_raw_norms_pool_the_clients_of_the_window():
    rule = PercentileOfRawNorms(percentile=50.0, window=2, never_rising=False)
    state = rule.begin(9.0)
    assert observe(rule, state, [0.0], raw=[1.0, 2.0, 3.0]) == 9.0
    assert observe(rule, state, [0.0], raw=[4.0, 5.0, float("nan")]) == 3.0


def test_the_readings_of_adap_dp_fl_by_hand():
    """Eq. 6 to 8 over 4: |(3, 4)| / 4 times 0.5; |-12| / 4; the mean of 1, 2 and 6, of
    which one is not finite.
    """
    vector, scalar, raw = (
        NormOfRelease(factor=0.5),
        NoisedMeanNorm(),
        MeanOfRawNorms(factor=2.0),
    )
    assert observe(vector, vector.begin(1.0), [3.0, 4.0]) == pytest.approx(
        0.625, rel=1e-12
    )
    assert observe(scalar, scalar.begin(1.0), [3.0, 4.0], extra=-12.0) == 3.0
    assert (
        observe(raw, raw.begin(1.0), [3.0, 4.0], raw=[1.0, 2.0, 6.0, float("inf")])
        == 6.0
    )
    # An empty lot says nothing of norms.
    assert observe(raw, raw.begin(7.0), [3.0, 4.0], raw=[]) == 7.0


def test_the_norm_query_takes_each_norm_as_it_is_and_its_sum_clips_it():
    """Eq. 6's sensitivity: each norm is cut to C, so a record of 1e30 moves the query
    by no more than C.
    """
    from dpsum.private_sum import PrivateSum

    class Silent:
        def standard_normal(self, dimension):
            return np.zeros(dimension)

    rule = NoisedMeanNorm()
    extra = rule.extra(rule.begin(2.0), noise_multiplier=3.0, cohort=8.0)
    assert (extra.threshold, extra.noise_multiplier, extra.counted, extra.within) == (
        2.0,
        3.0,
        False,
        False,
    )
    total = PrivateSum(
        dimension=1, threshold=extra.threshold, noise_multiplier=extra.noise_multiplier
    )
    total.add(
        torch.from_numpy(
            rule.values({"threshold": 2.0}, np.array([0.5, 1e30, 2.0, np.nan]))
        )
    )
    assert total.release(Silent()).item() == 4.5 and total.non_finite == 1


def test_the_private_quantile_by_hand():
    """gamma = 0.9, rate 0.5. Counts over 4: +2 is a share of 1, C e^-0.05; -1 is a
    share of 1/4, C e^0.325.
    """
    rule = PrivateQuantile(percentile=90.0, quantile_rate=0.5, never_rising=False)
    state = rule.begin(2.0)
    assert observe(rule, state, [0.0], extra=2.0) == pytest.approx(2 * np.exp(-0.05))
    assert observe(rule, state, [0.0], extra=-1.0) == pytest.approx(
        2 * np.exp(-0.05 + 0.325)
    )
    held = PrivateQuantile(percentile=90.0, quantile_rate=0.5, never_rising=True)
    state = held.begin(2.0)
    assert observe(held, state, [0.0], extra=-1.0) == 2.0
    assert observe(held, state, [0.0], extra=1e9) == SMALLEST_THRESHOLD


def test_the_private_quantile_finds_the_quantile():
    """Log-normal norms, no noise: the 90th percentile is e^1.2816 = 3.60, from far
    below and from far above.
    """
    rng, rule = (
        np.random.default_rng(3),
        PrivateQuantile(percentile=90.0, quantile_rate=0.2, never_rising=False),
    )
    for first in (0.01, 500.0):
        state, seen = rule.begin(first), []
        for _ in range(600):
            count = float(rule.values(state, np.exp(rng.normal(size=200))).sum())
            seen.append(observe(rule, state, [0.0], extra=count, denominator=200.0))
        assert np.mean(seen[-200:]) == pytest.approx(np.exp(1.2816), rel=0.05)


def test_an_indicator_is_a_half_and_that_of_a_zero_contribution_is_zero():
    norms = np.array([0.0, 0.5, 1.0, np.nextafter(1.0, 2), 1e30, np.inf, np.nan])
    values = PrivateQuantile().values({"threshold": 1.0}, norms)
    assert values[:5, 0].tolist() == [0.0, 0.5, 0.5, -0.5, -0.5]
    assert np.isnan(values[5:]).all()  # the private sum counts it as zero


def test_the_count_is_noised_by_its_configured_deviation_or_a_twentieth_of_the_cohort():
    """Indicators are a half, so that a deviation of 3 is a multiplier of 6; a twentieth
    of 100 is 5, so 10.
    """
    state = {"threshold": 1.0}
    given = PrivateQuantile(count_noise=3.0).extra(
        state, noise_multiplier=1.0, cohort=100.0
    )
    assert (given.threshold, given.noise_multiplier, given.counted, given.within) == (
        0.5,
        6.0,
        True,
        True,
    )
    assert (
        PrivateQuantile()
        .extra(state, noise_multiplier=1.0, cohort=100.0)
        .noise_multiplier
        == 10.0
    )


def test_a_threshold_stays_within_what_a_sum_can_be_clipped_to():
    rule = NormOfRelease(factor=1.0)
    assert observe(rule, rule.begin(1.0), [1e30]) == LARGEST_THRESHOLD
    assert observe(rule, rule.begin(1.0), [0.0]) == SMALLEST_THRESHOLD


@pytest.mark.parametrize("name", RULES)
def test_state_goes_through_a_restart(name):
    rng, rule = np.random.default_rng(2), RULES[name]
    releases = [torch.from_numpy(rng.normal(size=5)) for _ in range(8)]
    norms = [list(rng.random(4)) for _ in range(8)]
    whole = thresholds(rule, releases, norms)
    state = rule.begin(1.0)
    thresholds(rule, releases[:4], norms[:4], state)
    assert thresholds(rule, releases[4:], norms[4:], copy.deepcopy(state)) == whole[4:]


def test_one_rule_keeps_the_thresholds_of_several_clients_apart():
    rule = PercentileOfReleases(
        form="sum", percentile=50.0, window=1, never_rising=False
    )
    first, second = rule.begin(1.0), rule.begin(1.0)
    assert (
        observe(rule, first, [2.0]),
        observe(rule, second, [5.0]),
        first["threshold"],
    ) == (2.0, 5.0, 2.0)


@pytest.mark.parametrize(
    "threshold", [0.0, -1.0, float("nan"), float("inf"), 1e-151, 1.1e150]
)
def test_a_first_threshold_that_cannot_be_is_refused(threshold):
    with pytest.raises(
        BenchError,
        match=r"^clipping\.threshold is .*: it must be finite and above 0, from",
    ):
        Constant().begin(threshold)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"threshold": 0.0},
            "clipping.threshold is 0.0",
        ),
        (
            {"threshold": None},
            (
                "clipping.threshold is null: the rule percentile-of-releases needs a"
                " first threshold"
            ),
        ),
        (
            {"percentile": 101.0},
            ("clipping.percentile is 101.0"),
        ),
        ({"window": 0}, "clipping.window is 0"),
        ({"form": "median"}, 'clipping.form is "median"'),
        ({"kind": "quantile"}, 'clipping.kind is "quantile"'),
        (
            {"kind": "constant", "percentile": 50},
            "unknown key clipping.percentile",
        ),
        (
            {"kind": "private-quantile", "percentile": -1},
            "clipping.percentile is -1",
        ),
        (
            {"kind": "private-quantile", "quantile_rate": 0},
            "clipping.quantile_rate is 0",
        ),
        (
            {"kind": "norm-of-release"},
            'clipping.kind is "norm-of-release"',
        ),
    ],
)
def test_bad_values_are_one_line(values, line):
    with pytest.raises(BenchError) as caught:
        make_config({"clipping": values})
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_a_release_more_a_lot_needs_a_multiplier():
    scalar = {
        "clipping": {"kind": "noised-mean-norm"},
        "noise": {"multiplier": None},
        "budget": {"epsilon": 1.0},
    }
    with pytest.raises(
        BenchError,
        match=(
            r"^noise\.multiplier is null, but noised-mean-norm is a release more a lot"
        ),
    ):
        make_config(scalar, general=LOTS)
