"""Two private sums of one unit have one budget, one history and one account.

Expected values are the Gaussian's trade-off (Balle and Wang 2018, Theorem 8), with
mu^2 = z_1^-2 + z_2^-2, or dp-accounting's.
"""

import dataclasses

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.papers.dp_maml import DpMamlSample
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.training.client_updates.maml import SUPPORT
from dpsum.accounting.account import account
from dpsum.clipping import Constant
from dpsum.correlated_noise import Factorised
from dpsum.noise import Decaying, Gaussian
from dpsum.sums import SumSpec, composition_groups
from tests.dpsum.accounting.helpers import sampled_gaussian_epsilon
from tests.dpsum.accounting.test_within_task import release

from .conftest import ledger_in, make_config, rounds_without_data, train

DELTA = 1e-6


def gaussian(z, delta=DELTA):
    """Return epsilon of one Gaussian release, by its trade-off curve."""
    return sampled_gaussian_epsilon(z, 1, delta)


def joint(*multipliers):
    return sum(z**-2 for z in multipliers) ** -0.5


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
BUDGET = BudgetSettings(delta=1e-4, profile="proven")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"unit": "record"}, "a .of clients. and b .of records. have two budgets"),
        ({}, {"budget": BUDGET}, "have two budgets"),
        ({}, {"noise": Factorised()}, "have gaussian and correlated-gaussian noise"),
        ({}, {"adjacency": "replace-one"}, "are for zero-out and replace-one adj"),
        ({"noise": Decaying()}, {"noise": Decaying()}, "their costs are both known"),
        ({"unit": "record"}, HALF, "b reads a subset of the records and other sums re"),
        (HALF, WITHIN | {"part": "half"}, r"read the same records \(the half\) but"),
        ({}, WITHIN | {"observer": "everyone"}, "from everyone and a clients from ev"),
        (SERVER, WITHIN | SERVER, "records from server and a clients from s"),
    ],
)
def test_composition_groups_refuse_sums_that_no_analysis_composes(
    first, second, message
):
    with pytest.raises(BenchError, match=message):
        composition_groups([private_sum("a", **first), private_sum("b", **second)])


def test_composition_groups_separate_disjoint_records_alone():
    """Guarantees of records and of clients have different observers."""
    a = private_sum("a")
    half = private_sum("a", **HALF)
    plain = SumSpec(name="c", unit="client", observer="everyone")
    for first, second, groups in (
        (half, private_sum("b", unit="record", part="other"), [["a"], ["b"]]),
        (a, plain, [["a"]]),
        (a, private_sum("b"), [["a", "b"]]),
        (a, private_sum("b", **SERVER), [["a", "b"]]),
        (a, private_sum("b", **WITHIN | SERVER), [["a"], ["b"]]),
        (a, private_sum("b", noise=Decaying()), [["b", "a"]]),
    ):
        composed = composition_groups([first, second])
        assert [[sum_.name for sum_ in group.sums] for group in composed] == groups


SAMPLE_LEVEL = {"method": "dp-maml-sample", "validation": {"every": 0}}
SUPPORT_AND_QUERY = {
    "within_task": {"multiplier": 1.2, "delta": 1e-2},
    "noise": {"multiplier": 2.3},
}


def test_sample_level_budget_is_for_support_examples_too():
    """A budget of 3 is enough for the query examples, and 4 for both kinds."""
    budget = {"budget": {"delta": DELTA, "epsilon": 3.0}}
    message = r"^support-gradient-sum costs .* epsilon 3\.9"
    with pytest.raises(BenchError, match=message):
        rounds_without_data(make_config(SAMPLE_LEVEL, SUPPORT_AND_QUERY, budget))
    budget["budget"]["epsilon"] = 4.0
    rounds = rounds_without_data(make_config(SAMPLE_LEVEL, SUPPORT_AND_QUERY, budget))
    assert rounds.composition.allows(12)


def test_sample_level_releases_of_secret_rounds_are_refused(federation, tmp_path):
    """By balls-and-bins z = 1 would have 2.652, and 4.887 in known rounds."""
    secret = {"participation": {"kind": "balls-and-bins"}}
    message = "is seen by everyone, which reveals the rounds that balls-and-bins"
    with pytest.raises(BenchError, match=message):
        make_config(SAMPLE_LEVEL, secret)
    make_config({"method": "dp-agrlr"}, secret)  # whose own releases the server sees
    train(make_config(SAMPLE_LEVEL), federation, tmp_path)
    lines = ledger_in(tmp_path)
    for index, line in enumerate(lines):
        if line.name != SUPPORT:
            sampler = line.sampler | {"kind": "balls-and-bins"}
            lines[index] = dataclasses.replace(line, sampler=sampler)
    with pytest.raises(BenchError, match=message):
        account(lines, delta=1e-5, claims={})


def test_within_task_sums_over_the_same_examples_are_not_taken_for_disjoint():
    twice = [release("task-gradient-sum", 1.0), release("another-sum", 1.0)]
    with pytest.raises(BenchError, match="read the same records but are not sampled"):
        account(twice, delta=1e-5, claims={})
    disjoint = [dataclasses.replace(line, part=line.name) for line in twice]
    proof = account(disjoint, delta=1e-5, claims={}).profiles["proven"]
    assert proof.epsilon_high == pytest.approx(gaussian(1.0, 1e-5))
