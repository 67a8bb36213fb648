"""The mechanisms of a run: streams of noise, thresholds, lines of the ledger, and what
is refused.
"""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dpsum
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.held_out import NoMeasures
from dpfedbench.federation.rounds import Rounds
from dpfedbench.models.gradients import Choice, Measured
from dpfedbench.models.torch_sums import TORCH
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.parts.optimizers.optimizer import Adam
from dpfedbench.parts.participation.cohorts import OnePass
from dpsum.clipping import Constant, PrivateQuantile
from dpsum.mechanism import Mechanism
from dpsum.noise import Gaussian
from dpsum.private_sum import PlainSum
from dpsum.sums import SumSpec
from tests.dpfedbench.papers.test_refusals import RUNS

from .conftest import (
    DIFFERENCE,
    LOTS,
    RUN,
    Flat,
    Given,
    given_rounds,
    make_config,
    remove_noise,
    seen_of,
    watch_streams,
)

SAMPLER = OnePass(cohort=4, rounds=12).plan(clients=48, seed=0).describe()
PLAIN_SUM = SumSpec(name="plain", unit="client", observer="everyone")


@pytest.fixture
def create():
    """Create a mechanism of a sum, in one budget and one ledger, which is a list."""
    return functools.partial(
        Mechanism.of,
        budget=dpsum.Budget(),
        ledger=[],
        seed=0,
        arithmetic=TORCH,
        sampler=SAMPLER,
        denominator=4.0,
        dimension=3,
    )


def private_sum(name="first", **fields):
    values = {
        "clipping": Constant(),
        "noise": Gaussian(),
        "budget": BudgetSettings(delta=1e-3, profile="holds"),
    }
    return SumSpec(name=name, unit="client", observer="everyone", **values | fields)


def test_two_private_sums_of_one_stream_are_refused(create):
    create(private_sum())
    with pytest.raises(BenchError, match=r"^two sums of .* from the stream 'noise'"):
        create(private_sum("second"))
    create(private_sum("second", stream="other"))
    create(PLAIN_SUM)  # draws nothing
    mechanisms = create.keywords["budget"].mechanisms
    assert [entry.sum.name for entry in mechanisms] == ["first", "second", "plain"]


def test_two_sums_may_not_share_the_noise_of_their_counts(create):
    """The difference of two counts would have no noise at all."""
    rule = PrivateQuantile(count_noise=3.0)
    noise = Gaussian(multiplier=2.0)
    first, second = (
        private_sum(name, stream=name, clipping=rule, noise=noise, budget=None)
        for name in ("first", "second")
    )
    create(first, multiplier=2.0)
    with pytest.raises(BenchError, match=r"from the stream 'count-noise'"):
        create(second, multiplier=2.0)


def test_a_threshold_that_nobody_finds_is_refused(create):
    unknown = private_sum(clipping=Constant(threshold=None))
    with pytest.raises(BenchError, match=r"^clipping\.threshold is null"):
        create(unknown)
    entry = create(unknown, first=lambda: 0.25)
    assert entry.open(0).sum.threshold == 0.25


def test_only_a_plain_sum_shows_norms(create):
    """A plain sum has no line in the ledger; a private one keeps no norms."""
    plain = create(PLAIN_SUM)
    private = create(private_sum())
    total = plain.open(0)
    total.add(torch.tensor([[3.0, 4.0, 0.0]]))
    assert isinstance(total.sum, PlainSum) and total.norms == [5.0]
    assert plain.end(total).tolist() == [3, 4, 0]
    plain.write(0)
    assert create.keywords["ledger"] == []
    total = private.open(0)
    total.add(torch.ones((2, 3)))
    assert total.raw == [] and not hasattr(total, "norms")


# A run's streams of noise

