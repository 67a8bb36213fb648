"""Two private sums of one unit: one budget, one history and one account, of the
composition of both.

The methods are written here as a reader would in a file. Expected values are the
Gaussian mechanism's trade-off (Balle and Wang 2018, Theorem 8), solved here by itself,
with mu^2 = z_1^-2 + z_2^-2, or dp-accounting's.
"""

import dataclasses
import functools
import json
import math
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

import dpsum
from dpfedbench.errors import BenchError
from dpfedbench.papers import METHODS
from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.papers.dp_maml import DpMamlSample
from dpfedbench.papers.shared import PartyMethod
from dpfedbench.parts.budget import Budget
from dpfedbench.parts.client_updates.client_update import Clients
from dpfedbench.parts.client_updates.maml import SUPPORT, Maml
from dpfedbench.parts.client_updates.summed_steps import SummedSteps
from dpfedbench.parts.clipping.rule import Constant
from dpfedbench.parts.noise.correlated import Correlated
from dpfedbench.parts.noise.noise import Decaying, Fixed
from dpfedbench.parts.participation.cohorts import OnePass
from dpfedbench.settings.part import setting
from dpsum.accounting.account import account
from dpsum.ledger import read_ledger
from dpsum.mechanism import Mechanism
from dpsum.sums import Sum, together
from tests.dpsum.accounting.test_own_records import release

from .conftest import LOTS, accounted, given_rounds, make_config, rounds_of, train
from .test_book import rounds_without_data

DELTA = 1e-6


def gaussian(z, delta=DELTA):
    """Epsilon of one Gaussian release, from the two error rates of the best test at
    each threshold.
    """

    def excess(epsilon):
        return (
            norm.cdf(0.5 / z - epsilon * z)
            - math.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z)
            - delta
        )

    return brentq(excess, 0.0, 60.0, xtol=1e-12)


def joint(*multipliers):
    return sum(z**-2 for z in multipliers) ** -0.5


class _Asked(Clients):
    """Clients of whom a second sum is taken before they send."""

    def __init__(self, setup):
        self._dimension, plan = setup.net.dimension, setup.plan
        self._entry = setup.enter(
            setup.own[0],
            sampler=plan.describe(),
            denominator=plan.denominator,
            dimension=2,
            indices=("round",),
        )

    def contributions(self, theta, cohort, index):
        total = self._entry.open(index)
        total.add(torch.ones((len(cohort), 2)))
        self._entry.end(total)
        self._entry.write(index)
        yield (
            torch.full((len(cohort), self._dimension), 0.1),
            np.zeros(len(cohort)),
            np.zeros(len(cohort)),
        )


class Asked(Maml):
    kind: Literal["asked"] = "asked"

    def samplers(self, run, records):
        return {
            "second-sum": (
                run.participation.plan(
                    clients=run.clients.count, seed=run.seed
                ).describe()
            )
        }

    def clients(self, setup):
        return _Asked(setup)


class TwoSums(DpAgr):
    """DP-AGR whose server takes one more sum over the same cohort."""

    name: ClassVar[str] = "two-sums"
    title: ClassVar[str] = "Two sums"
    client_update: Asked = Asked()
    second_noise: Fixed = setting(Fixed(multiplier=2.0), doc="of the second sum")

    def own_sums(self):
        second = Sum(
            name="second-sum",
            unit="client",
            observer="everyone",
            clipping=Constant(threshold=1.0),
            noise=self.second_noise,
            budget=self.budget,
            stream="second-noise",
        )
        return (second,)


class TwoPhases(SummedSteps):
    """Two sums over the same lot of each party's records, and a step after each."""

    kind: Literal["two-phases"] = "two-phases"

    @property
    def steps(self):
        return {self.sends: self.weights, "second-sum": self.weights}


