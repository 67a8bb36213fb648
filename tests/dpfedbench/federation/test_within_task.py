"""Record-level sums within few-shot tasks: DP-AGRLR, sample-level DP-MAML, task-global
Reptile.
"""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.data.partition import TaskBatch
from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import account_of
from dpfedbench.papers.gbml import TASK
from dpfedbench.parts.client_updates.maml import QUERY, SUPPORT
from dpfedbench.parts.within_task import Client
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.ledger import read_ledger
from tests.dpfedbench.federation.conftest import (
    accounted,
    assert_drawn_anew,
    make_config,
    rounds_of,
    stop_before,
    train,
)

AGRLR, SAMPLE = {"method": "dp-agrlr"}, {"method": "dp-maml-sample"}
REPTILE, PLAIN_REPTILE, LOCAL = (
    {"method": "dp-reptile"},
    {"method": "reptile"},
    {"method": "local-reptile"},
)
NONE = {
    "method": "maml",
    "model": {"normalisation": "record"},
    "client_update": {"order": 1, "inner_steps": 2},
}
LOCAL_NOISE = {"own_update": {"threshold": 1e-6, "multiplier": 1.5e6}}
COHORT = np.array([3, 7, 11])


def contributions(rounds, theta, index=0):
    return torch.cat(
        [
            rows.clone()
            for rows, _, _ in rounds.clients.contributions(theta, COHORT, index)
        ]
    )


def theta_of(rounds):
    rng = np.random.default_rng(0)
    return (
        rounds.net.initial(rng) + 0.1 * rng.standard_normal(rounds.net.dimension)
    ).astype(np.float32)


def gradient(net, weights, x, y):
    """By automatic differentiation in double precision, of the mean loss."""
    weights = weights.clone().requires_grad_()
    loss = functional.cross_entropy(
        net.logits(weights, torch.from_numpy(x).double()), torch.tensor(y)
    )
    return torch.autograd.grad(loss, weights)[0]


def held_of(rounds):
    """What the clients hold, to be changed."""
    return rounds.clients.setup.held


def test_without_clipping_and_noise_it_is_first_order_maml(federation, tmp_path):
    rounds = rounds_of(make_config(NONE), federation, tmp_path)
    theta = theta_of(rounds)
    found = contributions(rounds, theta)
    tasks = held_of(rounds).gather(COHORT)
    for i in range(len(COHORT)):
        weights = torch.from_numpy(theta).double()
        for _ in range(2):
            weights = weights - 0.1 * gradient(
                rounds.net, weights, tasks.support_x[i], tasks.support_y[i]
            )
        wanted = gradient(rounds.net, weights, tasks.query_x[i], tasks.query_y[i])
        assert torch.linalg.norm(found[i] - wanted) < 1e-4 * torch.linalg.norm(wanted)


def test_reptile_sends_what_its_optimisers_steps_make_of_the_weights(
    federation, tmp_path
):
    """Plain descent, by hand: three steps along the mean gradient of all nine
    examples.
    """
    update = {
        "client_update": {"inner_steps": 3, "inner_rate": 0.1, "optimizer": "sgd"}
    }
    rounds = rounds_of(make_config(PLAIN_REPTILE, update), federation, tmp_path)
    theta = theta_of(rounds)
    found = contributions(rounds, theta)
    tasks = held_of(rounds).gather(COHORT)
    for i in range(len(COHORT)):
        x, y = (
            np.concatenate(pair)
            for pair in (
                (tasks.support_x[i], tasks.query_x[i]),
                (tasks.support_y[i], tasks.query_y[i]),
            )
        )
        start = weights = torch.from_numpy(theta).double()
        for _ in range(3):
            weights = weights - 0.1 * gradient(rounds.net, weights, x, y)
        wanted = start - weights
        assert torch.linalg.norm(found[i] - wanted) < 1e-4 * torch.linalg.norm(wanted)


