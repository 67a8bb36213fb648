"""SCAFFOLD: rounds against the algorithm, its two messages, their budget and account,
restarts and processes.
"""

import dataclasses
from typing import ClassVar

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant

from dpfedbench.errors import BenchError
from dpfedbench.training.agreement import check_agrees
from dpfedbench.training.clients import Clients
from dploss.gaussian import gaussian_epsilon, joint_multiplier
from dpsum.accounting.account import account
from dpsum.sums import SumSpec
from further.scaffold import CONTROL, DpScaffold
from tests.dpfedbench.training import conftest
from tests.dpfedbench.training.conftest import (
    client_examples,
    difference_config,
    ledger_in,
    rounds_in_memory,
    rounds_of,
    take_rounds,
    train,
    training_in,
)
from tests.dpfedbench.training.test_processes import (
    exit_codes,
    results_in,
    start_processes,
    train_alone,
)
from tests.dpfedbench.training.test_published_rounds import (
    INNER_RATE,
    POWER,
    QUIET,
    SERVER,
    SERVER_RATE,
    TOLERANCE,
    TWO_STEPS,
    gradient,
    movement,
    relative_error,
    start,
)
from tests.dpfedbench.training.test_restart import check_restart, with_rounds
from tests.dpfedbench.training.test_run_accounts import check_account, check_audit
from tests.dpfedbench.training.test_shared_coordinates import (
    check_shared_body,
)
from tests.dpfedbench.training.test_sums_together import DELTA, gaussian, joint

__all__ = ["start"]

# SCAFFOLD (Karimireddy et al. 2020), Algorithm 1, option II


class ScaffoldAlgorithm:
    """SCAFFOLD over all records of each client.

    Args:
        net: the network.
        examples: (images, labels) of each client.
        options: steps of a client, K; sign of the correction; count, the denominator of
            the server's step, |S|; total, that of the control variate, N.
    """

    def __init__(self, net, examples, **options):
        self.net = net
        self.examples = examples
        defaults = {"steps": 2, "sign": 1.0, "count": 2, "total": 4}
        self.options = defaults | options
        self.control = 0.0
        self.client_controls = [0.0] * len(examples)

    def step(self, theta, cohort):
        """Return the change of the model: lines 6 to 17 for the clients of a cohort."""
        steps = self.options["steps"]
        movement = 0.0
        change = 0.0
        for client in cohort:
            own = self.client_controls[client]
            weights = theta
            for _ in range(steps):
                slope = gradient(self.net, weights, *self.examples[client])
                correction = self.options["sign"] * (self.control - own)
                weights = weights - INNER_RATE * (slope + correction)
            following = own - self.control + (theta - weights) / (steps * INNER_RATE)
            movement = movement + (weights - theta)
            change = change + (following - own)
            self.client_controls[client] = following
        self.control = self.control + change / self.options["total"]
        return SERVER_RATE * movement / self.options["count"]


UNCLIPPED_SCAFFOLD = {
    "method": "dp-scaffold",
    "clipping": {"threshold": 1e4},
    "control_clipping": {"threshold": 1e4},
}


# Faster: DP-SCAFFOLD's rounds.
@pytest.mark.parametrize(
    "private",
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=["fedavg", "dp-scaffold"],
)
def test_rounds_of_scaffold_are_those_of_autograd(private, start, silos):
    """Four rounds of Poisson cohorts of two clients in expectation: from the second on
    the control variates count.
    """
    run = difference_config(
        UNCLIPPED_SCAFFOLD if private else {"method": "fedavg"},
        {"client_update": {"kind": "scaffold", "optimizer": "sgd"}},
        TWO_STEPS,
        SERVER,
        QUIET,
    )
    rounds = start(run)
    examples = client_examples(silos)
    right = ScaffoldAlgorithm(rounds.net, examples)
    wrong = {
        "sign of the correction": ScaffoldAlgorithm(rounds.net, examples, sign=-1.0),
        "no correction": ScaffoldAlgorithm(rounds.net, examples, sign=0.0),
        "one step too many": ScaffoldAlgorithm(rounds.net, examples, steps=3),
        "mean of the cohort": ScaffoldAlgorithm(rounds.net, examples, total=2),
        "sum over all clients": ScaffoldAlgorithm(rounds.net, examples, count=4),
    }
    errors = dict.fromkeys(wrong, 0.0)
    for index in range(4):
        cohort = rounds.plan.sample_cohort(index)
        theta, moved = movement(rounds, index)
        if not len(cohort):
            continue
        assert relative_error(moved, right.step(theta, cohort)) < TOLERANCE
        for fault, algorithm in wrong.items():
            error = relative_error(moved, algorithm.step(theta, cohort))
            errors[fault] = max(errors[fault], error)
    assert min(errors.values()) > POWER, errors


