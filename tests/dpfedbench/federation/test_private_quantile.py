"""The private quantile in a run: both releases made, written down, paid for, and
nothing else read.
"""

import math

import numpy as np
import pandas as pd
import pytest

from dpfedbench.errors import BenchError
from dpsum.accounting.calibration import epsilon_after
from dpsum.accounting.gaussian import joint_multiplier
from dpsum.ledger import read_ledger
from dpsum.private_sum import PrivateSum

from .conftest import accounted, make_config, seen_of, train

QUANTILE = {
    "clipping": {
        "kind": "private-quantile",
        "percentile": 75,
        "quantile_rate": 0.3,
        "count_noise": 1.5,
    }
}


def run(config, federation, folder):
    """Train; returns the ledger."""
    train(config, federation, folder)
    return read_ledger(folder / "ledger.jsonl")


def test_every_sum_that_was_released_is_in_the_ledger(
    federation, tmp_path, monkeypatch
):
    """Property 6: two releases a round, over the same cohort, with the values of the
    mechanisms that ran.
    """
    done = []
    release = PrivateSum.release

    def spy(self, generator):
        done.append((self.noise_multiplier, self.threshold, self.dimension, self.count))
        return release(self, generator)

    monkeypatch.setattr(PrivateSum, "release", spy)
    ledger = run(make_config(QUANTILE), federation, tmp_path)
    assert [
        (e.noise_multiplier, e.threshold, e.dimension, e.sampler["cohort"])
        for e in ledger
    ] == done
    assert [(e.round, e.name) for e in ledger] == [
        (index, name)
        for index in range(12)
        for name in ("query-gradient-sum", "below-threshold-count")
    ]
    counts = ledger[1::2]
    assert {
        (e.noise_multiplier, e.threshold, e.sensitivity, e.noise_std, e.dimension)
        for e in counts
    } == {(3.0, 0.5, 0.5, 1.5, 1)}
    assert len({e.noise_stream for e in ledger}) == 24  # property 2
    assert not any(e.data_dependent_threshold for e in ledger)
    # z = 1 in all, beside 2 x 1.5: (1 - 1/9)^-1/2.
    assert ledger[0].noise_multiplier == pytest.approx((8 / 9) ** -0.5)
    history = pd.read_csv(tmp_path / "history.csv")
    assert history["threshold"].tolist() == pytest.approx(
        [e.threshold for e in ledger[::2]]
    )
    assert history["threshold"].nunique() == 12


@pytest.mark.parametrize("kind", ["one-pass", "balls-and-bins", "poisson"])
def test_both_releases_cost_what_the_configured_noise_does(federation, tmp_path, kind):
    config = make_config(QUANTILE, {"participation": {"kind": kind}})
    ledger = run(config, federation, tmp_path)
    found = accounted(config, tmp_path, federation[1])
    assert (
        found["noise_multiplier"] == pytest.approx(1.0, rel=1e-12)
        and found["rounds"] == 12
    )
    alone = epsilon_after("holds", ledger[0].sampler, 1.0, 12, 1e-3)
    assert found["profiles"]["holds"]["epsilon_high"] == pytest.approx(alone, rel=1e-6)
    assert found["profiles"]["holds"]["status"] == "proved"
    for profile in ("as_claimed", "replace_one", "image_level"):
        assert math.isfinite(found["profiles"][profile]["epsilon_high"])
    # What the run believed to have spent is what the account finds.
    spent = pd.read_csv(tmp_path / "history.csv")["epsilon_holds"].iloc[-1]
    assert spent == pytest.approx(found["profiles"]["holds"]["epsilon_high"], rel=1e-6)


def test_noise_for_a_budget_leaves_room_for_the_count(federation, tmp_path):
    budget = {"noise": {"multiplier": None}, "budget": {"epsilon": 3.0}}
    ledger = run(
        make_config(QUANTILE, budget, {"clipping": {"count_noise": 20.0}}),
        federation,
        tmp_path,
    )
    joint = joint_multiplier([ledger[0].noise_multiplier, ledger[1].noise_multiplier])
    assert epsilon_after("holds", ledger[0].sampler, joint, 12, 1e-3) <= 3.0