def test_the_server_moves_the_model_to_where_one_client_goes(federation, tmp_path):
    """Reptile's direction: phi <- phi + eps (theta_t - phi), which for eps = 1 and one
    client is its theta_t.
    """
    one = {
        "participation": {"cohort": 1, "rounds": 2},
        "client_update": {"inner_rate": 0.05},
    }
    rounds = rounds_of(make_config(PLAIN_REPTILE, one), federation, tmp_path)
    assert rounds.run.server.rate == 1.0 and rounds.run.server.optimizer.kind == "sgd"
    for index in range(2):
        before = rounds.theta.clone()
        cohort = rounds.plan.cohort(index)
        ((sent, _, _),) = rounds.clients.contributions(before.numpy(), cohort, index)
        trained = before - sent[0]
        rounds.round(index)
        assert len(cohort) == 1 and (trained - before).norm() > 0.1
        assert torch.allclose(rounds.theta, trained, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("overlay", "names", "rows"),
    [
        (AGRLR, {SUPPORT: 3, QUERY: 6}, 1),
        (SAMPLE, {SUPPORT: 3}, 6),
        (REPTILE, {TASK: 9}, 1),
    ],
)
def test_the_ledger_has_every_release_with_the_noise_it_took(
    overlay, names, rows, federation, tmp_path
):
    config = make_config(overlay, {"client_update": {"inner_steps": 2}})
    seen = []
    rounds = rounds_of(
        config,
        federation,
        tmp_path,
        observer=lambda line, left: seen.append((line, left)),
    )
    found = contributions(rounds, theta_of(rounds))
    assert rounds.clients.each == rows and len(found) == 3 * rows
    assert rounds.server.denominator == 4 * rows  # |D^q| L of Algorithm 2, or L
    lines = {line.name: line for line in read_ledger(tmp_path / "ledger.jsonl")}
    assert set(lines) == set(names) == {line.name for line, _ in seen} and len(
        seen
    ) == len(names)
    observer = "everyone" if overlay is SAMPLE else "server"
    for line, left in seen:
        assert lines[line.name] == line
        steps = 1 if line.name == QUERY else 2
        assert (
            line.sampler["records"] == names[line.name]
            and line.sampler["steps"] == steps
        )
        assert {(made.holder, made.step) for made, _ in left} == {
            (int(client), step) for client in COHORT for step in range(steps)
        }
        for made, _ in left:
            total = made.total
            assert (
                total.threshold,
                total.noise_multiplier,
                total.noise_std,
                total.sensitivity,
            ) == (
                line.threshold,
                line.noise_multiplier,
                line.noise_std,
                line.sensitivity,
            )
        assert line.unit == "record" and line.observer == observer
        assert line.noise_std == line.noise_multiplier * config.within_task.threshold


def test_each_example_keeps_its_epsilon(federation, tmp_path):
    """z_0 from epsilon 2.5: that of DP-AGRLR's one step exactly; two steps read the
    support set, and cost sqrt(2).
    """
    for steps in (1, 2):
        rounds = rounds_of(
            make_config(AGRLR, {"client_update": {"inner_steps": steps}}),
            federation,
            tmp_path,
        )
        z = {entry.noise_multiplier for entry in rounds.clients.entries.values()}
        assert len(z) == 1
        assert gaussian_epsilon(z.pop() / steps**0.5, 1e-5) == pytest.approx(
            2.5, rel=1e-3
        )


@pytest.mark.parametrize("profile", ["as_claimed", "holds"])
def test_the_profile_says_whose_epsilon_the_noise_is_for(profile, federation, tmp_path):
    within = {"multiplier": None, "epsilon": 4.0, "delta": 1e-3, "profile": profile}
    config = make_config(
        REPTILE, {"within_task": within, "client_update": {"inner_steps": 3}}
    )
    rounds = rounds_of(config, federation, tmp_path)
    contributions(rounds, theta_of(rounds))
    found = account_of(config, read_ledger(tmp_path / "ledger.jsonl")).profiles
    ends = {name: found[name].epsilon_high for name in ("as_claimed", "holds")}
    assert (
        ends.pop(profile) == pytest.approx(4.0, rel=1e-3)
        and abs(ends.popitem()[1] - 4.0) > 0.1
    )


