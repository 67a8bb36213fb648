"""The book of a run's sums: streams of noise, thresholds, lines of the ledger, and what
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
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.clipping.rule import Constant
from dpfedbench.parts.noise.noise import Fixed
from dpfedbench.parts.optimizers.optimizer import Adam
from dpfedbench.parts.participation.cohorts import OnePass
from dpsum import randomness
from dpsum.mechanism import Mechanism
from dpsum.private_sum import PlainSum, PrivateSum
from dpsum.sums import Sum
from tests.dpfedbench.papers.test_refusals import RUNS

from .conftest import (
    DIFFERENCE,
    LOTS,
    RUN,
    Flat,
    Given,
    given_rounds,
    make_config,
    seen_of,
)

BUDGET = Budget(delta=1e-3, profile="holds")
SAMPLER = OnePass(cohort=4, rounds=12).plan(clients=48, seed=0).describe()
ENTER = {"sampler": SAMPLER, "denominator": 4.0, "dimension": 3}


def private_sum(name="first", **more):
    values = {"clipping": Constant(), "noise": Fixed(), "budget": BUDGET} | more
    return Sum(name=name, unit="client", observer="everyone", **values)


def test_two_private_sums_of_one_stream_are_refused():
    budget = dpsum.Budget()
    kept = functools.partial(
        Mechanism.of, budget=budget, ledger=[], seed=0, arithmetic=TORCH
    )
    kept(private_sum(), **ENTER)
    with pytest.raises(
        BenchError,
        match=(
            r"^two sums of this run draw their noise from the stream 'noise': name"
            r" anoth"
        ),
    ):
        kept(private_sum("second"), **ENTER)
    kept(private_sum("second", stream="other"), **ENTER)
    # Sums without noise draw nothing.
    kept(Sum(name="plain", unit="client", observer="everyone"), **ENTER)
    assert [entry.sum.name for entry in budget.mechanisms] == [
        "first",
        "second",
        "plain",
    ]


def test_a_threshold_that_nobody_finds_is_refused():
    kept = functools.partial(
        Mechanism.of, budget=dpsum.Budget(), ledger=[], seed=0, arithmetic=TORCH
    )
    with pytest.raises(
        BenchError, match=r"^clipping\.threshold is null: give a first threshold$"
    ):
        kept(private_sum(clipping=Constant(threshold=None)), **ENTER)
    entry = kept(
        private_sum(clipping=Constant(threshold=None)), **ENTER, first=lambda: 0.25
    )
    assert entry.open(0).sum.threshold == 0.25


def test_a_plain_sum_has_no_line_and_its_norms_are_told():
    budget, ledger = dpsum.Budget(), []
    kept = functools.partial(
        Mechanism.of, budget=budget, ledger=ledger, seed=0, arithmetic=TORCH
    )
    entry = kept(Sum(name="plain", unit="client", observer="everyone"), **ENTER)
    total = entry.open(0)
    total.add(torch.tensor([[3.0, 4.0, 0.0]]))
    assert (
        isinstance(total.sum, PlainSum)
        and total.norms == [5.0]
        and entry.end(total).tolist() == [3, 4, 0]
    )
    entry.write(0)
    assert ledger == [] and budget.budgeted == []


def test_a_private_sum_tells_no_norms():
    total = Mechanism.of(
        private_sum(),
        budget=dpsum.Budget(),
        ledger=[],
        seed=0,
        arithmetic=TORCH,
        **ENTER,
    ).open(0)
    total.add(torch.ones((2, 3)))
    with pytest.raises(AttributeError):
        _ = total.norms
    assert total.raw == []


# A run's streams of noise

ROUNDS = 300
MANY = {
    "clients": {"count": ROUNDS, "partition": "shared"},
    "participation": {"cohort": 1, "rounds": ROUNDS},
    "validation": {"every": 0},
}
MANY_LOTS = {
    "participation": {"rounds": ROUNDS},
    "client_update": {"inner_steps": 2},
    "validation": {"every": 0},
}
MANY_SUMS = {"participation": {"rounds": ROUNDS}, "validation": {"every": 0}}
NOISY = {
    "dp-agr": [MANY, {"clipping": {"kind": "private-quantile", "count_noise": 2.0}}],
    "dp-maml": [MANY],
    "dp-agrlr": [MANY, {"client_update": {"inner_steps": 2}}],
    "dp-maml-sample": [MANY],
    "dp-reptile": [MANY, {"client_update": {"inner_steps": 3}}],
    "local-reptile": [MANY],
    "dp-fedavg": [
        {
            "participation": {"kind": "poisson", "cohort": 2, "rounds": ROUNDS},
            "validation": {"every": 0},
        }
    ],
    "dp-fl": [MANY_LOTS],
    "adap-dp-fl": [
        MANY_LOTS,
        {"clipping": {"kind": "noised-mean-norm", "threshold": 1.0}},
    ],
    "dp-transfer": [
        {
            "participation": {"cohort": 8, "rounds": ROUNDS},
            "budget": {"profile": "holds"},
        }
    ],
    "dp-fnas": [MANY_SUMS],
    "dp-cells": [MANY_SUMS],
}
GENERAL = {
    **dict.fromkeys(("adap-dp-fl", "dp-fl", "dp-fnas", "dp-cells"), LOTS),
    "dp-fedavg": DIFFERENCE,
}


class Zeros:
    """In place of gradients: all of them are zero."""

    device = "cpu"

    @staticmethod
    def _found(count):
        return Measured(np.zeros(count), np.zeros(count), np.ones(count))

    def each(self, theta, x, y, out):
        out.zero_()
        return self._found(len(y))

    def add_each(self, theta, x, y, total, *, block=""):
        return self._found(len(y)), total.add(torch.zeros((len(y), total.dimension)))


def rounds_without_data(config, observer=None):
    """The rounds of a run over a model of three weights, whose gradients are all zero;
    the ledger is a list.
    """
    clients = config.clients.count
    held = SimpleNamespace(
        images=[np.zeros((50, 4, 4, 1), np.uint8)] * clients,
        labels=[np.zeros(50, np.int64)] * clients,
    )

    def gather(ids):
        def some(per_class):
            return np.zeros((len(ids), 3 * per_class, 4, 4, 1)), np.zeros(
                (len(ids), 3 * per_class), np.int64
            )

        (sx, sy), (qx, qy) = some(1), some(2)
        return SimpleNamespace(support_x=sx, support_y=sy, query_x=qx, query_y=qy)

    held.gather = gather
    given = None
    if getattr(config.client, "kind", "") == "model-difference" or (
        not config.own_sums() and config.client_data == "tasks"
    ):
        given = Given(np.zeros((clients, 3)))
    return Rounds(
        config,
        net=Flat(3),
        held=held,
        gradients=Choice("zero", Zeros, "cpu"),
        measures=NoMeasures(),
        ledger=[],
        clients=given,
        observer=observer,
    )


def test_every_method_with_noise_is_tried():
    """Those with tests of their own are not here.

    Correlated noise draws earlier rounds again, discrete noise has a stream a client,
    and SCAFFOLD two sums a client.
    """
    others = {"dp-agr-ftrl", "dp-agr-secagg", "dp-scaffold"}
    assert set(NOISY) == {run.method for run in RUNS.values() if run.private} - others


WITHIN = {"clients": {"count": 300}, "participation": {"cohort": 150, "rounds": 2}}
SILOS = {"clients": {"count": 80, "fragments": 80}, "participation": {"rounds": 2}}
WIDE = dict.fromkeys(
    ("dp-agrlr", "dp-maml-sample", "dp-reptile", "local-reptile"), WITHIN
)
WIDE |= dict.fromkeys(("dp-fl", "adap-dp-fl"), SILOS)
"""Many clients in a round, each with sums of its own."""


@pytest.mark.parametrize(
    ("name", "wide"), [*((name, {}) for name in NOISY), *WIDE.items()]
)
def test_no_stream_of_noise_is_used_twice_and_the_ledger_names_each(
    name, wide, monkeypatch
):
    """Property 2, over 300 rounds, or 150 clients in one. A line of several clients and
    steps has their words.
    """
    config = make_config(
        {"method": name}, *NOISY[name], wide, general=GENERAL.get(name, RUN)
    )
    drawn, named = [], randomness.stream
    # The threshold of noise alone grows without end, and the model with it, which
    # nobody looks at here.
    monkeypatch.setattr(Rounds, "_refuse_not_finite", lambda *_, **__: None)
    monkeypatch.setattr(
        randomness,
        "stream",
        lambda *given, kept=drawn: kept.append(given) or named(*given),
    )
    rounds = rounds_without_data(config)
    place = {
        entry.sum.stream: entry._indices
        for entry in rounds.budget.mechanisms
        if entry.sum.private
    }
    for index in range(config.participation.rounds):
        rounds.round(index)
    noise = set[str]().union(*(entry.streams for entry in rounds.budget.mechanisms))
    drawn = [given for given in drawn if given[1] in noise]
    assert len(drawn) == len(set(drawn)) >= (150 if wide else ROUNDS)
    lines = rounds.ledger
    found = {}
    for seed, purpose, *numbers in drawn:
        indices = place.get(purpose) or next(
            iter(place.values())
        )  # of a rule's own release: its sum's
        at = dict(zip(indices, numbers, strict=True))
        # What a line stands for: own sums of tasks are written once a round, those of
        # lots once a step.
        kept = {"round"} | (
            {"step"} if "poisson-lots" in str(lines[0].sampler) else set()
        )
        words = [str(at[word]) if word in kept else word for word in indices]
        found.setdefault("/".join([str(seed), purpose, *words]), []).append(numbers)
    assert set(found) == {line.noise_stream for line in lines} and len(
        {line.noise_stream for line in lines}
    ) == len(lines)
    # As many releases stand behind each line as it says of clients and steps.
    for line in lines:
        thresholds = (
            line.threshold if isinstance(line.threshold, list) else [line.threshold]
        )
        clients = (
            config.participation.cohort
            if line.sampler["kind"].startswith("own-")
            else 1
        )
        assert len(found[line.noise_stream]) == clients * len(
            thresholds
        ) * line.sampler.get("steps", 1)


@pytest.mark.parametrize(
    ("overlay", "general", "extra"),
    [
        (
            {"clipping": {"kind": "private-quantile", "count_noise": 2.0}},
            RUN,
            "count-noise",
        ),
        (
            {"clipping": {"kind": "noised-mean-norm", "threshold": 1.0}},
            LOTS,
            "norm-noise",
        ),
        (
            {"clipping": {"kind": "private-quantile", "count_noise": 2.0}},
            LOTS,
            "count-noise",
        ),
    ],
)
def test_a_rules_own_release_draws_from_a_stream_of_its_own(overlay, general, extra):
    """Else the first coordinate's noise could be read off the count and subtracted."""
    config, left = make_config(overlay, general=general), []
    rounds = rounds_without_data(
        config, observer=lambda line, values: left.append((line, values[0][1].copy()))
    )
    for index in range(3):
        rounds.round(index)
    lines = [line for line, _ in left]
    assert {line.noise_stream.split("/")[1] for line in lines} == {"noise", extra}
    for (line, mean), (second, value) in zip(left[::2], left[1::2], strict=True):
        first = [
            each[0] if isinstance(each, list) else each
            for each in (line.noise_std, second.noise_std)
        ]
        assert float(mean[0]) / first[0] != pytest.approx(
            float(value[0]) / first[1], rel=1e-3
        )


