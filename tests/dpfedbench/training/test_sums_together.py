"""Two private sums of one unit have one budget, one history and one account.

Expected values are the Gaussian mechanism's trade-off (Balle and Wang 2018, Theorem 8),
solved here, with mu^2 = z_1^-2 + z_2^-2, or dp-accounting's.
"""

import dataclasses
import functools
import math
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from scipy.stats import norm

import dpsum
from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.papers import METHODS
from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.papers.dp_maml import DpMamlSample
from dpfedbench.papers.shared import PartyMethod
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.training.client_updates.client_update import Clients
from dpfedbench.training.client_updates.maml import SUPPORT, Maml
from dpfedbench.training.client_updates.summed_steps import SummedSteps
from dpsum.accounting.account import account
from dpsum.clipping import Constant
from dpsum.correlated_noise import Factorised
from dpsum.noise import Decaying, Gaussian
from dpsum.participation import OnePass
from dpsum.sums import SumSpec, composition_groups
from tests.dpsum.accounting.test_within_task import release

from .conftest import (
    LOTS,
    accounted,
    history_in,
    ledger_in,
    make_config,
    proven,
    rounds_of,
    rounds_without_data,
    train,
    training_in,
)

DELTA = 1e-6


def gaussian(z, delta=DELTA):
    """Return epsilon of one Gaussian release, by its trade-off curve."""

    def excess(epsilon):
        first = norm.cdf(0.5 / z - epsilon * z)
        second = norm.cdf(-0.5 / z - epsilon * z)
        return first - math.exp(epsilon) * second - delta

    return brentq(excess, 0.0, 60.0, xtol=1e-12)


def joint(*multipliers):
    return sum(z**-2 for z in multipliers) ** -0.5


# A method with a second sum over the cohort, and one with a second sum over each lot


class _ClientsWithSecondSum(Clients):
    """Clients whose values enter a second sum before they send their message."""

    def __init__(self, setup):
        self._dimension = setup.net.dimension
        self._mechanism = setup.create_mechanism(
            setup.client_sums[0],
            participation=setup.plan,
            dimension=2,
        )

    def contributions(self, theta, cohort, index):
        total = self._mechanism.begin_round(index)
        total.add(torch.ones((len(cohort), 2)))
        self._mechanism.finish(total)
        self._mechanism.write(index)
        zeros = np.zeros(len(cohort))
        yield torch.full((len(cohort), self._dimension), 0.1), zeros, zeros


class WithSecondSum(Maml):
    kind: Literal["with-second-sum"] = "with-second-sum"

    def samplers(self, run, records):
        plan = run.participation.plan(clients=run.clients.count, seed=run.seed)
        return {"second-sum": plan.describe()}

    def clients(self, setup):
        return _ClientsWithSecondSum(setup)


class TwoSums(DpAgr):
    """DP-AGR whose server takes one more sum over the same cohort."""

    name: ClassVar[str] = "two-sums"
    title: ClassVar[str] = "Two sums"
    client_update: WithSecondSum = WithSecondSum()
    second_noise: Gaussian = setting(Gaussian(multiplier=2.0), doc="of the second sum")

    def sums(self):
        second = SumSpec(
            name="second-sum",
            unit="client",
            taken_by="client",
            observer="everyone",
            clipping=Constant(threshold=1.0),
            noise=self.second_noise,
            budget=self.budget,
            stream="second-noise",
        )
        return [second, *super().sums()]


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
    noise: Gaussian | Decaying = Gaussian()
    second_noise: Gaussian | Decaying = setting(
        Gaussian(multiplier=3.0), doc="of the second sum"
    )
    budget: BudgetSettings = BudgetSettings(profile="proven")

    def party_sums(self):
        noises = {self.client_update.sends: self.noise, "second-sum": self.second_noise}
        return [
            SumSpec(
                name=name,
                unit="record",
                taken_by="client",
                observer="server",
                clipping=self.clipping,
                noise=noise,
                budget=self.budget,
                stream=name,
            )
            for name, noise in noises.items()
        ]


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    for cls in (TwoSums, TwoOfLots):
        monkeypatch.setitem(METHODS, cls.name, cls)


def two_sums_config(z, second_z, budget, **sections):
    values = make_config().plain()
    del values["client_update"]
    values |= {
        "method": "two-sums",
        "clipping": {"kind": "constant", "threshold": 0.5},
        "validation": {"every": 0},
        "noise": {"multiplier": z},
        "second_noise": {"multiplier": second_z},
        "budget": {"delta": DELTA, "profile": "proven"} | budget,
    }
    return TwoSums.read(values | sections)