@pytest.mark.parametrize(
    ("overlay", "own", "releases"),
    [
        (AGRLR, {"within_task": {"threshold": 1e-6, "multiplier": 3e6}}, 3),
        (LOCAL, LOCAL_NOISE, 1),
    ],
)
def test_noise_is_of_the_stated_size_and_never_used_twice(
    overlay, own, releases, federation, tmp_path
):
    """In no step, client or round; standard deviation within 5 % (over 15,000 draws:
    five deviations are 3 %). A client's own update is always there: its noise is of 2 z
    C.
    """
    steps = {} if overlay is LOCAL else {"client_update": {"inner_steps": 2}}
    seen = []

    def observer(line, left):
        seen.extend(line.denominator * mean for _, mean in left)

    rounds = rounds_of(
        make_config(overlay, own, steps), federation, tmp_path, observer=observer
    )
    theta = theta_of(rounds)
    contributions(rounds, theta, 0)
    contributions(rounds, theta, 1)
    noise = np.stack(seen)  # [2 rounds x 3 clients x releases, d], each of deviation 3
    assert len(noise) == 6 * releases and noise.std() == pytest.approx(3.0, rel=0.05)
    alike = np.corrcoef(noise) - np.eye(len(noise))
    assert abs(alike).max() < 5.5 / noise.shape[1] ** 0.5


@pytest.mark.parametrize("overlay", [AGRLR, SAMPLE, REPTILE])
def test_threads_change_no_bit(overlay, federation, tmp_path):
    config = make_config(overlay)
    one, two = (
        rounds_of(config, federation, tmp_path / str(n), threads=n) for n in (1, 2)
    )
    theta = theta_of(one)
    assert torch.equal(contributions(one, theta), contributions(two, theta))
    assert (tmp_path / "1" / "ledger.jsonl").read_bytes() == (
        tmp_path / "2" / "ledger.jsonl"
    ).read_bytes()


@pytest.mark.parametrize("overlay", [AGRLR, SAMPLE])
def test_the_support_set_reaches_a_contribution_through_its_noised_sum_alone(
    overlay, federation, tmp_path, monkeypatch
):
    """Property 11: with the support's release held fixed, other support images change
    nothing.
    """
    rounds = rounds_of(make_config(overlay), federation, tmp_path)
    theta, own = theta_of(rounds), Client.mean
    free = contributions(rounds, theta)
    fixed = np.full(rounds.net.dimension, 1e-3, np.float32), np.zeros((3, 2))
    monkeypatch.setattr(
        Client,
        "mean",
        lambda self, name, *args, **k: (
            fixed if name == SUPPORT else own(self, name, *args, **k)
        ),
    )
    before = contributions(rounds, theta)
    assert not torch.equal(before, free)
    held = held_of(rounds)
    gathered = held.gather

    def changed(ids):
        tasks = gathered(ids)
        tasks.support_x[:] = 0.5
        return tasks

    monkeypatch.setattr(held, "gather", changed)
    assert torch.equal(before, contributions(rounds, theta))


def test_disjoint_batches_read_each_example_once(federation, tmp_path, monkeypatch):
    config = make_config(
        REPTILE, {"client_update": {"inner_steps": 3, "batches": "disjoint"}}
    )
    rounds, read = rounds_of(config, federation, tmp_path), {}
    own = Client.mean

    def spy(self, name, theta, examples, *args, **k):
        read.setdefault(self.client, []).append(
            examples[0].reshape(len(examples[0]), -1)
        )
        return own(self, name, theta, examples, *args, **k)

    monkeypatch.setattr(Client, "mean", spy)
    contributions(rounds, theta_of(rounds))
    tasks = held_of(rounds).gather(COHORT)
    for i, client in enumerate(COHORT):
        assert [len(batch) for batch in read[client]] == [3, 3, 3]
        wanted = np.concatenate([tasks.support_x[i], tasks.query_x[i]]).reshape(9, -1)
        assert sorted(map(bytes, np.concatenate(read[client]))) == sorted(
            map(bytes, wanted)
        )
    (line,) = read_ledger(tmp_path / "ledger.jsonl")
    assert (line.sampler["cohort"], line.sampler["records"], line.denominator) == (
        3,
        9,
        3.0,
    )