# What the book makes of a round


@pytest.mark.parametrize("form", ["mean", "sum"])
def test_a_percentile_of_releases_follows_from_what_everyone_saw(form):
    """Property 9: C recomputed from the observed releases alone, for gradients of any
    size; one window of 3 rounds.
    """
    rule = {
        "clipping": {"kind": "percentile-of-releases", "form": form, "percentile": 50}
    }
    rng = np.random.default_rng(4)
    for scale in (0.01, 1.0, 100.0):
        seen = seen_of(make_config(rule), scale * rng.normal(size=(48, 3)))
        norms, expected = [], 0.5
        for (line,), (mean,) in seen:
            assert line.threshold == pytest.approx(expected, rel=1e-12)
            norms.append(
                float(np.linalg.norm(mean))
                * (1.0 if form == "mean" else line.denominator)
            )
            if len(norms) >= 3:
                expected = sorted(norms[-3:])[1]  # the median of three


def test_the_optimiser_gets_the_mean_and_not_the_sum(monkeypatch):
    """Of a cohort of four; Adam's step would hide the difference from whoever looks at
    the model.
    """
    got, step, left = [], Adam.step, []
    monkeypatch.setattr(
        Adam,
        "step",
        lambda self, weights, gradient, *rest: (
            got.append(gradient.clone()),
            step(self, weights, gradient, *rest),
        ),
    )
    rounds = given_rounds(
        make_config(),
        np.full((48, 3), 0.1),
        observer=lambda line, values: left.append((line, values)),
    )
    for index in range(4):
        rounds.round(index)
    assert rounds.step.optimizer.kind == "adam" and len(got) == 4
    for gradient, (line, [(made, mean)]) in zip(got, left, strict=True):
        assert line.denominator == 4.0 == made.total.count
        assert np.array_equal(gradient.numpy(), mean.astype(np.float32))
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    given_rounds(make_config(), np.full((48, 3), 0.1)).round(0)
    assert got[-1].tolist() == pytest.approx(
        [0.1] * 3
    )  # of norm 0.17 each, so not clipped


