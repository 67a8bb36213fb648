"""The rounds of a run: streams of noise, lines of the ledger, and steps."""

import collections
import math

import numpy as np
import pytest
import torch

import dpsum
from dpfedbench.errors import BenchError
from dpfedbench.parts.optimizers.optimizer import Adam
from dpfedbench.training.rounds import Rounds
from dpsum.clipping import PrivateQuantile
from tests.dpfedbench.papers.test_refusals import RUNS

from . import conftest
from .conftest import LOTS, RUN, fixed_rounds, make_config, rounds_without_data
from .test_sums_together import private_sum


def test_mechanism_with_the_noise_stream_of_another_is_refused():
    """Two sums, or the counts of two rules: their difference would have no noise."""
    plan = dpsum.OnePass(units=48, cohort=4, rounds=12, seed=0)
    rule = PrivateQuantile(count_noise=3.0)
    first = private_sum("first", stream="noise")
    same_stream = private_sum("second", stream="noise")
    with pytest.raises(BenchError, match=r"^two sums of .* from the stream 'noise'"):
        dpsum.calibrated([first, same_stream], plan)
    counted = private_sum("second", stream="second", clipping=rule)
    counted_too = private_sum("third", stream="third", clipping=rule)
    with pytest.raises(BenchError, match=r"from the stream 'count-noise'"):
        dpsum.calibrated([first, counted, counted_too], plan)


ROUNDS = 300
QUIET = {"validation": {"every": 0}}
MANY = QUIET | {
    "clients": {"count": ROUNDS, "partition": "shared"},
    "participation": {"cohort": 1, "rounds": ROUNDS},
}
MANY_LOTS = QUIET | {"participation": {"rounds": ROUNDS}}
TWO_STEPS = {"client_update": {"inner_steps": 2}}
QUANTILE = {"clipping": {"kind": "private-quantile", "count_noise": 2.0}}
NORM_QUERY = {"clipping": {"kind": "noised-mean-norm", "threshold": 1.0}}
POISSON = {"participation": {"kind": "poisson", "cohort": 2, "rounds": ROUNDS}}
TRANSFER = {"participation": {"lot": 8, "rounds": ROUNDS}}
NOISY = {
    "dp-agr": (RUN, MANY | QUANTILE),
    "dp-maml": (RUN, MANY),
    "dp-agrlr": (RUN, MANY | TWO_STEPS),
    "dp-maml-sample": (RUN, MANY),
    "dp-reptile": (RUN, MANY | {"client_update": {"inner_steps": 3}}),
    "local-reptile": (RUN, MANY),
    "dp-fedavg": (conftest.DIFFERENCE, POISSON | QUIET),
    "dp-fedrep": (conftest.DIFFERENCE, POISSON | QUIET),
    "dp-fl": (LOTS, MANY_LOTS | TWO_STEPS),
    "adap-dp-fl": (LOTS, MANY_LOTS | TWO_STEPS | NORM_QUERY),
    "dp-transfer": (RUN, TRANSFER | {"budget": {"profile": "proven"}}),
    "dp-fnas": (LOTS, MANY_LOTS),
    "dp-cells": (LOTS, MANY_LOTS),
}
WITHIN = {"clients": {"count": 300}, "participation": {"cohort": 150, "rounds": 2}}
SILOS = {"clients": {"count": 80, "fragments": 80}, "participation": {"rounds": 2}}
WIDE = {"dp-agrlr": WITHIN, "dp-maml-sample": WITHIN, "local-reptile": WITHIN}
WIDE["adap-dp-fl"] = SILOS
"""Many clients in a round, each with sums of its own."""


def test_noise_stream_cases_are_all_private_methods():
    """Correlated and discrete noise and SCAFFOLD's two sums have tests of their own."""
    tested_elsewhere = {"dp-agr-ftrl", "dp-agr-secagg", "dp-scaffold"}
    private = {run.method for run in RUNS.values() if run.private}
    assert set(NOISY) == private - tested_elsewhere


def ledger_names(streams, mechanisms, by_step):
    """Group streams by their ledger name, with words for clients and steps."""
    private = [mechanism for mechanism in mechanisms if mechanism.spec.private]
    words_of = {
        mechanism.spec.stream: mechanism._stream_indices for mechanism in private
    }
    words_of_rules = private[0]._stream_indices  # a rule's release: those of its sum
    numbered = {"round", "step"} if by_step else {"round"}
    by_name = {}
    for seed, purpose, *numbers in streams:
        words = words_of.get(purpose) or words_of_rules
        parts = [
            str(number) if word in numbered else word
            for word, number in zip(words, numbers, strict=True)
        ]
        name = "/".join([str(seed), purpose, *parts])
        by_name.setdefault(name, []).append(numbers)
    return by_name