def test_poisson_batches_read_each_with_a_chance_and_divide_by_the_mean_number(
    federation, tmp_path, monkeypatch
):
    """Two rounds of three clients with three steps of nine examples: 162 chances of
    1/3, so 54 +- 6 at a fixed seed.
    """
    config = make_config(
        PLAIN_REPTILE, {"client_update": {"inner_steps": 3, "batches": "poisson"}}
    )
    rounds, read = rounds_of(config, federation, tmp_path), []
    own = Client.mean

    def spy(self, name, theta, examples, *args, **k):
        read.append(len(examples[1]))
        return own(self, name, theta, examples, *args, **k)

    theta, client = theta_of(rounds), Client(rounds.clients, 0, int(COHORT[0]))
    with monkeypatch.context() as patch:
        patch.setattr(Client, "mean", spy)
        for index in range(2):
            contributions(rounds, theta, index)
    assert len(read) == 18 and len(set(read)) > 2 and abs(sum(read) - 54) < 18
    tasks = held_of(rounds).gather(COHORT)
    x, y = tasks.support_x[0], tasks.support_y[0]
    with rounds.clients._workers.worker() as worker:
        each = torch.empty((len(y), rounds.net.dimension))
        worker.each(theta, x, y, each)
        means = [
            client.mean(TASK, theta, (x[:count], y[:count]), worker)[0]
            for count in (0, 1, 2)
        ]
    assert not means[0].any()
    for count in (1, 2):
        np.testing.assert_allclose(
            means[count], each[:count].sum(0).numpy() / 3, atol=1e-6
        )


@pytest.mark.parametrize("overlay", [REPTILE, PLAIN_REPTILE])
def test_poisson_batches_are_drawn_anew_in_each_step_round_and_client(
    overlay, federation, tmp_path, monkeypatch
):
    """Five rounds of 48 clients of nine examples, three steps of chance 1/3."""
    config = make_config(
        overlay, {"client_update": {"inner_steps": 3, "batches": "poisson"}}
    )
    rounds, read = rounds_of(config, federation, tmp_path), {}
    zeros = np.zeros(rounds.net.dimension, np.float32), np.zeros((1, 2))

    def spy(self, name, theta, examples, worker, step):
        read[self.round, self.client, step] = np.isin(np.arange(9), examples[0])
        return zeros

    def numbered(ids):
        """Numbers of the examples for images and labels."""
        support, query = (
            np.tile(numbers, (len(ids), 1))
            for numbers in (np.arange(3), np.arange(3, 9))
        )
        return TaskBatch(
            support_x=support, support_y=support, query_x=query, query_y=query
        )

    monkeypatch.setattr(Client, "mean", spy)
    monkeypatch.setattr(held_of(rounds), "gather", numbered)
    for index in range(5):
        list(rounds.clients.contributions(theta_of(rounds), np.arange(48), index))
    drawn = np.array(
        [
            [[read[at, client, step] for step in range(3)] for client in range(48)]
            for at in range(5)
        ]
    )
    assert_drawn_anew(drawn, 1 / 3)


def test_the_ledger_of_poisson_batches_says_the_chance_and_a_step_of_nobody_is_noise(
    federation, tmp_path
):
    config = make_config(
        REPTILE, {"client_update": {"inner_steps": 3, "batches": "poisson"}}
    )
    rounds = rounds_of(config, federation, tmp_path)
    theta, client = theta_of(rounds), Client(rounds.clients, 0, int(COHORT[0]))
    tasks = held_of(rounds).gather(COHORT)
    with rounds.clients._workers.worker() as worker:
        noise, found = client.mean(
            TASK, theta, (tasks.support_x[0][:0], tasks.support_y[0][:0]), worker
        )
    entry = rounds.clients.entries[TASK]
    assert found.shape == (0, 2)
    deviation = entry.noise_multiplier * config.within_task.threshold / 3
    assert np.std(noise) == pytest.approx(deviation, rel=0.2)
    contributions(rounds, theta)
    line = read_ledger(tmp_path / "ledger.jsonl")[-1]
    assert (line.sampler["kind"], line.sampler["rate"], line.sampler["steps"]) == (
        "own-records-poisson",
        1 / 3,
        3,
    )
    assert line.denominator == 3.0