def two_of_lots_config(**parts):
    values = make_config({"method": "dp-cells"}, general=LOTS).plain()
    for key in ("client_update", "clipping", "noise"):
        del values[key]
    values |= {
        "method": "two-of-lots",
        "model": {"kind": "cnn", "pixel_mean": 0.3, "pixel_deviation": 0.5},
        "budget": {"epsilon": 2.0, "delta": 1e-4, "profile": "proven"},
    }
    return TwoOfLots.read(values | parts)


def test_two_sums_have_one_history_and_account(federation, tmp_path):
    """z = 1 and z = 2 at 1e-6: 5.55, where the sum of z = 1 alone has 4.89."""
    config = two_sums_config(1.0, 2.0, {"epsilon": 6.0})
    train(config, federation, tmp_path)
    expected = gaussian(joint(1.0, 2.0))
    history = history_in(tmp_path)["epsilon_proven"]
    assert history.tolist() == pytest.approx([expected] * 12, rel=1e-9)
    proof = proven(config, tmp_path)
    assert proof["epsilon_low"] == proof["epsilon_high"]
    assert proof["epsilon_high"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("z", "second_z", "message"),
    [
        (1.0, 2.0, r"the budget of epsilon 5\.0 is spent by the first round"),
        (None, 0.5, r"a joint noise multiplier of 0\.9801 for all sums"),
    ],
)
def test_two_sums_that_exceed_a_budget_are_refused(
    federation, tmp_path, z, second_z, message
):
    """A budget of 5 is enough for z = 1 and for z = 2 alone. z = 0.5 leaves nothing for
    the other sum.
    """
    with pytest.raises(BenchError, match=message):
        train(two_sums_config(z, second_z, {"epsilon": 5.0}), federation, tmp_path)


@pytest.mark.parametrize(
    ("z", "second_z"),
    [
        (None, 2.0),
        (2.0, None),
        (None, None),
    ],
)
def test_two_sums_with_calibrated_noise_meet_the_budget(
    federation, tmp_path, z, second_z
):
    """Alone z would be 0.9801, which together with the other sum has 5.65."""
    config = two_sums_config(z, second_z, {"epsilon": 5.0})
    train(config, federation, tmp_path)
    ledger = ledger_in(tmp_path)
    assert len(ledger) == 24
    multipliers = {line.name: line.noise_multiplier for line in ledger}
    first = multipliers["query-gradient-sum"]
    second = multipliers["second-sum"]
    assert z in (None, first)
    assert second_z in (None, second)
    if z is second_z is None:
        assert first == second
    spent = gaussian(joint(first, second))
    assert 5.0 * (1 - 1e-3) <= spent <= 5.0
    assert proven(config, tmp_path)["epsilon_high"] == pytest.approx(spent, rel=1e-9)


def test_two_sums_of_poisson_rounds_stop_before_they_exceed_the_budget(
    federation, tmp_path
):
    """Reference: dp_accounting's composition of one Gaussian of the joint multiplier."""

    def spent(rounds):
        accountant = PLDAccountant(
            NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4
        )
        event = PoissonSampledDpEvent(4 / 48, GaussianDpEvent(joint(1.0, 1.5)))
        return accountant.compose(SelfComposedDpEvent(event, rounds)).get_epsilon(1e-3)

    plan = {"kind": "poisson", "cohort": 4, "rounds": 12}
    budget = {"epsilon": 1.5, "delta": 1e-3}
    config = two_sums_config(1.0, 1.5, budget, participation=plan)
    train(config, federation, tmp_path)
    count = training_in(tmp_path)["rounds_run"]
    last = history_in(tmp_path)["epsilon_proven"].iloc[-1]
    assert 0 < count < 12
    assert spent(count) <= 1.5 + 1e-3 < spent(count + 1)
    assert last == pytest.approx(spent(count), abs=2e-3)
    assert proven(config, tmp_path)["epsilon_high"] == pytest.approx(last, rel=1e-9)


def moment(z, order, rate=8 / 100):
    """Return the Renyi divergence of a sampled Gaussian at a whole order (Mironov et
    al. 2019, Section 3.3).
    """
    terms = (
        math.comb(order, k)
        * (1 - rate) ** (order - k)
        * rate**k
        * math.exp(k * (k - 1) / (2 * z * z))
        for k in range(order + 1)
    )
    return math.log(math.fsum(terms)) / (order - 1)


def divergence_of(epsilon, delta, order):
    """Solve Canonne, Kamath and Steinke 2020, Proposition 12, for the divergence."""
    logarithms = (math.log(delta) + math.log(order)) / (order - 1)
    return epsilon + logarithms - math.log1p(-1 / order)