# With private sums: two mechanisms over the same clients, one budget

MODEL = "model-difference-sum"
EVERYONE = {
    "participation": {"kind": "poisson", "cohort": 4, "rounds": 3},
    "noise": {"multiplier": 1e-3},
    "control_noise": {"multiplier": 1e-3},
    "control_clipping": {"threshold": 0.25},
}


def scaffold_config(*overlays):
    return difference_config({"method": "dp-scaffold"}, *overlays)


class HugeMessages(Clients):
    """Clients whose messages are far above any threshold."""

    def contributions(self, theta, cohort, index):
        message = torch.full((len(cohort), 8), 1e6)
        yield torch.stack([message, -message]), np.zeros(len(cohort))

    def receive_broadcast(self, means):
        self.broadcast = means


def test_scaffold_clips_both_messages_each_to_its_own_threshold():
    """Four messages of 1e6 in each of eight coordinates are clipped to C, along the
    diagonal.
    """
    clients = HugeMessages()
    rounds = rounds_in_memory(scaffold_config(EVERYONE), 8, clients=clients)
    rounds.round(0)
    assert np.allclose(clients.broadcast, -0.25 / 8**0.5, rtol=0, atol=5e-3)
    assert np.allclose(-rounds.theta.numpy(), 0.5 / 8**0.5, rtol=0, atol=5e-3)
    stated = {line.name: (line.sensitivity, line.denominator) for line in rounds.ledger}
    assert stated == {MODEL: (0.5, 4.0), CONTROL: (0.25, 4.0)}


def test_scaffold_budget_that_counts_one_sum_is_noticed(silos, tmp_path):
    """The planted fault: each sum has the noise of the whole budget."""
    null = {"multiplier": None}
    budget = {"budget": {"epsilon": 3.0}, "noise": null, "control_noise": null}
    run = scaffold_config(budget)
    take_rounds(rounds_of(run, silos, tmp_path), 6)
    lines = ledger_in(tmp_path)
    check_agrees(run, lines, 6)
    whole = joint_multiplier([line.noise_multiplier for line in lines[:2]])
    for index, line in enumerate(lines):
        std = whole * line.sensitivity
        lines[index] = dataclasses.replace(line, noise_multiplier=whole, noise_std=std)
    with pytest.raises(BenchError, match="multipliers of control-difference-sum of"):
        check_agrees(run, lines, 6)


def test_method_that_forgets_a_message_or_its_noise_is_refused(monkeypatch):
    _, model = scaffold_config().sums()
    monkeypatch.setattr(DpScaffold, "sums", lambda self: [model])
    message = f"also sends {CONTROL}, but dp-scaffold has no such sum: give its sums"
    with pytest.raises(BenchError, match=message):
        scaffold_config()
    bare = SumSpec(name=CONTROL, unit="client", observer="everyone")
    monkeypatch.setattr(DpScaffold, "sums", lambda self: [bare, model])
    message = f"{CONTROL} adds up the same contributions as {MODEL}, which is private"
    with pytest.raises(BenchError, match=message):
        scaffold_config()


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
    return conftest.difference_config(overlay, sections)


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
    """A budget of 5 is enough for z = 1 and z = 2 alone, not for z = 0.5."""
    with pytest.raises(BenchError, match=message):
        train(two_sums_config(z, control_z, {"epsilon": 5.0}), silos, tmp_path)