ROUNDS = 300
QUIET = {"validation": {"every": 0}}
MANY = QUIET | {
    "clients": {"count": ROUNDS, "partition": "shared"},
    "participation": {"cohort": 1, "rounds": ROUNDS},
}
MANY_LOTS = QUIET | {
    "participation": {"rounds": ROUNDS},
    "client_update": {"inner_steps": 2},
}
MANY_SUMS = QUIET | {"participation": {"rounds": ROUNDS}}
QUANTILE = {"clipping": {"kind": "private-quantile", "count_noise": 2.0}}
NORM_QUERY = {"clipping": {"kind": "noised-mean-norm", "threshold": 1.0}}
POISSON = {"participation": {"kind": "poisson", "cohort": 2, "rounds": ROUNDS}}
TRANSFER = {
    "participation": {"cohort": 8, "rounds": ROUNDS},
    "budget": {"profile": "holds"},
}
NOISY = {
    "dp-agr": [MANY, QUANTILE],
    "dp-maml": [MANY],
    "dp-agrlr": [MANY, {"client_update": {"inner_steps": 2}}],
    "dp-maml-sample": [MANY],
    "dp-reptile": [MANY, {"client_update": {"inner_steps": 3}}],
    "local-reptile": [MANY],
    "dp-fedavg": [POISSON | QUIET],
    "dp-fl": [MANY_LOTS],
    "adap-dp-fl": [MANY_LOTS, NORM_QUERY],
    "dp-transfer": [TRANSFER],
    "dp-fnas": [MANY_SUMS],
    "dp-cells": [MANY_SUMS],
}
GENERAL = {
    **dict.fromkeys(("adap-dp-fl", "dp-fl", "dp-fnas", "dp-cells"), LOTS),
    "dp-fedavg": DIFFERENCE,
}
WITHIN = {"clients": {"count": 300}, "participation": {"cohort": 150, "rounds": 2}}
SILOS = {"clients": {"count": 80, "fragments": 80}, "participation": {"rounds": 2}}
WIDE = {
    **dict.fromkeys(("dp-agrlr", "dp-maml-sample", "local-reptile"), WITHIN),
    "adap-dp-fl": SILOS,
}
"""Many clients in a round, each with sums of its own."""


class Zeros:
    """Stand-in for gradients: all of them are zero."""

    device = "cpu"

    @staticmethod
    def _measured(count):
        return Measured(np.zeros(count), np.zeros(count), np.ones(count))

    def each(self, theta, x, y, out):
        out.zero_()
        return self._measured(len(y))

    def add_each(self, theta, x, y, total, *, block=""):
        rows = torch.zeros((len(y), total.dimension))
        return self._measured(len(y)), total.add(rows)


def rounds_without_data(config, observer=None):
    """Return the rounds of a run over a model of three weights, whose gradients are all
    zero; the ledger is a list.
    """
    clients = config.clients.count

    def gather(ids):
        def examples(per_class):
            count = 3 * per_class
            labels = np.zeros((len(ids), count), np.int64)
            return np.zeros((len(ids), count, 4, 4, 1)), labels

        support_x, support_y = examples(1)
        query_x, query_y = examples(2)
        return SimpleNamespace(
            support_x=support_x, support_y=support_y, query_x=query_x, query_y=query_y
        )

    held = SimpleNamespace(
        images=[np.zeros((50, 4, 4, 1), np.uint8)] * clients,
        labels=[np.zeros(50, np.int64)] * clients,
        gather=gather,
    )
    sends_rows = getattr(config.client, "kind", "") == "model-difference"
    if not config.client_sums and config.client_data == "tasks":
        sends_rows = True
    return Rounds(
        config,
        net=Flat(3),
        held=held,
        gradients=Choice("zero", Zeros, "cpu"),
        measures=NoMeasures(),
        ledger=[],
        clients=Given(np.zeros((clients, 3))) if sends_rows else None,
        observer=observer,
    )


