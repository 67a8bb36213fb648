"""The private quantile of records: each client's own, by a count of its own lot, paid
out of the noise of its sums.
"""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import dpsum
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.held_out import NoMeasures
from dpfedbench.federation.rounds import Rounds
from dpfedbench.models.gradients import Choice
from dpfedbench.models.torch_sums import TORCH
from dpfedbench.parts.clipping.private_quantile import PrivateQuantile
from dpfedbench.parts.noise.noise import Fixed
from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.ledger import read_ledger
from dpsum.mechanism import Mechanism
from dpsum.private_sum import PrivateSum
from dpsum.sums import Sum

from .conftest import Flat, accounted, stop_before, train
from .test_lots import DECAY, Lots, make_config

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


def rounds_over(config, rows, observer=None):
    """The rounds of a run whose two clients hold 100 records each, with these gradients
    [2, 100, d].
    """
    images, flat = (
        [np.arange(start, start + 100, dtype=np.uint8)[:, None] for start in (0, 100)],
        np.concatenate(rows),
    )
    held = SimpleNamespace(images=images, labels=[np.zeros(100, np.int64)] * 2)
    return Rounds(
        config,
        net=Flat(flat.shape[1]),
        held=held,
        gradients=Choice("given", lambda: Lots(flat), "cpu"),
        measures=NoMeasures(),
        ledger=[],
        observer=observer,
    )


def seen_of(config, rows, rounds):
    """By round: the lines of the ledger, and what left the clients over the
    denominator, float64 [clients, d].
    """
    seen, found = [], []
    made = rounds_over(
        config,
        rows,
        lambda line, left: seen.append((line, np.stack([mean for _, mean in left]))),
    )
    for index in range(rounds):
        seen.clear()
        made.round(index)
        found.append(list(seen))
    return found


TWO = {"clients": {"count": 2}, "participation": {"cohort": 40, "rounds": 700}}


@pytest.mark.parametrize("percentile", [30, 75])
def test_each_client_comes_to_the_quantile_of_its_own_records(percentile):
    """Norms 1 to 100, and 10 to 1,000: by construction 30 (300) and 75 (750), found
    through the noise of the counts.

    Of 300 simulated clients the mean of C over the last 400 rounds is 1.6 % and 0.7 %
    too high (norms are whole numbers) and deviates by 1.3 % and 0.5 %: 7 % is four
    deviations. A quantile ten points off is 13 % to 33 % away.
    """
    rows = np.zeros((2, 100, 3))
    rows[0, :, 0], rows[1, :, 1] = np.arange(1, 101), 10 * np.arange(1, 101)
    clipping = {"percentile": percentile, "quantile_rate": 0.1}
    seen = seen_of(make_config(QUANTILE, TWO, {"clipping": clipping}), rows, 700)
    thresholds = np.array([lines[0][0].threshold for lines in seen])[300:]
    assert np.exp(np.log(thresholds).mean(axis=0)) == pytest.approx(
        [percentile, 10 * percentile], rel=0.07
    )


def test_each_next_threshold_follows_from_the_count_that_was_released():
    """Property 9, by hand: C exp(-0.3 (1/2 + count / L - 3/4)), whatever the gradients
    were.
    """
    rng = np.random.default_rng(6)
    config = make_config(QUANTILE, TWO)
    for scale in (0.1, 30.0):
        expected = np.ones(2)
        for (line, _), (count, left) in seen_of(
            config, scale * rng.normal(size=(2, 100, 3)), 8
        ):
            assert line.threshold == pytest.approx(expected, rel=1e-12)
            assert (count.name, count.dimension, count.denominator) == (
                "below-threshold-count",
                1,
                40.0,
            )
            expected *= np.exp(-0.3 * (0.5 + left[:, 0] - 0.75))
        assert expected[0] != expected[1]


@pytest.mark.parametrize("shift", [1e30, 40.0, 1e-3])
def test_one_record_moves_both_releases_together_by_no_more_than_the_noise_covers(
    shift,
):
    """Property 3, sensitivity 1/z = 1/2 of both releases, whitened; the same lots and
    noise with and without it.
    """
    config = make_config(
        QUANTILE, {"clients": {"count": 2}, "clipping": {"count_noise": 1.2}}
    )
    rng, reached = np.random.default_rng(5), 0.0
    for trial in range(10):
        rows = rng.normal(size=(2, 100, 3)) * np.exp(rng.normal(size=(2, 100, 1)))
        without = rows.copy()
        without[0, trial], rows[0, trial] = 0.0, shift * rows[0, trial]
        for ours, theirs in zip(
            seen_of(config, rows, 12), seen_of(config, without, 12), strict=True
        ):
            moved = [
                float(np.linalg.norm(a[0] - b[0]))
                * line.denominator
                / line.noise_std[0]
                for (line, a), (_, b) in zip(ours, theirs, strict=True)
            ]
            if max(moved) > 0:
                reached = max(reached, math.hypot(*moved))
                break
    # A record in no lot of the twelve moves nothing; one that is clipped moves all that
    # it may.
    assert reached <= 0.5 * (1 + 1e-6)
    assert reached > 0.49 or shift < 1