@pytest.mark.parametrize(("z", "control_z"), [(None, 2.0), (2.0, None), (None, None)])
def test_calibrated_noise_of_two_sums_meets_their_budget(silos, tmp_path, z, control_z):
    """Alone z would be 0.9801, which together with the other sum has 5.65."""
    train(two_sums_config(z, control_z, {"epsilon": 5.0}), silos, tmp_path)
    proof = account(ledger_in(tmp_path), delta=DELTA, claims={}).profiles["proven"]
    assert 0.98 * 5.0 < proof.epsilon_high <= 5.0


def test_two_sums_of_poisson_rounds_stop_before_they_exceed_the_budget(silos, tmp_path):
    """Reference: dp_accounting's composition of one Gaussian of the joint multiplier."""

    def spent(rounds):
        accountant = PLDAccountant(value_discretization_interval=1e-4)
        gaussian_event = dp_accounting.GaussianDpEvent(joint(1.0, 1.5))
        event = dp_accounting.PoissonSampledDpEvent(1 / 4, gaussian_event)
        return accountant.compose(event, rounds).get_epsilon(1e-3)

    plan = {"kind": "poisson", "cohort": 1, "rounds": 12}
    budget = {"epsilon": 4.0, "delta": 1e-3}
    config = two_sums_config(1.0, 1.5, budget, participation=plan)
    train(config, silos, tmp_path)
    count = training_in(tmp_path)["rounds_run"]
    last = conftest.history_in(tmp_path)["epsilon_proven"].iloc[-1]
    assert 0 < count < 12
    assert spent(count) <= 4.0 + 1e-3 < spent(count + 1)
    assert last == pytest.approx(spent(count), abs=2e-3)
    assert conftest.proven(config, tmp_path)["epsilon_high"] == pytest.approx(
        last, rel=1e-9
    )


def test_two_sums_of_which_the_server_sees_one_count_against_it(silos, tmp_path):
    """The server sees both sums, and all other observers see one."""
    train(two_sums_config(1.0, 2.0, {}), silos, tmp_path)
    lines = [
        dataclasses.replace(line, observer="server") if line.name == CONTROL else line
        for line in ledger_in(tmp_path)
    ]
    proof = account(lines, delta=DELTA, claims={}).profiles["proven"]
    expected = gaussian(joint(1.0, 2.0))
    assert proof.observer == "server"
    assert proof.epsilon_high == pytest.approx(expected, rel=1e-9)


def test_account_of_two_sums_is_that_of_both(silos, tmp_path):
    """5.55, where the sum of z = 1 alone has 4.89."""
    run = two_sums_config(1.0, 2.0, {"epsilon": 6.0})
    epsilon = gaussian_epsilon((1 + 1 / 4) ** -0.5, 1e-6)
    check_account(run, silos, tmp_path, "client", {"proven": epsilon})


def test_audit_of_two_sums_is_not_above_what_is_proven(silos, tmp_path):
    check_audit(scaffold_config(), silos, tmp_path, canaries=60)


# Clients that keep a state

RUNS = {
    "dp-scaffold": scaffold_config(),
    "fedavg": difference_config(
        {"method": "fedavg", "client_update": {"kind": "scaffold"}}
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_restart_keeps_bits_of_control_variates(name, silos, tmp_path, monkeypatch):
    check_restart(RUNS[name], silos, tmp_path, monkeypatch)


def test_two_processes_end_with_the_bits_of_one_scaffold(silos, tmp_path):
    config = with_rounds(RUNS["dp-scaffold"], 4)
    job = (config, silos, tmp_path / "two", 1e9)
    assert exit_codes(start_processes(2, [job])) == [0, 0]
    assert train_alone(config, silos, tmp_path / "one") == results_in(tmp_path / "two")


class BodyScaffold(DpScaffold):
    name: ClassVar[str] = "body-scaffold"
    shared: ClassVar[str] = "body"


def test_control_variates_of_a_shared_body_have_no_head(silos, tmp_path):
    rounds = check_shared_body(silos, tmp_path, BodyScaffold, {})
    head = rounds.net.mask("head")
    state = rounds.clients.state()
    controls = [client["control"] for client in state["clients"].values()]
    assert controls
    for control in (state["public"]["control"], *controls):
        assert not control.numpy()[head].any()