def test_every_method_with_noise_is_tried():
    """Correlated noise draws earlier rounds again, discrete noise has a stream a client,
    and SCAFFOLD two sums a client: these have tests of their own.
    """
    others = {"dp-agr-ftrl", "dp-agr-secagg", "dp-scaffold"}
    assert set(NOISY) == {run.method for run in RUNS.values() if run.private} - others


def line_names(drawn, mechanisms, by_step):
    """Return the streams that were drawn by the name that a ledger's line gives them: a
    line of several clients and steps has their words in place of numbers.
    """
    indices = {
        entry.sum.stream: entry._indices for entry in mechanisms if entry.sum.private
    }
    of_a_rule = next(iter(indices.values()))  # a rule's own release: its sum's
    numbered = {"round", "step"} if by_step else {"round"}
    by_name = {}
    for seed, purpose, *numbers in drawn:
        words = indices.get(purpose) or of_a_rule
        parts = [
            str(number) if word in numbered else word
            for word, number in zip(words, numbers, strict=True)
        ]
        name = "/".join([str(seed), purpose, *parts])
        by_name.setdefault(name, []).append(numbers)
    return by_name


@pytest.mark.parametrize(
    ("name", "wide"), [*((name, {}) for name in NOISY), *WIDE.items()]
)
def test_no_stream_of_noise_is_used_twice_and_the_ledger_names_each(
    name, wide, monkeypatch
):
    """Property 2, over 300 rounds, or 150 clients in one."""
    general = GENERAL.get(name, RUN)
    config = make_config({"method": name}, *NOISY[name], wide, general=general)
    # The threshold of noise alone grows without end, and the model with it.
    monkeypatch.setattr(Rounds, "_refuse_not_finite", lambda *_, **__: None)
    streams = watch_streams(monkeypatch)
    rounds = rounds_without_data(config)
    mechanisms = rounds.budget.mechanisms
    for index in range(config.participation.rounds):
        rounds.round(index)
    noise = set().union(*(entry.streams for entry in mechanisms))
    drawn = [stream for stream in streams if stream[1] in noise]
    assert len(drawn) == len(set(drawn)) >= (150 if wide else ROUNDS)
    ledger = rounds.ledger
    by_step = "poisson-lots" in str(ledger[0].sampler)
    by_name = line_names(drawn, mechanisms, by_step)
    assert sorted(by_name) == sorted(line.noise_stream for line in ledger)
    # As many releases stand behind each line as it says of clients and steps.
    for line in ledger:
        within_task = line.sampler["kind"].startswith("own-")
        clients = config.participation.cohort if within_task else 1
        thresholds = len(line.threshold) if isinstance(line.threshold, list) else 1
        releases = clients * thresholds * line.sampler.get("steps", 1)
        assert len(by_name[line.noise_stream]) == releases


@pytest.mark.parametrize(
    ("rule", "general", "stream"),
    [
        (QUANTILE, RUN, "count-noise"),
        (QUANTILE, LOTS, "count-noise"),
        (NORM_QUERY, LOTS, "norm-noise"),
    ],
)
def test_a_rules_own_release_draws_from_a_stream_of_its_own(rule, general, stream):
    """Else the first coordinate's noise could be read off the count and subtracted."""
    released = []

    def observer(line, left):
        deviation = np.ravel(line.noise_std)[0]
        released.append((line, float(left[0][1][0]) / deviation))

    config = make_config(rule, general=general)
    rounds = rounds_without_data(config, observer=observer)
    for index in range(3):
        rounds.round(index)
    streams = {line.noise_stream.split("/")[1] for line, _ in released}
    assert streams == {"noise", stream}
    for (_, noise), (_, second) in zip(released[::2], released[1::2], strict=True):
        assert noise != pytest.approx(second, rel=1e-3)


# What a round makes of its sums