class TwoOfLots(PartyMethod):
    name: ClassVar[str] = "two-of-lots"
    title: ClassVar[str] = "Two sums of a lot"
    client_update: TwoPhases = TwoPhases()
    clipping: Constant = Constant(threshold=1.0)
    noise: Fixed | Decaying = Fixed()
    second_noise: Fixed | Decaying = setting(
        Fixed(multiplier=3.0), doc="of the second sum"
    )
    budget: Budget = Budget(profile="holds")

    def own_sums(self):
        return tuple(
            Sum(
                name=name,
                unit="record",
                observer="server",
                clipping=self.clipping,
                noise=noise,
                budget=self.budget,
                stream=name,
            )
            for name, noise in (
                (self.client_update.sends, self.noise),
                ("second-sum", self.second_noise),
            )
        )


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    for cls in (TwoSums, TwoOfLots):
        monkeypatch.setitem(METHODS, cls.name, cls)


def two_sums(z, other, budget, **more):
    values = {
        key: value
        for key, value in make_config().plain().items()
        if key != "client_update"
    }
    values |= {
        "clipping": {"kind": "constant", "threshold": 0.5},
        "validation": {"every": 0},
    }
    noise = {"noise": {"multiplier": z}, "second_noise": {"multiplier": other}}
    return TwoSums.read(
        values
        | noise
        | {
            "method": "two-sums",
            "budget": {"delta": DELTA, "profile": "holds"} | budget,
        }
        | more
    )


def test_history_and_account_are_of_both_sums(federation, tmp_path):
    """z = 1 and z = 2 at 1e-6: 5.55, where the worse of the two by itself has 4.89."""
    config = two_sums(1.0, 2.0, {"epsilon": 6.0})
    train(config, federation, tmp_path)
    wanted = gaussian(joint(1.0, 2.0))
    assert wanted == pytest.approx(5.5509, abs=1e-4) and gaussian(1.0) == pytest.approx(
        4.887, abs=1e-3
    )
    history = pd.read_csv(tmp_path / "history.csv")["epsilon_holds"]
    holds = accounted(config, tmp_path)["profiles"]["holds"]
    assert history.tolist() == pytest.approx([wanted] * 12, rel=1e-9)
    assert (
        holds["epsilon_high"] == holds["epsilon_low"] == pytest.approx(wanted, rel=1e-9)
    )


def test_a_budget_that_the_two_exceed_together_is_spent_by_the_first_round(
    federation, tmp_path
):
    """5 is enough for each by itself."""
    with pytest.raises(
        BenchError, match=r"the budget of epsilon 5\.0 is spent by the first round"
    ):
        train(two_sums(1.0, 2.0, {"epsilon": 5.0}), federation, tmp_path)


@pytest.mark.parametrize(("z", "other"), [(None, 2.0), (2.0, None), (None, None)])
def test_noise_that_follows_from_a_budget_leaves_room_for_the_other_sum(
    federation, tmp_path, z, other
):
    """Alone z would be 0.9801, which has 5.65 with the other; the ledger has to agree
    with what is calibrated anew.
    """
    assert gaussian(joint(0.9801, 2.0)) == pytest.approx(5.6547, abs=1e-4)
    config = two_sums(z, other, {"epsilon": 5.0})
    train(config, federation, tmp_path)
    found = accounted(config, tmp_path)
    ledger = [
        json.loads(line)
        for line in (tmp_path / "ledger.jsonl").read_text().splitlines()
    ]
    used = {line["name"]: line["noise_multiplier"] for line in ledger}
    assert len(ledger) == 24 and found["rounds"] == 12
    assert (z or used["query-gradient-sum"], other or used["second-sum"]) == tuple(
        used[n] for n in ("query-gradient-sum", "second-sum")
    )
    spent = gaussian(joint(*used.values()))
    assert 5.0 * (1 - 1e-3) <= spent <= 5.0
    assert found["profiles"]["holds"]["epsilon_high"] == pytest.approx(spent, rel=1e-9)
    if z is other is None:
        assert used["second-sum"] == used["query-gradient-sum"]


def test_a_sum_that_leaves_nothing_is_one_line():
    with pytest.raises(
        BenchError,
        match=(
            r"together one of noise multiplier 0\.9801, and those that are given have"
            r" 0\.5"
        ),
    ):
        given_rounds(two_sums(None, 0.5, {"epsilon": 5.0}), np.zeros((48, 3)))


