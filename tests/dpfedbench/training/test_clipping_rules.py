"""Clipping rules in the loop: the private quantile over clients and over records, the
median of a run without privacy, and rules of a user.
"""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from pydantic import create_model

from dpfedbench.audit.report import audit
from dpfedbench.errors import BenchError
from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.parts.clipping.reference import MedianOfRun
from dpfedbench.training.accounts import account_of
from dploss.gaussian import gaussian_epsilon
from dpsum.clipping import CohortRule, Constant
from dpsum.noise import Gaussian

from .conftest import (
    PLAIN,
    accounted,
    fixed_rounds,
    history_in,
    ledger_in,
    lots_config,
    make_config,
    releases_by_round,
    releases_of,
    rounds_of_rows,
    stop_before,
    take_rounds,
    train_model,
    watch,
)

QUANTILE_RULE = {"kind": "private-quantile", "percentile": 75, "quantile_rate": 0.3}
QUANTILE = {"clipping": QUANTILE_RULE | {"count_noise": 1.5}}
RECORD_QUANTILE = {"clipping": QUANTILE_RULE | {"threshold": 1.0, "count_noise": 2.0}}


def whitened(line, means, neighbour_means):
    """Return how far a release moved at most, over its noise."""
    moved = np.linalg.norm(means - neighbour_means, axis=1)
    return (moved * line.denominator / np.ravel(line.noise_std)).max()


TWO_CLIENTS = {"clients": {"count": 2}, "clipping": {"count_noise": 1.2}}
OF_CLIENTS = make_config(QUANTILE, {"clipping": {"count_noise": 0.6}})
OF_RECORDS = lots_config(RECORD_QUANTILE, TWO_CLIENTS)
NEIGHBOURS = {
    "clients": (fixed_rounds, OF_CLIENTS, (48,)),
    "records": (rounds_of_rows, OF_RECORDS, (2, 100)),
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
            moved = [*map(whitened, lines, means, neighbour_means)]
            if max(moved) > 0:
                largest = max(largest, math.hypot(*moved))
                break
    bound = 1 / config.noise.multiplier
    assert largest <= bound * (1 + 1e-6)
    if math.isnan(factor):  # counts as zero in both
        assert largest == 0
    elif factor > 1:  # A unit that is clipped moves all that it may.
        assert largest > 0.98 * bound


@pytest.mark.parametrize("kind", NEIGHBOURS)
def test_private_quantile_threshold_follows_from_the_released_counts(kind):
    """Property 9: C exp(-0.3 (1/2 + count / L - 3/4)) of the counts alone, whatever the
    gradients were.
    """
    make_rounds, config, units = NEIGHBOURS[kind]
    rng = np.random.default_rng(6)
    for scale in (0.1, 1.0, 30.0):
        expected = config.clipping.threshold
        rounds = make_rounds(config, scale * rng.normal(size=(*units, 3)))
        for (line, count), (_, counts) in releases_by_round(rounds, 8):
            assert np.ravel(line.threshold) == pytest.approx(expected, rel=1e-12)
            assert count.name == "below-threshold-count"
            assert count.dimension == 1
            assert set(np.ravel(count.sensitivity)) == {0.5}
            assert set(np.ravel(count.noise_std)) == {config.clipping.count_noise}
            expected = expected * np.exp(-0.3 * (0.5 + counts[:, 0] - 0.75))
        assert len(set(expected)) == len(expected)


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
    overlay = {
        "clients": {"count": 2},
        "participation": {"lot": 40, "rounds": 700},
        "clipping": {"percentile": percentile, "quantile_rate": 0.1},
    }
    config = lots_config(RECORD_QUANTILE, overlay)
    by_round = releases_by_round(rounds_of_rows(config, rows), 700)
    thresholds = np.array([lines[0].threshold for lines, _ in by_round])[300:]
    means = np.exp(np.log(thresholds).mean(axis=0))
    assert means == pytest.approx([percentile, 10 * percentile], rel=0.07)


# The constant threshold that is the median norm of a run without privacy
MEDIAN = {"clipping": {"kind": "median-of-run", "threshold": None}}


def write_history(folder, *medians):
    path = folder / "history.csv"
    pd.DataFrame({"norm_q50": medians}).to_csv(path, index_label="round")
    return path


def test_median_of_run_clips_at_the_median_and_proves_no_epsilon(federation, tmp_path):
    rate = {"server": {"rate": 0.02}}
    config = make_config(MEDIAN, rate)
    reference = config.references["history.csv"]
    assert reference == make_config(PLAIN, rate)
    train_model(reference, federation, tmp_path / "plain")
    run_dir = tmp_path / "private"
    references = {"history.csv": tmp_path / "plain" / "history.csv"}
    train_model(config, federation, run_dir, references=references)
    median = float(np.median(history_in(tmp_path / "plain")["norm_q50"]))
    ledger = ledger_in(run_dir)
    for line in ledger:
        assert line.threshold == median
        assert line.data_dependent_threshold
        assert "without privacy" in line.reason
    proof = accounted(config, run_dir, federation[1])["profiles"]["proven"]
    assert proof["status"] == "void"
    assert history_in(run_dir)["epsilon_proven"].map(math.isinf).all()
    assert math.isinf(audit(config, ledger, canaries=20)["epsilon_proven"])


def test_threshold_is_the_median_over_rounds_and_that_of_the_checkpoint(
    federation, tmp_path, monkeypatch
):
    """The reference run was trained again and has another median over rounds, of which
    one was without clients. A run must not mix the two.
    """
    run_dir = tmp_path / "run"
    history = write_history(tmp_path, 10, None, 1, 2)
    references = {"history.csv": history}
    config = make_config(MEDIAN)
    assert MedianOfRun().first_threshold(history, config) == 2.0
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 3)):
        train_model(config, federation, run_dir, 1, 0, references=references)
    write_history(tmp_path, 3)
    message = r"belongs to another run \(its threshold differ\)"
    with pytest.raises(BenchError, match=message):
        train_model(config, federation, run_dir, references=references)