def test_decaying_noise_shares_a_filter_with_a_second_sum(silos, tmp_path):
    """A lot in the filter has both sums, at the order that is best for the first lot."""
    decay = {
        "kind": "decaying",
        "multiplier": 4.0,
        "decay": 0.8,
        "falls": 1,
    }
    plan = {"kind": "poisson-lots", "cohort": 8, "rounds": 200}
    config = two_of_lots_config(noise=decay, participation=plan)
    train(config, silos, tmp_path)
    multipliers = [line.noise_multiplier for line in ledger_in(tmp_path)]
    rounds = list(zip(multipliers[::2], multipliers[1::2], strict=True))
    assert len(set(multipliers[::2])) > 1
    assert set(multipliers[1::2]) == {3.0}
    assert len(rounds) < 200

    def cost(pair, order):
        return moment(joint(*pair), order)

    order = max(
        range(2, 65),
        key=lambda order: divergence_of(2.0, 1e-4, order) / cost(rounds[0], order),
    )
    limit = divergence_of(2.0, 1e-4, order)
    spent = sum(cost(pair, order) for pair in rounds)
    following = cost((rounds[-1][0] * 0.8, 3.0), order)
    assert spent <= limit < spent + following
    proof = proven(config, tmp_path)
    assert proof["status"] == "proved"
    assert proof["epsilon_high"] == pytest.approx(2.0, abs=1e-9)


def test_two_sums_over_separate_lots_of_the_same_records_are_refused(
    silos, tmp_path, monkeypatch
):
    """A record is in one of two releases that reveal it with probability 2 q - q^2,
    which is delta. With one lot it would be q.
    """

    def lots(self, run, sum_, *, clients, records):
        return run.participation.lots(
            clients=clients, seed=run.seed, steps=1, records=records, purpose=sum_.name
        )

    monkeypatch.setattr(TwoPhases, "lots", lots)
    with pytest.raises(
        BenchError, match="read the same records but draw their own lots"
    ):
        rounds_of(two_of_lots_config(), silos, tmp_path)


# Composition groups


def private_sum(name, **fields):
    values = {
        "unit": "client",
        "observer": "everyone",
        "stream": name,
        "clipping": Constant(),
        "noise": Gaussian(),
        "budget": BudgetSettings(delta=1e-3, profile="proven"),
    }
    return SumSpec(name=name, **values | fields)


WITHIN = {
    "unit": "record",
    "within_task": DpMamlSample.model_fields["within_task"].default,
    "budget": None,
}
HALF = {"unit": "record", "part": "half"}
SERVER = {"observer": "server"}
NOT_COMPOSED = [
    ({}, {"unit": "record"}, "a .of clients. and b .of records. have two budgets"),
    ({}, {"budget": BudgetSettings(delta=1e-4, profile="proven")}, "have two budgets"),
    ({}, {"noise": Factorised()}, "but have gaussian and correlated-gaussian noise"),
    ({}, {"adjacency": "replace-one"}, "but are for zero-out and replace-one adj"),
    ({"noise": Decaying()}, {"noise": Decaying()}, "but their costs are both known"),
    (
        {"unit": "record"},
        HALF,
        "b reads a subset of the records and other sums read all",
    ),
    (HALF, WITHIN | {"part": "half"}, r"read the same records \(the half\) but"),
    ({}, WITHIN | {"observer": "everyone"}, "from everyone and a clients from every"),
    (SERVER, WITHIN | SERVER, "records from server and a clients from s"),
]


@pytest.mark.parametrize(("first", "second", "message"), NOT_COMPOSED)
def test_composition_groups_refuse_sums_that_no_analysis_composes(
    first, second, message
):
    with pytest.raises(BenchError, match=message):
        composition_groups([private_sum("a", **first), private_sum("b", **second)])


def test_composition_groups_separate_disjoint_records_alone():
    """A guarantee for a client's records against the server is another one than that
    for clients against everyone.
    """

    def names(*sums):
        return [
            [sum_.name for sum_ in group.sums] for group in composition_groups(sums)
        ]

    left_sum = private_sum("left", unit="record", part="left")
    right_sum = private_sum("right", unit="record", part="right")
    plain = SumSpec(name="c", unit="client", observer="everyone")
    first = private_sum("a")
    assert names(left_sum, right_sum) == [["left"], ["right"]]
    assert names(first, private_sum("b"), plain) == [["a", "b"]]
    assert names(first, private_sum("b", **SERVER)) == [["a", "b"]]
    assert names(first, private_sum("b", **WITHIN | SERVER)) == [["a"], ["b"]]
    assert names(first, private_sum("b", noise=Decaying())) == [["b", "a"]]