def test_sampled_rounds_stop_before_both_exceed_the_budget(federation, tmp_path):
    """Against dp-accounting's composition of one Gaussian of the joint multiplier."""
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )
    from dp_accounting.pld import PLDAccountant

    def spent(rounds):
        accountant = PLDAccountant(
            NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4
        )
        event = PoissonSampledDpEvent(4 / 48, GaussianDpEvent(joint(1.0, 1.5)))
        return accountant.compose(SelfComposedDpEvent(event, rounds)).get_epsilon(1e-3)

    plan = {"participation": {"kind": "poisson", "cohort": 4, "rounds": 12}}
    config = two_sums(1.0, 1.5, {"epsilon": 1.5, "delta": 1e-3}, **plan)
    train(config, federation, tmp_path)
    done = json.loads((tmp_path / "training.json").read_text())["rounds_run"]
    last = pd.read_csv(tmp_path / "history.csv")["epsilon_holds"].iloc[-1]
    assert 0 < done < 12 and spent(done) <= 1.5 + 1e-3 < spent(done + 1)
    assert last == pytest.approx(spent(done), abs=2e-3)
    assert accounted(config, tmp_path)["profiles"]["holds"][
        "epsilon_high"
    ] == pytest.approx(last, rel=1e-9)


# Lots, and noise that moves


def of_lots(**parts):
    values = {
        key: value
        for key, value in (
            make_config({"method": "dp-cells"}, general=LOTS).plain().items()
        )
        if key not in ("client_update", "clipping", "noise", "budget", "model")
    }
    budget = {"epsilon": 2.0, "delta": 1e-4, "profile": "holds"}
    model = {"kind": "cnn", "pixel_mean": 0.3, "pixel_deviation": 0.5}
    return TwoOfLots.read(
        values | {"method": "two-of-lots", "model": model, "budget": budget} | parts
    )


def moment(z, order, rate=8 / 100):
    """The Renyi divergence of a sampled Gaussian at a whole order (Mironov et al. 2019,
    Section 3.3).
    """
    terms = (
        math.comb(order, k)
        * (1 - rate) ** (order - k)
        * rate**k
        * math.exp(k * (k - 1) / (2 * z * z))
        for k in range(order + 1)
    )
    return math.log(math.fsum(terms)) / (order - 1)