def test_a_gradient_that_is_not_finite_counts_as_zero_and_is_counted(
    federation, tmp_path
):
    rounds = rounds_of(make_config(AGRLR), federation, tmp_path)
    rows = torch.zeros((2, rounds.net.dimension))
    rows[0, 0] = float("nan")
    entry = rounds.clients.entries[SUPPORT]
    total = entry.open(0, holder=5)
    total.add(rows)
    assert np.isfinite(entry.end(total)).all() and rounds.non_finite == 1


@pytest.mark.parametrize("overlay", [AGRLR, SAMPLE, REPTILE, LOCAL, PLAIN_REPTILE])
def test_a_run_ends_with_files_and_goes_on_to_the_same_bits(
    overlay, federation, tmp_path, monkeypatch
):
    config = make_config(
        overlay, {"participation": {"rounds": 4}, "validation": {"every": 0}}
    )
    whole = train(config, federation, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 2)):
        train(config, federation, tmp_path / "killed", checkpoint_seconds=0)
    assert train(config, federation, tmp_path / "killed") == whole
    assert (
        json.loads((tmp_path / "killed" / "training.json").read_text())["resumed"] == 1
    )
    lines = read_ledger(tmp_path / "whole" / "ledger.jsonl")
    sums = {
        "dp-agrlr": 3,
        "dp-maml-sample": 2,
        "dp-reptile": 1,
        "local-reptile": 1,
        "reptile": 0,
    }
    assert len(lines) == 4 * sums[config.method]
    # Nothing that no noise protects.
    columns, *rows = (
        line.split(",")
        for line in (tmp_path / "whole" / "history.csv").read_text().splitlines()
    )
    losses = [row[columns.index("loss")] for row in rows]
    assert len(rows) == 4
    if config.method == "reptile":
        assert all(map(float, losses)) and "norm_q50" in columns
    else:
        assert losses == [""] * 4 and not [
            name for name in columns if name.startswith("norm_")
        ]


def test_two_fold_privacy_is_accounted_for_twice(federation, tmp_path):
    """One client against everyone by the server's noise; each example against the
    server by the client's.
    """
    config = make_config(AGRLR)
    train(config, federation, tmp_path)
    found = accounted(config, tmp_path, federation[1])
    (own,) = found["also"]
    assert (found["unit"], own["unit"]) == ("client", "record")
    assert found["profiles"]["holds"]["epsilon_high"] == pytest.approx(
        gaussian_epsilon(1.0, 1e-3), rel=1e-9
    )
    assert own["profiles"]["holds"]["epsilon_high"] == pytest.approx(2.5, rel=1e-3)
    assert own["profiles"]["holds"]["observer"] == "server"


@pytest.mark.parametrize(
    ("overlay", "line"),
    [
        (
            {"model": {"normalisation": "batch"}},
            "model conv4 ties a record's gradient to the others of its batch, but ",
        ),
        (
            {"client_update": {"order": 2}},
            "client_update.order is 2, but the client sums over its own records: ",
        ),
        (
            {"participation": {"kind": "poisson"}},
            "participation.kind is poisson, but within_task accounts for one ",
        ),
        (
            {"within_task": {"epsilon": None}},
            "within_task.multiplier and within_task.epsilon are both null: give one",
        ),
        (
            {"client_update": {"batches": "disjoint"}},
            "unknown key client_update.batches",
        ),
        ({"within_task": None}, "within_task is null"),
    ],
)
def test_what_no_account_covers_is_refused(overlay, line):
    with pytest.raises(BenchError) as caught:
        make_config(AGRLR, overlay)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_an_epsilon_that_no_noise_meets_is_refused(federation, tmp_path):
    config = make_config(AGRLR, {"within_task": {"epsilon": 1e-7, "delta": 1e-12}})
    with pytest.raises(
        BenchError,
        match=r"no noise multiplier up to 10,000 meets within_task\.epsilon 1e-07",
    ):
        rounds_of(config, federation, tmp_path)
