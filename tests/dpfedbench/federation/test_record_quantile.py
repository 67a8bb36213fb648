"""The private quantile of records: each client's own, by a count of its own lot, paid
out of the noise of its sums.
"""

import math

import numpy as np
import pytest

from dpsum.accounting.analyses.poisson import upper_epsilon

from .conftest import (
    accounted,
    history_in,
    ledger_in,
    proven,
    rounds_of_rows,
    train,
    watch_releases,
)
from .test_lots import DECAY, make_config

QUANTILE = {
    "clipping": {
        "kind": "private-quantile",
        "threshold": 1.0,
        "percentile": 75,
        "quantile_rate": 0.3,
        "count_noise": 2.0,
        "never_rising": False,
    }
}
TWO = {"clients": {"count": 2}, "participation": {"cohort": 40, "rounds": 700}}


def seen_of(config, rows, rounds):
    """Return by round: ledger lines, and the releases of the clients over the
    denominator, float64 [clients, d].
    """
    seen = []

    def observer(line, left):
        seen.append((line, np.stack([mean for _, mean in left])))

    taken = rounds_of_rows(config, rows, observer)
    by_round = []
    for index in range(rounds):
        seen.clear()
        taken.round(index)
        by_round.append(list(seen))
    return by_round


@pytest.mark.parametrize("percentile", [30, 75])
def test_each_client_comes_to_the_quantile_of_its_own_records(percentile):
    """Norms 1 to 100, and 10 to 1,000: by construction 30 (300) and 75 (750).

    Of 300 simulated clients the mean of C over the last 400 rounds is 1.6 % and 0.7 %
    too high (norms are whole numbers) and deviates by 1.3 % and 0.5 %: 7 % is four
    deviations. A quantile ten points off is 13 % to 33 % away.
    """
    rows = np.zeros((2, 100, 3))
    rows[0, :, 0] = np.arange(1, 101)
    rows[1, :, 1] = 10 * np.arange(1, 101)
    clipping = {"percentile": percentile, "quantile_rate": 0.1}
    seen = seen_of(make_config(QUANTILE, TWO, {"clipping": clipping}), rows, 700)
    thresholds = np.array([lines[0][0].threshold for lines in seen])[300:]
    means = np.exp(np.log(thresholds).mean(axis=0))
    assert means == pytest.approx([percentile, 10 * percentile], rel=0.07)


def test_each_next_threshold_follows_from_the_count_that_was_released():
    """Property 9, by hand: C exp(-0.3 (1/2 + count / L - 3/4)), whatever the gradients
    were.
    """
    rng = np.random.default_rng(6)
    config = make_config(QUANTILE, TWO)
    for scale in (0.1, 30.0):
        expected = np.ones(2)
        rows = scale * rng.normal(size=(2, 100, 3))
        for (line, _), (count, means) in seen_of(config, rows, 8):
            assert line.threshold == pytest.approx(expected, rel=1e-12)
            assert (count.name, count.dimension) == ("below-threshold-count", 1)
            assert count.denominator == 40.0
            expected *= np.exp(-0.3 * (0.5 + means[:, 0] - 0.75))
        assert expected[0] != expected[1]


@pytest.mark.parametrize("shift", [1e30, 40.0, 1e-3])
def test_one_record_moves_both_releases_together_by_no_more_than_the_noise_covers(
    shift,
):
    """Property 3, sensitivity 1/z = 1/2 of both releases, whitened; the same lots and
    noise with and without it.
    """
    overlay = {"clients": {"count": 2}, "clipping": {"count_noise": 1.2}}
    config = make_config(QUANTILE, overlay)
    rng = np.random.default_rng(5)
    reached = 0.0
    for trial in range(10):
        rows = rng.normal(size=(2, 100, 3)) * np.exp(rng.normal(size=(2, 100, 1)))
        without = rows.copy()
        without[0, trial] = 0.0
        rows[0, trial] = shift * rows[0, trial]
        for with_it, without_it in zip(
            seen_of(config, rows, 12), seen_of(config, without, 12), strict=True
        ):
            moved = [
                float(np.linalg.norm(one[0] - other[0]))
                * line.denominator
                / line.noise_std[0]
                for (line, one), (_, other) in zip(with_it, without_it, strict=True)
            ]
            if max(moved) > 0:
                reached = max(reached, math.hypot(*moved))
                break
    # A record that is clipped moves all that it may.
    assert reached <= 0.5 * (1 + 1e-6)
    assert reached > 0.49 or shift < 1