@pytest.mark.parametrize("shift", [1e30, 40.0, 1e-3, math.nan])
def test_one_client_moves_both_releases_together_by_no_more_than_the_noise_covers(
    shift,
):
    """Property 3. Same noise stream: releases of neighbours differ by what the client
    put in, whitened at most 1/z.
    """
    config = make_config(QUANTILE, {"clipping": {"count_noise": 0.6}})
    rng = np.random.default_rng(5)
    for trial in range(20):
        gradients = rng.normal(size=(48, 3)) * np.exp(rng.normal(size=(48, 1)))
        client = int(rng.integers(48))
        without = gradients.copy()
        without[client] = 0.0  # zero-out
        gradients[client] *= shift
        # The first round in which they differ: until then the thresholds are equal.
        for (ledger, values), (_, others) in zip(
            seen_of(config, gradients), seen_of(config, without), strict=True
        ):
            moved = [
                float(np.linalg.norm(a - b)) * e.denominator / e.noise_std
                for a, b, e in zip(values, others, ledger, strict=True)
            ]
            if max(moved) > 0:
                assert math.hypot(*moved) <= 1.0 * (1 + 1e-6), (trial, client)
                break
        else:
            assert math.isnan(shift)  # counts as zero in both


def test_the_threshold_follows_from_what_everyone_saw():
    """Property 9, on the run: C recomputed from the released counts alone, whatever the
    gradients were.
    """
    config = make_config(QUANTILE)
    rng = np.random.default_rng(6)
    for scale in (0.1, 1.0, 30.0):
        rounds = seen_of(config, scale * rng.normal(size=(48, 3)))
        expected = config.clipping.threshold
        for ledger, values in rounds:
            assert ledger[0].threshold == pytest.approx(expected, rel=1e-12)
            expected *= math.exp(-0.3 * (0.5 + float(values[1][0]) - 0.75))


def test_a_count_is_taken_of_the_expected_cohort_also_where_nobody_came():
    """Property 8: an empty Poisson cohort releases noise of both kinds, over the public
    denominator.
    """
    config = make_config(
        QUANTILE, {"participation": {"kind": "poisson", "cohort": 1, "rounds": 12}}
    )
    rounds = seen_of(config, np.ones((48, 3)))
    assert all(len(ledger) == len(values) == 2 for ledger, values in rounds)
    assert all(
        np.isfinite(value).all() and np.abs(value).min() > 0
        for _, values in rounds
        for value in values
    )
    assert {entry.denominator for ledger, _ in rounds for entry in ledger} == {1.0}


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        (
            {"clipping": {"count_noise": 0.5}},
            "clipping.count_noise is 0.5: private-quantile needs more than half",
        ),
        (
            {"clipping": {"count_noise": None}},
            "clipping.count_noise is null, so a twentieth of the cohort, 0.2",
        ),
        (
            {"clipping": {"count_noise": 0}},
            "clipping.count_noise is 0",
        ),
        (
            {"clipping": {"quantile_rate": -1}},
            "clipping.quantile_rate is -1",
        ),
        (
            {"clipping": {"threshold": None}},
            "clipping.threshold is null: the rule private-quantile needs a first",
        ),
    ],
)
def test_bad_values_are_one_line(overlay, said):
    with pytest.raises(BenchError) as caught:
        make_config(QUANTILE, overlay)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_a_budget_that_the_count_alone_would_spend_is_one_line(federation, tmp_path):
    config = make_config(
        QUANTILE,
        {
            "noise": {"multiplier": None},
            "budget": {"epsilon": 0.5},
            "clipping": {"count_noise": 0.1},
        },
    )
    with pytest.raises(
        BenchError, match=r"^a release of multiplier 0\.2 .*raise clipping\.count_noise"
    ):
        run(config, federation, tmp_path)
