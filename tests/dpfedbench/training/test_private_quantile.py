"""The private quantile over clients, and over the records of each client: both releases
of a round or lot, and their account.
"""

import math

import numpy as np
import pytest

from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.accounting.calibration import epsilon_after

from .conftest import (
    accounted,
    fixed_rounds,
    history_in,
    ledger_in,
    lots_config,
    make_config,
    releases_by_round,
    releases_of,
    rounds_of_rows,
    train,
    watch_releases,
)
from .test_lots import DECAY, check_ledger_of_lots

QUANTILE = {
    "clipping": {
        "kind": "private-quantile",
        "percentile": 75,
        "quantile_rate": 0.3,
        "count_noise": 1.5,
    }
}
RECORD_QUANTILE = {
    "clipping": QUANTILE["clipping"]
    | {"threshold": 1.0, "count_noise": 2.0, "never_rising": False}
}
TWO = {"clients": {"count": 2}, "participation": {"cohort": 40, "rounds": 700}}


def test_private_quantile_writes_both_releases(federation, tmp_path, monkeypatch):
    """Property 6, over the same cohort: z = 1 in all. Beside a count of 2 x 1.5 the sum
    has (1 - 1/9)^-1/2.
    """
    releases = watch_releases(monkeypatch)
    train(make_config(QUANTILE), federation, tmp_path)
    ledger = ledger_in(tmp_path)
    written = [
        (line.noise_multiplier, line.threshold, line.dimension) for line in ledger
    ]
    assert written == [
        (total.noise_multiplier, total.threshold, total.dimension)
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


def whitened(line, means, neighbour_means):
    """Return how far a release moved, over its noise: [clients]."""
    moved = np.linalg.norm(means - neighbour_means, axis=1)
    return moved * line.denominator / np.ravel(line.noise_std)


NEIGHBOURS = {
    "clients": (
        fixed_rounds,
        make_config(QUANTILE, {"clipping": {"count_noise": 0.6}}),
        (48,),
    ),
    "records": (
        rounds_of_rows,
        lots_config(
            RECORD_QUANTILE, {"clients": {"count": 2}, "clipping": {"count_noise": 1.2}}
        ),
        (2, 100),
    ),
}


@pytest.mark.parametrize("kind", NEIGHBOURS)
@pytest.mark.parametrize("factor", [1e30, 40.0, 1e-3, math.nan])
def test_private_quantile_moves_by_no_more_than_its_noise_covers(kind, factor):
    """Property 3: with the same cohorts, lots and noise, releases of neighbours
    (zero-out) differ by one unit's part of both, whitened by at most 1/z.
    """
    make_rounds, config, units = NEIGHBOURS[kind]
    rng = np.random.default_rng(5)
    largest = 0.0
    for trial in range(12):
        rows = rng.normal(size=(*units, 3)) * np.exp(rng.normal(size=(*units, 1)))
        unit = (0, trial)[-len(units) :]
        without = rows.copy()
        without[unit] = 0.0
        rows[unit] *= factor
        # Until the first round in which they differ the thresholds are equal.
        for (lines, means), (_, neighbour_means) in zip(
            releases_by_round(make_rounds(config, rows), 12),
            releases_by_round(make_rounds(config, without), 12),
            strict=True,
        ):
            moved = [
                whitened(*release).max()
                for release in zip(lines, means, neighbour_means, strict=True)
            ]
            if max(moved) > 0:
                largest = max(largest, math.hypot(*moved))
                break
    bound = 1 / config.noise.multiplier
    assert largest <= bound * (1 + 1e-6)
    if math.isnan(factor):  # counts as zero in both
        assert largest == 0
    elif factor > 1:  # A unit that is clipped moves all that it may.
        assert largest > 0.98 * bound


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


# Over the records of each client, by a count of its own lot


@pytest.mark.parametrize("percentile", [30, 75])
def test_record_quantile_reaches_the_percentile_of_each_client(percentile):
    """Norms 1 to 100, and 10 to 1,000: by construction 30 (300) and 75 (750).

    Of 300 simulated clients the mean of C over the last 400 rounds is 1.6 % and 0.7 %
    too high (norms are whole numbers) and deviates by 1.3 % and 0.5 %: 7 % is four
    deviations. A quantile ten points off is 13 % to 33 % away.
    """
    rows = np.zeros((2, 100, 3))
    rows[0, :, 0] = np.arange(1, 101)
    rows[1, :, 1] = 10 * np.arange(1, 101)
    clipping = {"percentile": percentile, "quantile_rate": 0.1}
    config = lots_config(RECORD_QUANTILE, TWO, {"clipping": clipping})
    by_round = releases_by_round(rounds_of_rows(config, rows), 700)
    thresholds = np.array([lines[0].threshold for lines, _ in by_round])[300:]
    means = np.exp(np.log(thresholds).mean(axis=0))
    assert means == pytest.approx([percentile, 10 * percentile], rel=0.07)


def test_record_quantile_threshold_follows_from_the_released_count():
    """Property 9: C exp(-0.3 (1/2 + count / L - 3/4)), whatever the gradients were."""
    rng = np.random.default_rng(6)
    config = lots_config(RECORD_QUANTILE, TWO)
    for scale in (0.1, 30.0):
        expected = np.ones(2)
        rounds = rounds_of_rows(config, scale * rng.normal(size=(2, 100, 3)))
        for (line, count), (_, counts) in releases_by_round(rounds, 8):
            assert line.threshold == pytest.approx(expected, rel=1e-12)
            assert count.name == "below-threshold-count"
            assert count.dimension == 1
            assert count.denominator == 40.0
            expected *= np.exp(-0.3 * (0.5 + counts[:, 0] - 0.75))
        assert expected[0] != expected[1]


def test_record_quantile_costs_what_the_configured_noise_does(
    silos, tmp_path, monkeypatch
):
    """z_sum^-2 + (2 sigma_b)^-2 = z^-2 with sigma_b = 2 and z = 2. So z_sum = (1/4 -
    1/16)^-1/2 = 2.3094, and each lot costs as much as z = 2.
    """
    releases = watch_releases(monkeypatch)
    steps = {"client_update": {"inner_steps": 2}, "participation": {"rounds": 5}}
    config = lots_config(RECORD_QUANTILE, steps)
    train(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    check_ledger_of_lots(ledger, releases, ("gradient-sum", "below-threshold-count"))
    assert len({line.noise_stream for line in ledger}) == 20  # property 2
    for sums, counts in zip(ledger[::2], ledger[1::2], strict=True):
        expected = [2.309401 * threshold for threshold in sums.threshold]
        assert sums.noise_std == pytest.approx(expected, rel=1e-6)
        assert counts.sensitivity == [0.5] * 4
        assert counts.noise_std == [2.0] * 4
        assert sums.counted_by_paper
        assert counts.counted_by_paper
        assert not sums.data_dependent_threshold
    result = accounted(config, tmp_path)
    assert result["noise_multiplier"] == pytest.approx(2.0, rel=1e-12)
    proof = result["profiles"]["proven"]
    assert proof["status"] == "proved"
    expected = upper_epsilon(((2.0, 10),), 8 / 100, 1e-4)
    assert proof["epsilon_high"] == pytest.approx(expected, rel=1e-9)
    history = history_in(tmp_path)
    assert (history["threshold_low"] < history["threshold_high"])[1:].all()


def test_record_quantile_raises_the_noise_of_the_sum_at_each_step_of_a_decay(
    silos, tmp_path
):
    """So every lot costs as much as z of the schedule."""
    config = lots_config(RECORD_QUANTILE, DECAY, {"participation": {"rounds": 30}})
    train(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    multipliers = np.array([sums.noise_multiplier for sums in ledger[::2]])
    charged = (multipliers**-2 + 4.0**-2) ** -0.5
    decays = np.log(charged / 2.0) / np.log(0.9)
    assert decays == pytest.approx(np.round(decays), abs=1e-9)
    assert decays[-1] > 1
    assert {line.noise_multiplier for line in ledger[1::2]} == {4.0}