# A user's rules
class UserNoise(Gaussian):
    """Noise of a mechanism that has no analysis without an encoder."""

    kind: ClassVar[str] = "user-noise"
    mechanism: ClassVar[str] = "correlated"


class Halving(CohortRule):
    """Clipping rule that halves C after each round."""

    kind: ClassVar[str] = "halving"

    def observe(self, state, observation):
        state["threshold"] /= 2


class PeekingRule(Halving):
    """A rule that declares that it reads raw norms."""

    kind: ClassVar[str] = "peeking"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = "it looks"


def run_of_user(**parts):
    """Return a run of DP-AGR with a user's parts."""
    fields = {name: (type(part), part) for name, part in parts.items()}
    method = create_model("OfUser", __base__=DpAgr, **fields)
    values = make_config().plain()
    del values["clipping"], values["noise"]
    return method.read(values)


def ledger_of_rounds(run):
    return take_rounds(fixed_rounds(run, np.full((48, 3), 0.1)), 12).ledger


@pytest.mark.filterwarnings("ignore::dpsum.NoAccountWarning")
def test_noise_of_an_unknown_mechanism_has_no_epsilon():
    """Neither the budget's plan nor the account takes it for Gaussian noise."""
    unknown = r"^no analysis for correlated noise with the sampler 'one-pass'"
    run = run_of_user(clipping=Constant(), noise=UserNoise())
    with pytest.raises(BenchError, match=unknown):
        fixed_rounds(run, np.zeros((48, 3)))
    run = make_config()
    lines = ledger_of_rounds(run)
    lines = [dataclasses.replace(line, mechanism="correlated") for line in lines]
    with pytest.raises(BenchError, match=unknown):
        account_of(run, lines)


def test_rule_of_a_user_is_private_unless_it_declares_raw_norms(monkeypatch):
    """A rule without that declaration receives no norms."""
    norms = watch(
        monkeypatch, Halving, "observe", lambda _, rule, state, seen: seen.raw_norms
    )
    run = run_of_user(clipping=Halving(threshold=0.5))
    ledger = ledger_of_rounds(run)
    assert [line.threshold for line in ledger] == [0.5**n for n in range(1, 13)]
    proof = account_of(run, ledger).profiles["proven"]
    assert proof.status == "proved"
    assert proof.epsilon_high == pytest.approx(gaussian_epsilon(1.0, 1e-3))
    assert norms == [None] * 12
    peeking = run_of_user(clipping=PeekingRule(threshold=0.5))
    profiles = account_of(peeking, ledger_of_rounds(peeking)).profiles
    assert profiles["proven"].status == "void"
    assert norms[-1] == pytest.approx([0.1 * 3**0.5] * 4)