@pytest.mark.parametrize("form", ["mean", "sum"])
def test_a_percentile_of_releases_follows_from_what_everyone_saw(form):
    """Property 9: C recomputed from the observed releases alone, for gradients of any
    size: the median of the last three rounds.
    """
    rule = {"kind": "percentile-of-releases", "form": form, "percentile": 50}
    config = make_config({"clipping": rule})
    rng = np.random.default_rng(4)
    for scale in (0.01, 1.0, 100.0):
        norms = []
        expected = 0.5
        for (line,), (mean,) in seen_of(config, scale * rng.normal(size=(48, 3))):
            assert line.threshold == pytest.approx(expected, rel=1e-12)
            factor = 1.0 if form == "mean" else line.denominator
            norms.append(factor * float(np.linalg.norm(mean)))
            if len(norms) >= 3:
                expected = sorted(norms[-3:])[1]


def test_the_optimiser_gets_the_mean_and_not_the_sum(monkeypatch):
    """Of a cohort of four; Adam's step would hide the difference from whoever looks at
    the model. Without noise it is the clients' 0.1, which is not clipped.
    """
    gradients = []
    step = Adam.step

    def watched(self, weights, gradient, *rest):
        gradients.append(gradient.clone())
        return step(self, weights, gradient, *rest)

    monkeypatch.setattr(Adam, "step", watched)
    released = []
    rounds = given_rounds(
        make_config(),
        np.full((48, 3), 0.1),
        observer=lambda line, left: released.append((line, *left)),
    )
    for index in range(4):
        rounds.round(index)
    assert len(gradients) == len(released) == 4
    for gradient, (line, (release, mean)) in zip(gradients, released, strict=True):
        assert line.denominator == 4.0 == release.total.count
        assert np.array_equal(gradient.numpy(), mean.astype(np.float32))
    remove_noise(monkeypatch)
    given_rounds(make_config(), np.full((48, 3), 0.1)).round(0)
    assert gradients[-1].tolist() == pytest.approx([0.1] * 3)


def test_sample_level_sums_are_divided_by_all_query_examples():
    """|D^q| L: six query examples of each of four clients."""
    rounds = rounds_without_data(make_config({"method": "dp-maml-sample"}))
    rounds.round(0)
    (line,) = [line for line in rounds.ledger if line.name == "query-gradient-sum"]
    assert line.denominator == rounds.server.denominator == 24.0


@pytest.mark.parametrize(("method", "sums"), [("dp-agr", 1), ("dp-agrlr", 3)])
def test_a_round_without_clients_has_its_lines_and_its_step(method, sums):
    """Property 8: under balls-and-bins some rounds are empty; neither ledger nor step
    shows which.
    """
    plan = {"participation": {"kind": "balls-and-bins", "cohort": 1, "rounds": 48}}
    config = make_config({"method": method, "clipping": {"kind": "constant"}}, plan)
    rounds = rounds_without_data(config)
    empty = sum(len(rounds.plan.cohort(index)) == 0 for index in range(48))
    assert 5 < empty < 40
    for index in range(48):
        before = rounds.theta.clone()
        row, served = rounds.round(index)
        assert served == 1 and row["clients"] == 1.0
        assert not torch.equal(rounds.theta, before)
    by_round = {}
    for line in rounds.ledger:
        values = line.name, line.noise_multiplier, line.threshold, line.denominator
        by_round.setdefault(line.round, []).append(values)
    assert len(by_round) == 48 and len(by_round[0]) == sums
    assert all(lines == by_round[0] for lines in by_round.values())


def test_contributions_that_are_not_finite_are_counted_anew_each_round():
    config = make_config()
    rows = np.full((48, 3), 0.1)
    cohort = config.participation.plan(clients=48, seed=0).cohort(1)
    rows[cohort[:2]] = math.nan, math.inf, 0.1
    rounds = given_rounds(config, rows)
    counts = []
    for index in range(3):
        rounds.round(index)
        counts.append(rounds.non_finite)
    assert counts == [0, 2, 0] and torch.isfinite(rounds.theta).all()