def test_sample_level_sums_are_divided_by_all_query_examples(monkeypatch):
    """|D^q| L: six query examples of each of four clients."""
    rounds = rounds_without_data(make_config({"method": "dp-maml-sample"}))
    rounds.round(0)
    assert rounds.server.denominator == 24.0
    assert [
        line.denominator for line in rounds.ledger if line.name == "query-gradient-sum"
    ] == [24.0]


@pytest.mark.parametrize("method", ["dp-agr", "dp-agrlr"])
def test_a_round_without_clients_has_its_lines_and_its_step(method):
    """Property 8: under balls-and-bins some rounds are empty; what is written and taken
    does not tell which.
    """
    kind = {"participation": {"kind": "balls-and-bins", "cohort": 1, "rounds": 48}}
    rounds = rounds_without_data(
        make_config({"method": method}, kind, {"clipping": {"kind": "constant"}})
    )
    empty = [index for index in range(48) if not len(rounds.plan.cohort(index))]
    assert 5 < len(empty) < 40
    for index in range(48):
        before = rounds.theta.clone()
        row, served = rounds.round(index)
        assert (
            served == 1
            and row["clients"] == 1.0
            and not torch.equal(rounds.theta, before)
        )
    by_round = {}
    for line in rounds.ledger:
        by_round.setdefault(line.round, []).append(
            (line.name, line.noise_multiplier, line.threshold, line.denominator)
        )
    assert len(by_round) == 48 and all(
        lines == by_round[0] for lines in by_round.values()
    )
    assert len(by_round[0]) == (3 if method == "dp-agrlr" else 1)


def test_contributions_that_are_not_finite_are_counted_anew_each_round():
    rows = np.full((48, 3), 0.1)
    config = make_config()
    bad = config.participation.plan(clients=48, seed=0).cohort(1)[:2]
    rows[bad] = math.nan, math.inf, 0.1
    rounds, found = given_rounds(config, rows), []
    for index in range(3):
        rounds.round(index)
        found.append(rounds.non_finite)
    assert found == [0, 2, 0] and torch.isfinite(rounds.theta).all()


def test_the_state_of_a_book_goes_through_a_restart():
    """Thresholds and what was spent; the noise of the rounds to come is the same."""
    config = make_config({"clipping": {"kind": "private-quantile", "count_noise": 2.0}})
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(48, 3))
    whole, first, second = (given_rounds(config, rows) for _ in range(3))
    for index in range(12):
        whole.round(index)
    for index in range(5):
        first.round(index)
    second.restore(first.state())
    for index in range(5, 12):
        second.round(index)
    assert torch.equal(whole.theta, second.theta)
    assert whole.ledger == first.ledger + second.ledger