def test_two_sums_of_two_samplers_are_refused_before_the_first_round():
    composition = dpsum.Composition()
    plan = OnePass(cohort=4, rounds=12).plan(clients=48, seed=0).describe()
    create = functools.partial(
        dpsum.Mechanism, composition=composition, ledger=[], seed=0, dimension=3
    )
    create(private_sum("a"), participation=plan)
    create(private_sum("b"), participation=plan | {"rate": 1 / 48})
    with pytest.raises(BenchError, match="same clients but are not sampled alike"):
        composition.allows(1)


def test_two_sums_of_which_the_server_sees_one_count_against_it(federation, tmp_path):
    """The server sees both sums, and all other observers see one."""
    train(two_sums_config(1.0, 2.0, {}), federation, tmp_path)
    lines = [
        dataclasses.replace(line, **SERVER) if line.name == "second-sum" else line
        for line in ledger_in(tmp_path)
    ]
    proof = account(lines, delta=DELTA, claims={}).profiles["proven"]
    expected = gaussian(joint(1.0, 2.0))
    assert proof.observer == "server"
    assert proof.epsilon_high == pytest.approx(expected, rel=1e-9)


# Sample-level DP-MAML: support and query examples


def sample_level_config(*overlays):
    base = {"method": "dp-maml-sample", "validation": {"every": 0}}
    return make_config(base, *overlays)


NOISE = {
    "within_task": {"multiplier": 1.2, "delta": 1e-2},
    "noise": {"multiplier": 2.3},
}


def test_sample_level_account_has_one_delta_for_support_and_query(federation, tmp_path):
    """A support example has 3.976 at 1e-6, and 1.816 at 1e-2; a query example 1.934 at
    1e-6.
    """
    config = sample_level_config(NOISE, {"budget": {"delta": DELTA}})
    assert config.own_delta == config.delta == DELTA
    train(config, federation, tmp_path)
    profiles = accounted(config, tmp_path)["profiles"]
    last = history_in(tmp_path).iloc[-1]
    for name, column in (
        ("proven", "epsilon_proven"),
        ("claimed", "epsilon_claimed"),
    ):
        assert profiles[name]["delta"] == DELTA
        assert profiles[name]["epsilon_high"] == last[column]
        assert last[column] >= gaussian(1.2) * (1 - 1e-9)
    epsilon = profiles["proven"]["epsilon_high"]
    assert epsilon == pytest.approx(gaussian(1.2), rel=1e-9)


def test_sample_level_budget_is_for_support_examples_too():
    """A budget of 3 is enough for the query examples, and 4 for both kinds."""
    budget = {"budget": {"delta": DELTA, "epsilon": 3.0}}
    with pytest.raises(
        BenchError, match=r"^support-gradient-sum costs .* epsilon 3\.9"
    ):
        rounds_without_data(sample_level_config(NOISE, budget))
    budget["budget"]["epsilon"] = 4.0
    assert rounds_without_data(sample_level_config(NOISE, budget)).composition.allows(
        12
    )


def test_sample_level_releases_of_secret_rounds_are_refused(federation, tmp_path):
    """Everyone sees the releases, and so the clients that took part. By balls-and-bins
    the server's sum would have 2.652 at z = 1, and 4.887 where rounds are known.
    """
    secret = {"participation": {"kind": "balls-and-bins"}}
    message = "is seen by everyone, which reveals the rounds that balls-and-bins"
    with pytest.raises(BenchError, match=message):
        sample_level_config(secret)
    make_config({"method": "dp-agrlr"}, secret)  # whose own releases the server sees
    train(sample_level_config(), federation, tmp_path)
    lines = []
    for line in ledger_in(tmp_path):
        if line.name != SUPPORT:
            sampler = line.sampler | {"kind": "balls-and-bins"}
            line = dataclasses.replace(line, sampler=sampler)
        lines.append(line)
    with pytest.raises(BenchError, match=message):
        account(lines, delta=1e-5, claims={})


def test_within_task_sums_over_the_same_examples_are_not_taken_for_disjoint():
    twice = [release("task-gradient-sum", 1.0), release("another-sum", 1.0)]
    with pytest.raises(BenchError, match="read the same records but are not sampled"):
        account(twice, delta=1e-5, claims={})
    disjoint = [dataclasses.replace(line, part=line.name) for line in twice]
    proof = account(disjoint, delta=1e-5, claims={}).profiles["proven"]
    assert proof.epsilon_high == pytest.approx(gaussian(1.0, 1e-5))