@pytest.mark.parametrize(
    ("method", "wide"), [*((method, {}) for method in NOISY), *WIDE.items()]
)
def test_noise_streams_are_never_used_twice_and_all_in_the_ledger(
    method, wide, monkeypatch
):
    """Properties 2 and 6, over 300 rounds, or 150 clients in one."""
    general, overlay = NOISY[method]
    config = make_config({"method": method}, overlay, wide, general=general)
    # The threshold of noise alone grows without end, and the model with it.
    monkeypatch.setattr(Rounds, "_refuse_not_finite", lambda *_, **__: None)
    streams = conftest.watch_streams(monkeypatch)
    releases = conftest.watch_releases(monkeypatch)
    rounds = rounds_without_data(config)
    mechanisms = rounds.mechanisms
    for index in range(config.participation.rounds):
        rounds.round(index)
    noise = set().union(*(mechanism.spec.stream_purposes for mechanism in mechanisms))
    noise_streams = [stream for stream in streams if stream[1] in noise]
    assert len(noise_streams) == len(set(noise_streams)) == len(releases)
    assert len(noise_streams) >= (150 if wide else ROUNDS)
    by_step = "poisson-lots" in str(rounds.ledger[0].sampler)
    by_name = ledger_names(noise_streams, mechanisms, by_step)
    assert sorted(by_name) == sorted(line.noise_stream for line in rounds.ledger)
    written = collections.Counter()
    for line in rounds.ledger:
        # Each line stands for the releases of all its clients and steps.
        by_client = line.sampler["kind"].startswith(("within-task", "local"))
        clients = config.participation.cohort if by_client else 1
        times = clients * line.sampler.get("steps", 1)
        thresholds = np.ravel(line.threshold)
        assert len(by_name[line.noise_stream]) == times * len(thresholds)
        for threshold, std in zip(thresholds, np.ravel(line.noise_std), strict=True):
            written[line.dimension, threshold, std] += times
    assert written == collections.Counter(
        (total.dimension, total.threshold, total.noise_std) for total, _ in releases
    )


@pytest.mark.parametrize(
    ("rule", "general", "stream"),
    [
        (QUANTILE, RUN, "count-noise"),
        (QUANTILE, LOTS, "count-noise"),
        (NORM_QUERY, LOTS, "norm-noise"),
    ],
)
def test_noise_of_a_rules_release_is_not_that_of_the_sum(rule, general, stream):
    """Otherwise an observer could subtract the count's noise from the sum."""
    rounds = rounds_without_data(make_config(rule, general=general))
    for lines, means in conftest.releases_by_round(rounds, 3):
        assert {line.noise_stream.split("/")[1] for line in lines} == {"noise", stream}
        stds = [np.ravel(line.noise_std)[0] for line in lines]
        sum_noise, rule_noise = (
            mean[0, 0] / std for mean, std in zip(means, stds, strict=True)
        )
        assert sum_noise != pytest.approx(rule_noise, rel=1e-3)


@pytest.mark.parametrize("form", ["mean", "sum"])
def test_percentile_threshold_follows_from_what_everyone_saw(form):
    """Property 9: C is the median of the last three rounds' releases."""
    rule = {"kind": "percentile-of-releases", "form": form, "percentile": 50}
    config = make_config({"clipping": rule})
    rng = np.random.default_rng(4)
    for scale in (0.01, 1.0, 100.0):
        norms = []
        expected = 0.5
        for (line,), (mean,) in conftest.releases_of(
            config, scale * rng.normal(size=(48, 3))
        ):
            assert line.threshold == pytest.approx(expected, rel=1e-12)
            factor = 1.0 if form == "mean" else line.denominator
            norms.append(factor * float(np.linalg.norm(mean)))
            if len(norms) >= 3:
                expected = sorted(norms[-3:])[1]


def test_optimiser_receives_the_mean_and_not_the_sum(monkeypatch):
    """Property 8: the denominator of Poisson cohorts is their mean size, and an empty
    cohort releases noise. Adam hides a factor, so the test watches its input.
    """
    gradients = []
    step = Adam.step

    def watched(self, weights, gradient, *rest):
        gradients.append(gradient.numpy().copy())
        return step(self, weights, gradient, *rest)

    monkeypatch.setattr(Adam, "step", watched)
    releases = conftest.watch_releases(monkeypatch)
    plan = {"participation": {"kind": "poisson", "cohort": 2, "rounds": 12}}
    rounds = fixed_rounds(make_config(plan), np.full((48, 3), 0.1))
    for index in range(12):
        rounds.round(index)
    counts = [total.count for total, _ in releases]
    assert 0 in counts
    assert max(counts) > 1
    for gradient, (_, released) in zip(gradients, releases, strict=True):
        assert np.array_equal(gradient, (released / 2.0).astype(np.float32))
        assert np.abs(released).min() > 0
    conftest.remove_noise(monkeypatch)
    fixed_rounds(make_config(), np.full((48, 3), 0.1)).round(0)
    assert gradients[-1].tolist() == pytest.approx([0.1] * 3)


@pytest.mark.parametrize(("method", "sums"), [("dp-agr", 1), ("dp-agrlr", 3)])
def test_round_without_clients_has_its_lines_and_its_step(method, sums):
    """Property 8: neither ledger nor step shows which rounds are empty."""
    plan = {"participation": {"kind": "balls-and-bins", "cohort": 1, "rounds": 48}}
    config = make_config({"method": method, "clipping": {"kind": "constant"}}, plan)
    rounds = rounds_without_data(config)
    empty = sum(len(rounds.plan.sample_cohort(index)) == 0 for index in range(48))
    assert 5 < empty < 40
    for index in range(48):
        before = rounds.theta.clone()
        row, served = rounds.round(index)
        assert served == row["clients"] == 1
        assert not torch.equal(rounds.theta, before)
    values = [
        (line.name, line.noise_multiplier, line.threshold, line.denominator)
        for line in rounds.ledger
    ]
    assert values == values[:sums] * 48
    assert [line.round for line in rounds.ledger] == [*np.repeat(range(48), sums)]


def test_not_finite_contributions_are_counted_anew_each_round():
    config = make_config()
    rows = np.full((48, 3), 0.1)
    cohort = config.participation.plan(clients=48, seed=0).sample_cohort(1)
    rows[cohort[:2]] = math.nan, math.inf, 0.1
    rounds = fixed_rounds(config, rows)
    counts = []
    for index in range(3):
        rounds.round(index)
        counts.append(rounds.non_finite)
    assert counts == [0, 2, 0]
    assert torch.isfinite(rounds.theta).all()
