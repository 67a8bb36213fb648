"""The private quantile over records: each client's own, by a count of its own lot."""

import math

import numpy as np
import pytest

from dpsum.accounting.analyses.poisson import upper_epsilon

from .conftest import (
    accounted,
    history_in,
    ledger_in,
    lots_config,
    proven,
    releases_by_round,
    rounds_of_rows,
    train,
    watch_releases,
)
from .test_lots import DECAY, check_ledger_of_lots

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
    config = lots_config(QUANTILE, TWO, {"clipping": clipping})
    by_round = releases_by_round(rounds_of_rows(config, rows), 700)
    thresholds = np.array([lines[0].threshold for lines, _ in by_round])[300:]
    means = np.exp(np.log(thresholds).mean(axis=0))
    assert means == pytest.approx([percentile, 10 * percentile], rel=0.07)


def test_record_quantile_threshold_follows_from_the_released_count():
    """Property 9: C exp(-0.3 (1/2 + count / L - 3/4)), whatever the gradients were."""
    rng = np.random.default_rng(6)
    config = lots_config(QUANTILE, TWO)
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


@pytest.mark.parametrize("factor", [1e30, 40.0, 1e-3])
def test_record_quantile_moves_by_no_more_than_its_noise_covers(factor):
    """Property 3: with the same lots and noise, one record moves both releases,
    whitened, by at most 1/z = 1/2.
    """
    overlay = {"clients": {"count": 2}, "clipping": {"count_noise": 1.2}}
    config = lots_config(QUANTILE, overlay)
    rng = np.random.default_rng(5)
    largest = 0.0
    for trial in range(10):
        rows = rng.normal(size=(2, 100, 3)) * np.exp(rng.normal(size=(2, 100, 1)))
        without = rows.copy()
        without[0, trial] = 0.0
        rows[0, trial] = factor * rows[0, trial]
        for (lines, means), (_, neighbour_means) in zip(
            releases_by_round(rounds_of_rows(config, rows), 12),
            releases_by_round(rounds_of_rows(config, without), 12),
            strict=True,
        ):
            moved = [
                float(np.linalg.norm(mean[0] - neighbour[0]))
                * line.denominator
                / line.noise_std[0]
                for line, mean, neighbour in zip(
                    lines, means, neighbour_means, strict=True
                )
            ]
            if max(moved) > 0:
                largest = max(largest, math.hypot(*moved))
                break
    # A record that is clipped moves all that it may.
    assert largest <= 0.5 * (1 + 1e-6)
    assert largest > 0.49 or factor < 1


def test_record_quantile_costs_what_the_configured_noise_does(
    silos, tmp_path, monkeypatch
):
    """z_sum^-2 + (2 sigma_b)^-2 = z^-2 with sigma_b = 2 and z = 2. So z_sum = (1/4 -
    1/16)^-1/2 = 2.3094, and each lot costs as much as z = 2.
    """
    releases = watch_releases(monkeypatch)
    steps = {"client_update": {"inner_steps": 2}, "participation": {"rounds": 5}}
    config = lots_config(QUANTILE, steps)
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


@pytest.mark.parametrize(("profile", "gap"), [("proven", 1e-9), ("claimed", 0.05)])
def test_record_quantile_with_decaying_noise_keeps_its_budget(
    silos, tmp_path, profile, gap
):
    """At each z of the schedule the sum's noise is raised anew, so that every lot costs
    as much as z. The budget is proved.
    """
    budget = {"budget": {"epsilon": 3.0, "profile": profile}}
    config = lots_config(QUANTILE, DECAY, budget, {"participation": {"rounds": 60}})
    train(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    multipliers = np.array([sums.noise_multiplier for sums in ledger[::2]])
    charged = (multipliers**-2 + 4.0**-2) ** -0.5
    decays = np.log(charged / 2.0) / np.log(0.9)
    assert decays == pytest.approx(np.round(decays), abs=1e-9)
    assert decays[-1] > 1
    assert {line.noise_multiplier for line in ledger[1::2]} == {4.0}
    proof = proven(config, tmp_path)
    assert proof["status"] == "proved"
    assert "filter" in proof["explanation"]
    assert proof["epsilon_high"] == pytest.approx(3.0, abs=gap)


def test_record_quantile_leaves_room_for_the_count_in_a_budget(silos, tmp_path):
    budget = {"epsilon": 1.0, "profile": "proven"}
    config = lots_config(QUANTILE, {"noise": {"multiplier": None}, "budget": budget})
    train(config, silos, tmp_path)
    assert 0.99 < proven(config, tmp_path)["epsilon_high"] <= 1.0
