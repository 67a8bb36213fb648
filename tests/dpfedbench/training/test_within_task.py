"""Record-level sums within tasks: DP-AGRLR, sample-level DP-MAML, DP Reptile."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.data.partition import TaskBatch
from dpfedbench.papers.gbml import TASK
from dpfedbench.training.accounts import account_of
from dpfedbench.training.client_updates.maml import QUERY, SUPPORT
from dpfedbench.training.client_updates.within_task import Client
from dploss.gaussian import gaussian_epsilon

from .conftest import (
    accounted,
    assert_drawn_anew,
    ledger_in,
    make_config,
    rounds_of,
    train,
)

AGRLR = {"method": "dp-agrlr"}
SAMPLE = {"method": "dp-maml-sample"}
REPTILE = {"method": "dp-reptile"}
PLAIN_REPTILE = {"method": "reptile"}
LOCAL = {"method": "local-reptile"}
PLAIN_MAML = {
    "method": "maml",
    "model": {"normalisation": "record"},
    "client_update": {"order": 1, "inner_steps": 2},
}
POISSON = {"client_update": {"inner_steps": 3, "batches": "poisson"}}
COHORT = np.array([3, 7, 11])


def contributions(rounds, theta, index=0):
    chunks = rounds.clients.contributions(theta, COHORT, index)
    return torch.cat([rows.clone() for rows, _ in chunks])


def theta_of(rounds):
    rng = np.random.default_rng(0)
    noise = 0.1 * rng.standard_normal(rounds.net.dimension)
    return (rounds.net.initial(rng) + noise).astype(np.float32)


def gradient(net, weights, x, y):
    """Return the gradient of the mean loss, by autodiff in double precision."""
    weights = weights.clone().requires_grad_()
    logits = net.logits(weights, torch.from_numpy(x).double())
    return torch.autograd.grad(
        functional.cross_entropy(logits, torch.tensor(y)), weights
    )[0]


def held_of(rounds):
    return rounds.clients.setup.held


def assert_close(row, expected):
    assert torch.linalg.norm(row - expected) < 1e-4 * torch.linalg.norm(expected)


def watch_means(monkeypatch, replacement=None):
    """Return a list that receives (client, images, labels) of each sum within a task.

    A `replacement` replaces the result of each sum.
    """
    calls = []
    mean = Client.mean

    def watched(self, name, theta, examples, *args, **options):
        calls.append((self, *examples))
        if replacement is not None:
            return replacement
        return mean(self, name, theta, examples, *args, **options)

    monkeypatch.setattr(Client, "mean", watched)
    return calls


def test_maml_without_privacy_is_first_order_maml_by_autodiff(federation, tmp_path):
    rounds = rounds_of(make_config(PLAIN_MAML), federation, tmp_path)
    theta = theta_of(rounds)
    rows = contributions(rounds, theta)
    tasks = held_of(rounds).gather(COHORT)
    for i in range(len(COHORT)):
        weights = torch.from_numpy(theta).double()
        support = tasks.support_x[i], tasks.support_y[i]
        for _ in range(2):
            weights = weights - 0.1 * gradient(rounds.net, weights, *support)
        query = gradient(rounds.net, weights, tasks.query_x[i], tasks.query_y[i])
        assert_close(rows[i], query)


def test_reptile_sends_the_difference_after_its_steps(federation, tmp_path):
    """Reference: three plain steps along the mean gradient of all nine examples."""
    update = {"inner_steps": 3, "inner_rate": 0.1, "optimizer": "sgd"}
    config = make_config(PLAIN_REPTILE, {"client_update": update})
    rounds = rounds_of(config, federation, tmp_path)
    theta = theta_of(rounds)
    rows = contributions(rounds, theta)
    tasks = held_of(rounds).gather(COHORT)
    for i in range(len(COHORT)):
        x = np.concatenate([tasks.support_x[i], tasks.query_x[i]])
        y = np.concatenate([tasks.support_y[i], tasks.query_y[i]])
        start = torch.from_numpy(theta).double()
        weights = start
        for _ in range(3):
            weights = weights - 0.1 * gradient(rounds.net, weights, x, y)
        assert_close(rows[i], start - weights)


def test_reptile_server_moves_to_the_model_of_a_single_client(federation, tmp_path):
    """Reptile's step is phi <- phi + eps (theta_t - phi): the client's theta_t for eps
    = 1.
    """
    single = {
        "participation": {"cohort": 1, "rounds": 2},
        "client_update": {"inner_rate": 0.05},
    }
    rounds = rounds_of(make_config(PLAIN_REPTILE, single), federation, tmp_path)
    assert rounds.run.server.rate == 1.0
    assert rounds.run.server.optimizer.kind == "sgd"
    for index in range(2):
        before = rounds.theta.clone()
        cohort = rounds.plan.sample_cohort(index)
        ((sent, _),) = rounds.clients.contributions(before.numpy(), cohort, index)
        trained = before - sent[0]
        rounds.round(index)
        assert len(cohort) == 1
        assert (trained - before).norm() > 0.1
        assert torch.allclose(rounds.theta, trained, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("overlay", "records", "rows"),
    [
        (AGRLR, {SUPPORT: 3, QUERY: 6}, 1),
        (SAMPLE, {SUPPORT: 3}, 6),
        (REPTILE, {TASK: 9}, 1),
    ],
)
def test_ledger_has_every_release_within_tasks(
    overlay, records, rows, federation, tmp_path
):
    config = make_config(overlay, {"client_update": {"inner_steps": 2}})
    rounds = rounds_of(config, federation, tmp_path)
    sent = contributions(rounds, theta_of(rounds))
    assert rounds.clients.contributions_per_client == rows
    assert len(sent) == 3 * rows
    assert rounds.server.denominator == 4 * rows  # |D^q| L of Algorithm 2, or L
    ledger = {line.name: line for line in ledger_in(tmp_path)}
    assert set(ledger) == set(records)
    assert len(rounds.log) == len(records)
    for line, releases, _ in rounds.log:
        assert ledger[line.name] == line
        steps = 1 if line.name == QUERY else 2
        assert line.sampler["records"] == records[line.name]
        assert line.sampler["steps"] == steps
        assert {(release.holder, release.step) for release in releases} == {
            (int(client), step) for client in COHORT for step in range(steps)
        }
        for release in releases:
            for field in ("threshold", "sensitivity", "noise_multiplier", "noise_std"):
                assert getattr(release.sum, field) == getattr(line, field)
        assert line.noise_std == line.noise_multiplier * config.within_task.threshold
        assert line.unit == "record"
        assert line.observer == ("everyone" if overlay is SAMPLE else "server")


def test_calibrated_noise_counts_the_support_steps(federation, tmp_path):
    """z_0 for epsilon 2.5 is that of DP-AGRLR's one step. Two steps read the support
    set and cost sqrt(2).
    """
    for steps in (1, 2):
        config = make_config(AGRLR, {"client_update": {"inner_steps": steps}})
        rounds = rounds_of(config, federation, tmp_path)
        (z,) = {
            mechanism.noise_multiplier
            for mechanism in rounds.clients.mechanisms.values()
        }
        assert gaussian_epsilon(z / steps**0.5, 1e-5) == pytest.approx(2.5, rel=1e-3)


@pytest.mark.parametrize("profile", ["claimed", "proven"])
def test_calibrated_noise_is_for_the_epsilon_of_the_profile(
    profile, federation, tmp_path
):
    within = {"multiplier": None, "epsilon": 4.0, "delta": 1e-3, "profile": profile}
    steps = {"client_update": {"inner_steps": 3}}
    config = make_config(REPTILE, {"within_task": within}, steps)
    rounds = rounds_of(config, federation, tmp_path)
    contributions(rounds, theta_of(rounds))
    profiles = account_of(config, ledger_in(tmp_path)).profiles
    epsilons = {name: profiles[name].epsilon_high for name in ("claimed", "proven")}
    assert epsilons.pop(profile) == pytest.approx(4.0, rel=1e-3)
    assert abs(epsilons.popitem()[1] - 4.0) > 0.1


@pytest.mark.parametrize(
    ("overlay", "noise", "releases"),
    [
        (
            AGRLR | {"client_update": {"inner_steps": 2}},
            {"within_task": {"threshold": 1e-6, "multiplier": 3e6}},
            3,
        ),
        (LOCAL, {"own_update": {"threshold": 1e-6, "multiplier": 1.5e6}}, 1),
    ],
)
def test_noise_within_tasks_has_the_stated_size_and_is_never_used_twice(
    overlay, noise, releases, federation, tmp_path
):
    """The standard deviation is within 5 % over 15,000 draws (five deviations are 3 %).

    A client's update of its own always takes part, so its noise is 2 z C.
    """
    rounds = rounds_of(make_config(overlay, noise), federation, tmp_path)
    theta = theta_of(rounds)
    contributions(rounds, theta, 0)
    contributions(rounds, theta, 1)
    # [2 rounds x 3 clients x releases, d], deviation 3
    vectors = np.concatenate(
        [line.denominator * means for line, _, means in rounds.log]
    )
    assert len(vectors) == 6 * releases
    assert vectors.std() == pytest.approx(3.0, rel=0.05)
    correlations = np.corrcoef(vectors) - np.eye(len(vectors))
    assert abs(correlations).max() < 5.5 / vectors.shape[1] ** 0.5


@pytest.mark.parametrize("overlay", [AGRLR, SAMPLE])
def test_support_set_reaches_a_contribution_through_its_noised_sum_alone(
    overlay, federation, tmp_path, monkeypatch
):
    """Property 11: with the support's release held fixed, other support images change
    nothing.
    """
    rounds = rounds_of(make_config(overlay), federation, tmp_path)
    theta = theta_of(rounds)
    free = contributions(rounds, theta)
    release = np.full(rounds.net.dimension, 1e-3, np.float32), np.zeros(3)
    mean = Client.mean

    def fixed(self, name, *args, **options):
        return release if name == SUPPORT else mean(self, name, *args, **options)

    monkeypatch.setattr(Client, "mean", fixed)
    before = contributions(rounds, theta)
    assert not torch.equal(before, free)
    held = held_of(rounds)
    gather = held.gather

    def changed(ids):
        tasks = gather(ids)
        tasks.support_x[:] = 0.5
        return tasks

    monkeypatch.setattr(held, "gather", changed)
    assert torch.equal(before, contributions(rounds, theta))


# Batches of a client's steps


def test_disjoint_batches_read_each_example_once(federation, tmp_path, monkeypatch):
    batches = {"client_update": {"inner_steps": 3, "batches": "disjoint"}}
    rounds = rounds_of(make_config(REPTILE, batches), federation, tmp_path)
    calls = watch_means(monkeypatch)
    contributions(rounds, theta_of(rounds))
    tasks = held_of(rounds).gather(COHORT)
    for i, number in enumerate(COHORT):
        read = [images for client, images, _ in calls if client.client == number]
        assert [len(images) for images in read] == [3, 3, 3]
        examples = np.concatenate([tasks.support_x[i], tasks.query_x[i]])
        assert sorted(map(bytes, np.concatenate(read))) == sorted(map(bytes, examples))
    (line,) = ledger_in(tmp_path)
    assert line.sampler["cohort"] == 3
    assert line.sampler["records"] == 9
    assert line.denominator == 3.0


def test_poisson_batches_are_divided_by_their_mean_size(
    federation, tmp_path, monkeypatch
):
    """Two rounds of three clients with three steps of nine examples: 162 draws of 1/3,
    so 54 +- 6 at a fixed seed.
    """
    rounds = rounds_of(make_config(PLAIN_REPTILE, POISSON), federation, tmp_path)
    theta = theta_of(rounds)
    with monkeypatch.context() as patch:
        calls = watch_means(patch)
        for index in range(2):
            contributions(rounds, theta, index)
    sizes = [len(labels) for _, _, labels in calls]
    assert len(sizes) == 18
    assert len(set(sizes)) > 2
    assert abs(sum(sizes) - 54) < 18
    client = Client(rounds.clients, 0, int(COHORT[0]))
    tasks = held_of(rounds).gather(COHORT)
    x = tasks.support_x[0]
    y = tasks.support_y[0]
    with rounds.clients._workers.worker() as worker:
        gradients = torch.empty((len(y), rounds.net.dimension))
        worker.record_gradients(theta, x, y, gradients)
        for count in (0, 1, 2):
            batch = x[:count], y[:count]
            mean = client.mean(TASK, theta, batch, worker)[0]
            expected = gradients[:count].sum(0).numpy() / 3
            np.testing.assert_allclose(mean, expected, atol=1e-6)


@pytest.mark.parametrize("overlay", [REPTILE, PLAIN_REPTILE])
def test_poisson_batches_are_drawn_anew_in_each_step_round_and_client(
    overlay, federation, tmp_path, monkeypatch
):
    """Five rounds of 48 clients of nine examples, three steps of chance 1/3."""
    rounds = rounds_of(make_config(overlay, POISSON), federation, tmp_path)
    zeros = np.zeros(rounds.net.dimension, np.float32), np.zeros(1)
    numbers = np.arange(9)

    def gather(ids):
        """Return the numbers of the examples as images and labels."""
        tiled = np.tile(numbers, (len(ids), 1))
        support = tiled[:, :3]
        query = tiled[:, 3:]
        return TaskBatch(
            support_x=support, support_y=support, query_x=query, query_y=query
        )

    calls = watch_means(monkeypatch, replacement=zeros)
    monkeypatch.setattr(held_of(rounds), "gather", gather)
    theta = theta_of(rounds)
    for index in range(5):
        list(rounds.clients.contributions(theta, np.arange(48), index))
    calls.sort(key=lambda call: (call[0].round, call[0].client))
    drawn = np.array([np.isin(numbers, images) for _, images, _ in calls])
    assert_drawn_anew(drawn.reshape(5, 48, 3, 9), 1 / 3)


def test_empty_poisson_batch_is_noised_and_the_rate_is_in_the_ledger(
    federation, tmp_path
):
    config = make_config(REPTILE, POISSON)
    rounds = rounds_of(config, federation, tmp_path)
    theta = theta_of(rounds)
    client = Client(rounds.clients, 0, int(COHORT[0]))
    tasks = held_of(rounds).gather(COHORT)
    empty = tasks.support_x[0][:0], tasks.support_y[0][:0]
    with rounds.clients._workers.worker() as worker:
        noise, _ = client.mean(TASK, theta, empty, worker)
    multiplier = rounds.clients.mechanisms[TASK].noise_multiplier
    deviation = multiplier * config.within_task.threshold / 3
    assert np.std(noise) == pytest.approx(deviation, rel=0.2)
    contributions(rounds, theta)
    line = ledger_in(tmp_path)[-1]
    assert line.sampler["kind"] == "within-task-poisson"
    assert line.sampler["rate"] == 1 / 3
    assert line.sampler["steps"] == 3
    assert line.denominator == 3.0


def test_not_finite_gradient_within_a_task_counts_as_zero_and_is_counted(
    federation, tmp_path
):
    rounds = rounds_of(make_config(AGRLR), federation, tmp_path)
    rows = torch.zeros((2, rounds.net.dimension))
    rows[0, 0] = float("nan")
    mechanism = rounds.clients.mechanisms[SUPPORT]
    total = mechanism.begin_round(0, holder=5)
    total.add(rows)
    assert np.isfinite(mechanism.finish(total)).all()
    assert rounds.non_finite == 1


def test_two_fold_privacy_is_accounted_for_twice(federation, tmp_path):
    """The server's noise protects a client against everyone; the client's noise
    protects each example against the server.
    """
    config = make_config(AGRLR)
    train(config, federation, tmp_path)
    clients = accounted(config, tmp_path, federation[1])
    (records,) = clients["also"]
    assert clients["unit"] == "client"
    assert records["unit"] == "record"
    client_epsilon = clients["profiles"]["proven"]["epsilon_high"]
    assert client_epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-3), rel=1e-9)
    proof = records["profiles"]["proven"]
    assert proof["epsilon_high"] == pytest.approx(2.5, rel=1e-3)
    assert proof["observer"] == "server"
