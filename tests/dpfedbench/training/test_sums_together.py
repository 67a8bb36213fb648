"""Two private sums of one unit have one budget, one history and one account.

SCAFFOLD's server takes two sums over the same cohort. Expected values are the Gaussian
mechanism's trade-off (Balle and Wang 2018, Theorem 8), with mu^2 = z_1^-2 + z_2^-2, or
dp-accounting's.
"""

import dataclasses

import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant

from dpfedbench.errors import BenchError
from dpfedbench.papers.dp_maml import DpMamlSample
from dpfedbench.papers.federated_averaging import CONTROL
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.training.client_updates.maml import SUPPORT
from dpsum.accounting.account import account
from dpsum.clipping import Constant
from dpsum.correlated_noise import Factorised
from dpsum.noise import Decaying, Gaussian
from dpsum.sums import SumSpec, composition_groups
from tests.dpsum.accounting.helpers import sampled_gaussian_epsilon
from tests.dpsum.accounting.test_within_task import release

from .conftest import (
    accounted,
    difference_config,
    history_in,
    ledger_in,
    make_config,
    proven,
    rounds_without_data,
    train,
    training_in,
)

DELTA = 1e-6


def gaussian(z, delta=DELTA):
    """Return epsilon of one Gaussian release, by its trade-off curve."""
    return sampled_gaussian_epsilon(z, 1, delta)


def joint(*multipliers):
    return sum(z**-2 for z in multipliers) ** -0.5


def two_sums_config(z, control_z, budget, **sections):
    """Return a run of SCAFFOLD whose four clients take part once, in known rounds."""
    overlay = {
        "method": "dp-scaffold",
        "participation": {"kind": "shuffled-epochs", "cohort": 2, "rounds": 2},
        "validation": {"every": 0},
        "noise": {"multiplier": z},
        "control_noise": {"multiplier": control_z},
        "budget": {"delta": DELTA, "profile": "proven"} | budget,
    }
    return difference_config(overlay, sections)


def test_two_sums_have_one_history_and_account(silos, tmp_path):
    """z = 1 and z = 2 at 1e-6: 5.55, where the sum of z = 1 alone has 4.89."""
    config = two_sums_config(1.0, 2.0, {"epsilon": 6.0})
    train(config, silos, tmp_path)
    expected = gaussian(joint(1.0, 2.0))
    history = history_in(tmp_path)["epsilon_proven"]
    assert history.tolist() == pytest.approx([expected] * 2, rel=1e-9)
    proof = proven(config, tmp_path)
    assert proof["epsilon_low"] == proof["epsilon_high"]
    assert proof["epsilon_high"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("z", "control_z", "message"),
    [
        (1.0, 2.0, r"the budget of epsilon 5\.0 is spent by the first round"),
        (None, 0.5, r"a joint noise multiplier of 0\.9801 for all sums"),
    ],
)
def test_two_sums_that_exceed_a_budget_are_refused(
    silos, tmp_path, z, control_z, message
):
    """A budget of 5 is enough for z = 1 and for z = 2 alone. z = 0.5 leaves nothing for
    the other sum.
    """
    with pytest.raises(BenchError, match=message):
        train(two_sums_config(z, control_z, {"epsilon": 5.0}), silos, tmp_path)


@pytest.mark.parametrize(("z", "control_z"), [(None, 2.0), (2.0, None), (None, None)])
def test_two_sums_with_calibrated_noise_meet_the_budget(silos, tmp_path, z, control_z):
    """Alone z would be 0.9801, which together with the other sum has 5.65."""
    config = two_sums_config(z, control_z, {"epsilon": 5.0})
    train(config, silos, tmp_path)
    ledger = ledger_in(tmp_path)
    multipliers = {line.name: line.noise_multiplier for line in ledger}
    assert len(ledger) == 2 * len(multipliers) == 4
    control = multipliers.pop(CONTROL)
    (model,) = multipliers.values()
    assert z in (None, model)
    assert control_z in (None, control)
    if z is control_z is None:
        assert model == control
    spent = gaussian(joint(model, control))
    assert 5.0 * (1 - 1e-3) <= spent <= 5.0
    assert proven(config, tmp_path)["epsilon_high"] == pytest.approx(spent, rel=1e-9)


def test_two_sums_of_poisson_rounds_stop_before_they_exceed_the_budget(silos, tmp_path):
    """Reference: dp_accounting's composition of one Gaussian of the joint multiplier."""

    def spent(rounds):
        accountant = PLDAccountant(
            NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4
        )
        event = PoissonSampledDpEvent(1 / 4, GaussianDpEvent(joint(1.0, 1.5)))
        return accountant.compose(SelfComposedDpEvent(event, rounds)).get_epsilon(1e-3)

    plan = {"kind": "poisson", "cohort": 1, "rounds": 12}
    budget = {"epsilon": 4.0, "delta": 1e-3}
    config = two_sums_config(1.0, 1.5, budget, participation=plan)
    train(config, silos, tmp_path)
    count = training_in(tmp_path)["rounds_run"]
    last = history_in(tmp_path)["epsilon_proven"].iloc[-1]
    assert 0 < count < 12
    assert spent(count) <= 4.0 + 1e-3 < spent(count + 1)
    assert last == pytest.approx(spent(count), abs=2e-3)
    assert proven(config, tmp_path)["epsilon_high"] == pytest.approx(last, rel=1e-9)


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


def test_two_sums_of_which_the_server_sees_one_count_against_it(silos, tmp_path):
    """The server sees both sums, and all other observers see one."""
    train(two_sums_config(1.0, 2.0, {}), silos, tmp_path)
    lines = [
        dataclasses.replace(line, **SERVER) if line.name == CONTROL else line
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
    for name, column in (("proven", "epsilon_proven"), ("claimed", "epsilon_claimed")):
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