def test_noise_that_moves_is_kept_together_with_a_sum_beside_it(silos, tmp_path):
    """One lot in the filter is both sums' at the one order that is best for the first
    lot.
    """
    decay = {"noise": {"kind": "decaying", "multiplier": 4.0, "decay": 0.8, "falls": 1}}
    config = of_lots(
        **decay, participation={"kind": "poisson-lots", "cohort": 8, "rounds": 200}
    )
    train(config, silos, tmp_path)
    ledger = [
        json.loads(line)
        for line in (tmp_path / "ledger.jsonl").read_text().splitlines()
    ]
    rounds = [
        (ledger[2 * t]["noise_multiplier"], ledger[2 * t + 1]["noise_multiplier"])
        for t in range(len(ledger) // 2)
    ]
    assert (
        len({z for z, _ in rounds}) > 1
        and {other for _, other in rounds} == {3.0}
        and len(rounds) < 200
    )

    def budget(
        a,
    ):  # Canonne, Kamath and Steinke 2020, Proposition 12, solved for the divergence
        return (
            2.0 + math.log(1e-4) / (a - 1) - math.log1p(-1 / a) + math.log(a) / (a - 1)
        )

    order = max(range(2, 65), key=lambda a: budget(a) / moment(joint(*rounds[0]), a))
    spent = sum(moment(joint(*each), order) for each in rounds)
    assert (
        spent <= budget(order) < spent + moment(joint(rounds[-1][0] * 0.8, 3.0), order)
    )
    holds = accounted(config, tmp_path)["profiles"]["holds"]
    assert holds["status"] == "proved" and holds["epsilon_high"] == pytest.approx(
        2.0, abs=1e-9
    )


def test_two_lots_of_the_same_records_are_not_taken_for_one(
    silos, tmp_path, monkeypatch
):
    """With two chances of q to be in a release that tells all, delta is 2 q - q^2; by
    one lot it would be q.
    """

    def lots(self, run, sum_, *, clients, records):
        return run.participation.lots(
            clients=clients, seed=run.seed, steps=1, records=records, purpose=sum_.name
        )

    monkeypatch.setattr(TwoPhases, "lots", lots)
    with pytest.raises(
        BenchError,
        match=(
            r"^gradient-sum and second-sum read the same records but draw lots of"
            r" their own"
        ),
    ):
        rounds_of(of_lots(), silos, tmp_path)


# Plans that no analysis composes


def private(name, **more):
    values = {
        "unit": "client",
        "observer": "everyone",
        "stream": name,
        "clipping": Constant(),
        "noise": Fixed(),
    }
    return Sum(
        name=name, **values | {"budget": Budget(delta=1e-3, profile="holds")} | more
    )


OWN = {
    "unit": "record",
    "within_task": DpMamlSample.model_fields["within_task"].default,
    "budget": None,
}


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        ({}, {"unit": "record"}, "a .of clients. and b .of records. have two budgets"),
        (
            {},
            {"budget": Budget(delta=1e-4, profile="holds")},
            "a .of clients. and b .of clients. have two budgets",
        ),
        (
            {},
            {"noise": Correlated()},
            (
                "a and b read the same clients but have gaussian and"
                " correlated-gaussian noise"
            ),
        ),
        (
            {},
            {"adjacency": "replace-one"},
            "a and b read the same clients but are for zero-out and replace-one adj",
        ),
        (
            {"noise": Decaying()},
            {"noise": Decaying()},
            "a and b read the same clients but the cost of both is known",
        ),
        (
            {"unit": "record"},
            {"unit": "record", "part": "half"},
            r"b is of a part of the records and others of all",
        ),
        (
            {"unit": "record", "part": "half"},
            OWN | {"part": "half"},
            r"a and b read the same records \(the half\) but",
        ),
        (
            {},
            OWN | {"observer": "everyone"},
            "b protects records from everyone and a clients from everyone: no ",
        ),
        (
            {"observer": "server"},
            OWN | {"observer": "server"},
            "b protects records from server and a clients from s",
        ),
    ],
)
def test_sums_that_no_analysis_composes_are_one_line(first, second, line):
    with pytest.raises(BenchError, match=line) as caught:
        together([private("a", **first), private("b", **second)])
    assert "\n" not in str(caught.value)


def test_only_disjoint_parts_are_apart():
    """By part; a client's own records against the server are another guarantee than
    clients against everyone.
    """

    def names(*sums):
        return [[one.name for one in group.sums] for group in together(sums)]

    halves = [private(name, unit="record", part=name) for name in ("left", "right")]
    assert names(*halves) == [["left"], ["right"]]
    assert names(
        private("a"), private("b"), Sum(name="c", unit="client", observer="everyone")
    ) == [["a", "b"]]
    assert names(private("a"), private("b", observer="server")) == [["a", "b"]]
    assert names(private("a"), private("b", **OWN | {"observer": "server"})) == [
        ["a"],
        ["b"],
    ]
    assert names(private("a"), private("b", noise=Decaying())) == [["b", "a"]]


def test_sums_of_two_samplers_are_refused_before_the_first_round():
    budget, plan = (
        dpsum.Budget(),
        OnePass(cohort=4, rounds=12).plan(clients=48, seed=0).describe(),
    )
    enter = functools.partial(Mechanism.of, budget=budget, ledger=[], seed=0)
    for name, rate in (("a", 4 / 48), ("b", 1 / 48)):
        enter(
            private(name), sampler=plan | {"rate": rate}, denominator=4.0, dimension=3
        )
    with pytest.raises(
        BenchError,
        match=(
            r"^a and b read the same clients but are not sampled alike: no analysis"
            r" compos"
        ),
    ):
        budget.allows(1)


def test_a_sum_for_the_server_alone_counts_against_the_server(federation, tmp_path):
    """It sees both, and everyone else no more than it."""
    config = two_sums(1.0, 2.0, {})
    train(config, federation, tmp_path)
    lines = [
        (
            dataclasses.replace(line, observer="server")
            if line.name == "second-sum"
            else line
        )
        for line in read_ledger(tmp_path / "ledger.jsonl")
    ]
    holds = account(lines, delta=DELTA, claims={}).profiles["holds"]
    assert holds.observer == "server" and holds.epsilon_high == pytest.approx(
        gaussian(joint(1.0, 2.0)), rel=1e-9
    )