def test_every_release_is_in_the_ledger_and_both_cost_what_the_configured_noise_does(
    silos, tmp_path, monkeypatch
):
    """By hand: z_sum^-2 + (2 sigma_b)^-2 = z^-2 with sigma_b = 2 and z = 2, so z_sum =
    (1/4 - 1/16)^-1/2 = 2.3094.
    """
    done = []
    release = PrivateSum.release

    def spy(self, generator):
        done.append((self.dimension, self.threshold, self.noise_multiplier))
        return release(self, generator)

    monkeypatch.setattr(PrivateSum, "release", spy)
    config = make_config(
        QUANTILE, {"client_update": {"inner_steps": 2}, "participation": {"rounds": 5}}
    )
    train(config, silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
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
    assert sorted(written) == sorted(done) and len(done) == 2 * 10 * 4
    for sums, counts in zip(ledger[::2], ledger[1::2], strict=True):
        assert sums.noise_std == pytest.approx(
            [2.309401 * threshold for threshold in sums.threshold], rel=1e-6
        )
        assert (counts.sensitivity, counts.noise_std) == ([0.5] * 4, [2.0] * 4)
        assert (
            sums.counted_by_paper
            and counts.counted_by_paper
            and not sums.data_dependent_threshold
        )
    found = accounted(config, tmp_path)
    assert found["noise_multiplier"] == pytest.approx(2.0, rel=1e-12)
    z = (2.309401076758503**-2 + 4.0**-2) ** -0.5
    holds = found["profiles"]["holds"]
    assert holds["status"] == "proved"
    assert holds["epsilon_high"] == pytest.approx(
        upper_epsilon(((z, 10),), 8 / 100, 1e-4), rel=1e-9
    )
    history = pd.read_csv(tmp_path / "history.csv")
    assert (history["threshold_low"] < history["threshold_high"])[1:].all()


@pytest.mark.parametrize("profile", ["holds", "as_claimed"])
def test_with_noise_that_follows_a_loss_the_filter_covers_both_releases(
    silos, tmp_path, profile
):
    """At each z of the schedule the sum's noise is raised anew, so that every lot costs
    z; the budget is proved.
    """
    budget = {
        "participation": {"rounds": 60},
        "budget": {"epsilon": 3.0, "profile": profile},
    }
    config = make_config(QUANTILE, DECAY, budget)
    train(config, silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    charged = [(sums.noise_multiplier**-2 + 4.0**-2) ** -0.5 for sums in ledger[::2]]
    falls = np.log(np.array(charged) / 2.0) / np.log(0.9)
    assert falls == pytest.approx(np.round(falls), abs=1e-9) and falls[-1] > 1
    assert all(line.noise_multiplier == 4.0 for line in ledger[1::2])
    holds = accounted(config, tmp_path)["profiles"]["holds"]
    assert holds["status"] == "proved" and "filter" in holds["explanation"]
    assert holds["epsilon_high"] == pytest.approx(
        3.0, abs=1e-9 if profile == "holds" else 0.05
    )


def test_noise_for_a_budget_leaves_room_for_the_count(silos, tmp_path):
    budget = {
        "noise": {"multiplier": None},
        "budget": {"epsilon": 1.0, "profile": "holds"},
    }
    config = make_config(QUANTILE, budget)
    train(config, silos, tmp_path)
    holds = accounted(config, tmp_path)["profiles"]["holds"]
    assert 0.99 < holds["epsilon_high"] <= 1.0


def test_it_goes_on_from_a_checkpoint_with_the_same_bits(silos, tmp_path, monkeypatch):
    config = make_config(QUANTILE, DECAY)
    whole = train(config, silos, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 5)):
        train(config, silos, tmp_path / "resumed", checkpoint_seconds=0)
    assert train(config, silos, tmp_path / "resumed", threads=2) == whole


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        (
            {"clipping": {"count_noise": 1.0}},
            "clipping.count_noise is 1: private-quantile needs more than half of ",
        ),
        (
            {"clipping": {"count_noise": None}},
            "clipping.count_noise is null, so a twentieth of the cohort, 0.4: ",
        ),
        # Of noise that falls the first is the largest, so that the count has room in
        # all rounds or in none.
        (
            DECAY | {"clipping": {"count_noise": 1.0}},
            "clipping.count_noise is 1: private-quantile needs more than ",
        ),
        (
            {"clipping": {"threshold": None}},
            "clipping.threshold is null: the rule private-quantile needs a first ",
        ),
    ],
)
def test_a_count_that_leaves_nothing_for_the_gradients_is_one_line(overlay, said):
    with pytest.raises(BenchError) as caught:
        make_config(QUANTILE, overlay)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_two_sums_of_a_run_may_not_share_the_noise_of_their_counts():
    """Both would draw it from the rule's one stream, and the difference of two counts
    would have no noise at all.
    """
    book = functools.partial(
        Mechanism.of, budget=dpsum.Budget(), ledger=[], seed=0, arithmetic=TORCH
    )
    rule = PrivateQuantile(count_noise=3.0)
    sums = [
        Sum(
            name=name,
            unit="record",
            observer="server",
            stream=name,
            clipping=rule,
            noise=Fixed(multiplier=2.0),
        )
        for name in ("first", "second")
    ]
    given = {"sampler": {}, "denominator": 8.0, "dimension": 3, "multiplier": 2.0}
    book(sums[0], **given)
    with pytest.raises(
        BenchError,
        match=r"^two sums of this run draw their noise from the stream 'count-noise'",
    ):
        book(sums[1], **given)