def test_every_release_is_in_the_ledger_and_both_cost_what_the_configured_noise_does(
    silos, tmp_path, monkeypatch
):
    """By hand: z_sum^-2 + (2 sigma_b)^-2 = z^-2 with sigma_b = 2 and z = 2, so z_sum =
    (1/4 - 1/16)^-1/2 = 2.3094, and each lot costs z = 2.
    """
    releases = watch_releases(monkeypatch)
    steps = {"client_update": {"inner_steps": 2}, "participation": {"rounds": 5}}
    config = make_config(QUANTILE, steps)
    train(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    assert [(line.round, line.name) for line in ledger] == [
        (number, name)
        for number in range(10)
        for name in ("gradient-sum", "below-threshold-count")
    ]
    assert len({line.noise_stream for line in ledger}) == 20  # property 2
    written = [
        (line.dimension, threshold, line.noise_multiplier)
        for line in ledger
        for threshold in line.threshold
    ]
    done = [
        (total.dimension, total.threshold, total.noise_multiplier)
        for total, _ in releases
    ]
    assert sorted(written) == sorted(done) and len(done) == 2 * 10 * 4
    for sums, counts in zip(ledger[::2], ledger[1::2], strict=True):
        expected = [2.309401 * threshold for threshold in sums.threshold]
        assert sums.noise_std == pytest.approx(expected, rel=1e-6)
        assert (counts.sensitivity, counts.noise_std) == ([0.5] * 4, [2.0] * 4)
        assert sums.counted_by_paper and counts.counted_by_paper
        assert not sums.data_dependent_threshold
    found = accounted(config, tmp_path)
    assert found["noise_multiplier"] == pytest.approx(2.0, rel=1e-12)
    holds = found["profiles"]["holds"]
    assert holds["status"] == "proved"
    expected = upper_epsilon(((2.0, 10),), 8 / 100, 1e-4)
    assert holds["epsilon_high"] == pytest.approx(expected, rel=1e-9)
    history = history_in(tmp_path)
    assert (history["threshold_low"] < history["threshold_high"])[1:].all()


@pytest.mark.parametrize(("profile", "gap"), [("holds", 1e-9), ("as_claimed", 0.05)])
def test_with_noise_that_follows_a_loss_the_filter_covers_both_releases(
    silos, tmp_path, profile, gap
):
    """At each z of the schedule the sum's noise is raised anew, so that every lot costs
    z; the budget is proved.
    """
    budget = {"budget": {"epsilon": 3.0, "profile": profile}}
    config = make_config(QUANTILE, DECAY, budget, {"participation": {"rounds": 60}})
    train(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    multipliers = np.array([sums.noise_multiplier for sums in ledger[::2]])
    charged = (multipliers**-2 + 4.0**-2) ** -0.5
    falls = np.log(charged / 2.0) / np.log(0.9)
    assert falls == pytest.approx(np.round(falls), abs=1e-9) and falls[-1] > 1
    assert {line.noise_multiplier for line in ledger[1::2]} == {4.0}
    holds = proven(config, tmp_path)
    assert holds["status"] == "proved" and "filter" in holds["explanation"]
    assert holds["epsilon_high"] == pytest.approx(3.0, abs=gap)


def test_noise_for_a_budget_leaves_room_for_the_count(silos, tmp_path):
    budget = {"epsilon": 1.0, "profile": "holds"}
    config = make_config(QUANTILE, {"noise": {"multiplier": None}, "budget": budget})
    train(config, silos, tmp_path)
    assert 0.99 < proven(config, tmp_path)["epsilon_high"] <= 1.0
