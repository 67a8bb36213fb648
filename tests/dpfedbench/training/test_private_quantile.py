"""The private quantile over clients: both releases of a round, and their account."""

import math

import numpy as np
import pytest

from dpsum.accounting.calibration import epsilon_after
from dpsum.accounting.gaussian import joint_multiplier

from .conftest import (
    accounted,
    history_in,
    ledger_in,
    make_config,
    releases_of,
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


def test_private_quantile_writes_both_releases(federation, tmp_path, monkeypatch):
    """Property 6, over the same cohort: z = 1 in all. Beside a count of 2 x 1.5 the sum
    has (1 - 1/9)^-1/2.
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
        assert count.noise_multiplier == 3.0
        assert count.threshold == 0.5
        assert count.sensitivity == 0.5
        assert count.noise_std == 1.5
        assert count.dimension == 1
    assert len({line.noise_stream for line in ledger}) == 24  # property 2
    assert not any(line.data_dependent_threshold for line in ledger)
    assert ledger[0].noise_multiplier == pytest.approx((8 / 9) ** -0.5)
    thresholds = history_in(tmp_path)["threshold"]
    assert thresholds.tolist() == pytest.approx(
        [line.threshold for line in ledger[::2]]
    )
    assert thresholds.nunique() == 12


@pytest.mark.parametrize("kind", ["one-pass", "balls-and-bins", "poisson"])
def test_private_quantile_costs_what_the_configured_noise_does(
    federation, tmp_path, kind
):
    config = make_config(QUANTILE, {"participation": {"kind": kind}})
    train(config, federation, tmp_path)
    result = accounted(config, tmp_path, federation[1])
    assert result["noise_multiplier"] == pytest.approx(1.0, rel=1e-12)
    alone = epsilon_after("proven", ledger_in(tmp_path)[0].sampler, 1.0, 12, 1e-3)
    proof = result["profiles"]["proven"]
    assert proof["epsilon_high"] == pytest.approx(alone, rel=1e-6)
    assert proof["status"] == "proved"
    for profile in ("claimed", "replace_one", "image_level"):
        assert math.isfinite(result["profiles"][profile]["epsilon_high"])
    spent = history_in(tmp_path)["epsilon_proven"].iloc[-1]
    assert spent == pytest.approx(proof["epsilon_high"], rel=1e-6)


def test_private_quantile_leaves_room_for_the_count_in_a_budget(federation, tmp_path):
    budget = {"noise": {"multiplier": None}, "budget": {"epsilon": 3.0}}
    config = make_config(QUANTILE, budget, {"clipping": {"count_noise": 20.0}})
    train(config, federation, tmp_path)
    total, count, *_ = ledger_in(tmp_path)
    z = joint_multiplier([total.noise_multiplier, count.noise_multiplier])
    assert 2.9 < epsilon_after("proven", total.sampler, z, 12, 1e-3) <= 3.0


@pytest.mark.parametrize("factor", [1e30, 40.0, 1e-3, math.nan])
def test_private_quantile_moves_by_no_more_than_its_noise_covers(factor):
    """Property 3, with the same noise: releases of neighbours (zero-out) differ by one
    client's part of both, whitened by at most 1/z.
    """
    config = make_config(QUANTILE, {"clipping": {"count_noise": 0.6}})
    rng = np.random.default_rng(5)
    for _ in range(20):
        gradients = rng.normal(size=(48, 3)) * np.exp(rng.normal(size=(48, 1)))
        client = int(rng.integers(48))
        without = gradients.copy()
        without[client] = 0.0
        gradients[client] *= factor
        # Until the first round in which they differ the thresholds are equal.
        for (ledger, means), (_, neighbour_means) in zip(
            releases_of(config, gradients), releases_of(config, without), strict=True
        ):
            moved = [
                float(np.linalg.norm(mean - neighbour))
                * line.denominator
                / line.noise_std
                for mean, neighbour, line in zip(
                    means, neighbour_means, ledger, strict=True
                )
            ]
            if max(moved) > 0:
                assert math.hypot(*moved) <= 1.0 * (1 + 1e-6)
                break
        else:
            assert math.isnan(factor)  # counts as zero in both


def test_private_quantile_threshold_follows_from_the_released_counts():
    """Property 9: C, computed from the counts alone, is the same whatever the gradients
    were.
    """
    config = make_config(QUANTILE)
    rng = np.random.default_rng(6)
    for scale in (0.1, 1.0, 30.0):
        expected = config.clipping.threshold
        for ledger, means in releases_of(config, scale * rng.normal(size=(48, 3))):
            assert ledger[0].threshold == pytest.approx(expected, rel=1e-12)
            expected *= math.exp(-0.3 * (0.5 + float(means[1][0]) - 0.75))


def test_private_quantile_counts_the_expected_cohort_also_in_an_empty_round():
    """Property 8: an empty Poisson cohort releases both kinds of noise, over the public
    denominator.
    """
    plan = {"participation": {"kind": "poisson", "cohort": 1, "rounds": 12}}
    for ledger, means in releases_of(make_config(QUANTILE, plan), np.ones((48, 3))):
        assert len(ledger) == len(means) == 2
        for line, mean in zip(ledger, means, strict=True):
            assert np.isfinite(mean).all()
            assert np.abs(mean).min() > 0
            assert line.denominator == 1.0