# Sample-level DP-MAML: support and query examples


def sample(*overlays):
    return make_config(
        {"method": "dp-maml-sample", "validation": {"every": 0}}, *overlays
    )


NOISE = {
    "within_task": {"multiplier": 1.2, "delta": 1e-2},
    "noise": {"multiplier": 2.3},
}


def test_one_delta_for_all_that_is_compared(federation, tmp_path):
    """A support example has 3.976 at 1e-6, and 1.816 at 1e-2; a query example 1.934 at
    1e-6.
    """
    wanted = gaussian(1.2)
    assert wanted == pytest.approx(3.9757, abs=1e-4) and gaussian(2.3) == pytest.approx(
        1.9340, abs=1e-4
    )
    config = sample(NOISE, {"budget": {"delta": DELTA}})
    assert config.own_delta == config.delta == DELTA
    train(config, federation, tmp_path)
    found = accounted(config, tmp_path)
    for name in ("holds", "as_claimed"):
        assert found["profiles"][name]["delta"] == DELTA
        assert found["profiles"][name]["epsilon_high"] >= wanted * (1 - 1e-9)
    assert found["profiles"]["holds"]["epsilon_high"] == pytest.approx(wanted, rel=1e-9)
    history = pd.read_csv(tmp_path / "history.csv")
    assert (
        history["epsilon_holds"].iloc[-1] == found["profiles"]["holds"]["epsilon_high"]
    )
    assert (
        history["epsilon_claimed"].iloc[-1]
        == found["profiles"]["as_claimed"]["epsilon_high"]
    )


def test_a_budget_is_for_support_examples_too():
    """3 is enough for the query examples, 4 for both."""
    with pytest.raises(
        BenchError,
        match=(
            r"^support-gradient-sum costs a record epsilon 3\.976 at budget\.delta"
            r" 1e-06, "
        ),
    ):
        rounds_without_data(sample(NOISE, {"budget": {"delta": DELTA, "epsilon": 3.0}}))
    assert rounds_without_data(
        sample(NOISE, {"budget": {"delta": DELTA, "epsilon": 4.0}})
    ).budget.allows(12)


def test_own_releases_that_everyone_sees_tell_secret_rounds(federation, tmp_path):
    """By balls-and-bins the server's sum would have 2.652 at z = 1, and 4.887 where
    rounds are known.
    """
    kind = "balls-and-bins"
    with pytest.raises(
        BenchError,
        match=(
            rf"^each client's {SUPPORT} is seen by everyone, which tells the rounds"
            rf" that {kind}"
        ),
    ):
        sample({"participation": {"kind": kind}})
    # A client's examples against the server, and clients against everyone, who does not
    # see the former.
    make_config({"method": "dp-agrlr", "participation": {"kind": kind}})
    # And from the ledger alone.
    config = sample()
    train(config, federation, tmp_path)
    lines = [
        (
            line
            if line.name == SUPPORT
            else dataclasses.replace(line, sampler=line.sampler | {"kind": kind})
        )
        for line in read_ledger(tmp_path / "ledger.jsonl")
    ]
    with pytest.raises(
        BenchError, match=f"is seen by everyone, which tells the rounds that {kind}"
    ):
        account(lines, delta=1e-5, claims={})


def test_own_sums_over_the_same_examples_are_not_taken_for_disjoint():
    """Two names that read all of a client's examples: the worse of them says nothing of
    both.
    """
    twice = [release("task-gradient-sum", 1.0), release("another-sum", 1.0)]
    with pytest.raises(
        BenchError,
        match=(
            r"^task-gradient-sum and another-sum read the same records but are not"
            r" sampled"
        ),
    ):
        account(twice, delta=1e-5, claims={})
    apart = [dataclasses.replace(line, part=line.name) for line in twice]
    assert account(apart, delta=1e-5, claims={}).profiles[
        "holds"
    ].epsilon_high == pytest.approx(gaussian(1.0, 1e-5))
