"""The private quantile in a run: both releases made, written down, paid for, and
nothing else read.
"""

import math

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpsum.accounting.calibration import epsilon_after
from dpsum.accounting.gaussian import joint_multiplier

from .conftest import (
    accounted,
    history_in,
    ledger_in,
    make_config,
    seen_of,
    train,
    watch_releases,
)

QUANTILE = {
    "clipping": {
        "kind": "private-quantile",
        "percentile": 75,
        "quantile_rate": 0.3,
        "count_noise": 1.5,
    }
}


def test_every_sum_that_was_released_is_in_the_ledger(
    federation, tmp_path, monkeypatch
):
    """Property 6: two releases a round, over the same cohort, with the values of the
    mechanisms that ran. z = 1 in all, beside 2 x 1.5: (1 - 1/9)^-1/2 for the sum.
    """
    releases = watch_releases(monkeypatch)
    train(make_config(QUANTILE), federation, tmp_path)
    ledger = ledger_in(tmp_path)
    written = [
        (line.noise_multiplier, line.threshold, line.dimension, line.sampler["cohort"])
        for line in ledger
    ]
    assert written == [
        (total.noise_multiplier, total.threshold, total.dimension, total.count)
        for total, _ in releases
    ]
    assert [(line.round, line.name) for line in ledger] == [
        (index, name)
        for index in range(12)
        for name in ("query-gradient-sum", "below-threshold-count")
    ]
    for count in ledger[1::2]:
        assert (count.noise_multiplier, count.threshold) == (3.0, 0.5)
        assert (count.sensitivity, count.noise_std, count.dimension) == (0.5, 1.5, 1)
    assert len({line.noise_stream for line in ledger}) == 24  # property 2
    assert not any(line.data_dependent_threshold for line in ledger)
    assert ledger[0].noise_multiplier == pytest.approx((8 / 9) ** -0.5)
    thresholds = history_in(tmp_path)["threshold"]
    assert thresholds.tolist() == pytest.approx(
        [line.threshold for line in ledger[::2]]
    )
    assert thresholds.nunique() == 12


@pytest.mark.parametrize("kind", ["one-pass", "balls-and-bins", "poisson"])
def test_both_releases_cost_what_the_configured_noise_does(federation, tmp_path, kind):
    config = make_config(QUANTILE, {"participation": {"kind": kind}})
    train(config, federation, tmp_path)
    found = accounted(config, tmp_path, federation[1])
    assert found["noise_multiplier"] == pytest.approx(1.0, rel=1e-12)
    alone = epsilon_after("holds", ledger_in(tmp_path)[0].sampler, 1.0, 12, 1e-3)
    holds = found["profiles"]["holds"]
    assert holds["epsilon_high"] == pytest.approx(alone, rel=1e-6)
    assert holds["status"] == "proved"
    for profile in ("as_claimed", "replace_one", "image_level"):
        assert math.isfinite(found["profiles"][profile]["epsilon_high"])
    spent = history_in(tmp_path)["epsilon_proven"].iloc[-1]
    assert spent == pytest.approx(holds["epsilon_high"], rel=1e-6)


def test_noise_for_a_budget_leaves_room_for_the_count(federation, tmp_path):
    budget = {"noise": {"multiplier": None}, "budget": {"epsilon": 3.0}}
    config = make_config(QUANTILE, budget, {"clipping": {"count_noise": 20.0}})
    train(config, federation, tmp_path)
    total, count, *_ = ledger_in(tmp_path)
    z = joint_multiplier([total.noise_multiplier, count.noise_multiplier])
    assert 2.9 < epsilon_after("holds", total.sampler, z, 12, 1e-3) <= 3.0


@pytest.mark.parametrize("shift", [1e30, 40.0, 1e-3, math.nan])
def test_one_client_moves_both_releases_together_by_no_more_than_the_noise_covers(
    shift,
):
    """Property 3. Same noise stream: releases of neighbours (zero-out) differ by what
    the client put in, whitened at most 1/z.
    """
    config = make_config(QUANTILE, {"clipping": {"count_noise": 0.6}})
    rng = np.random.default_rng(5)
    for _ in range(20):
        gradients = rng.normal(size=(48, 3)) * np.exp(rng.normal(size=(48, 1)))
        client = int(rng.integers(48))
        without = gradients.copy()
        without[client] = 0.0
        gradients[client] *= shift
        # Until the first round in which they differ the thresholds are equal.
        for (ledger, values), (_, neighbours) in zip(
            seen_of(config, gradients), seen_of(config, without), strict=True
        ):
            moved = [
                float(np.linalg.norm(one - other)) * line.denominator / line.noise_std
                for one, other, line in zip(values, neighbours, ledger, strict=True)
            ]
            if max(moved) > 0:
                assert math.hypot(*moved) <= 1.0 * (1 + 1e-6)
                break
        else:
            assert math.isnan(shift)  # counts as zero in both


def test_the_threshold_follows_from_what_everyone_saw():
    """Property 9: C recomputed from the released counts alone, whatever the gradients
    were.
    """
    config = make_config(QUANTILE)
    rng = np.random.default_rng(6)
    for scale in (0.1, 1.0, 30.0):
        expected = config.clipping.threshold
        for ledger, values in seen_of(config, scale * rng.normal(size=(48, 3))):
            assert ledger[0].threshold == pytest.approx(expected, rel=1e-12)
            expected *= math.exp(-0.3 * (0.5 + float(values[1][0]) - 0.75))


def test_a_count_is_taken_of_the_expected_cohort_also_where_nobody_came():
    """Property 8: an empty Poisson cohort releases noise of both kinds, over the public
    denominator.
    """
    plan = {"participation": {"kind": "poisson", "cohort": 1, "rounds": 12}}
    for ledger, values in seen_of(make_config(QUANTILE, plan), np.ones((48, 3))):
        assert len(ledger) == len(values) == 2
        for line, value in zip(ledger, values, strict=True):
            assert np.isfinite(value).all() and np.abs(value).min() > 0
            assert line.denominator == 1.0


def test_a_budget_that_the_count_alone_would_spend_is_refused(federation, tmp_path):
    overlay = {
        "noise": {"multiplier": None},
        "budget": {"epsilon": 0.5},
        "clipping": {"count_noise": 0.1},
    }
    with pytest.raises(BenchError, match=r"0\.2 .*raise clipping\.count_noise"):
        train(make_config(QUANTILE, overlay), federation, tmp_path)
