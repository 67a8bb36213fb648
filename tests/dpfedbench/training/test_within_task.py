"""Clients with tasks: MAML, Reptile, and record-level sums within a task."""

from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.data.partition import TaskBatch
from dpfedbench.papers.gbml import TASK
from dpfedbench.training.client_updates.maml import QUERY, SUPPORT, Maml
from dpfedbench.training.client_updates.within_task import Turn
from dpsum.randomness import stream

from .conftest import assert_drawn_anew, ledger_in, make_config, rounds_of

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
TWO_STEPS = {"client_update": {"inner_steps": 2}}
POISSON = {"client_update": {"inner_steps": 3, "batches": "poisson"}}
COHORT = np.array([3, 7, 11])


@pytest.fixture
def make_rounds(federation, tmp_path):
    """Return a function that makes (rounds, weights near the initial ones)."""

    def make(*overlays):
        rounds = rounds_of(make_config(*overlays), federation, tmp_path)
        rng = np.random.default_rng(0)
        noise = 0.1 * rng.standard_normal(rounds.net.dimension)
        return rounds, (rounds.net.initial(rng) + noise).astype(np.float32)

    return make


def contributions(rounds, theta, index=0):
    chunks = rounds.clients.contributions(theta, COHORT, index)
    return torch.cat([rows.clone() for rows, _ in chunks])


def gradient(net, weights, x, y):
    """Return the gradient of the mean loss, by autodiff in double precision."""
    weights = weights.clone().requires_grad_()
    logits = net.logits(weights, torch.from_numpy(x).double())
    loss = functional.cross_entropy(logits, torch.tensor(y))
    return torch.autograd.grad(loss, weights)[0]


def moved(net, weights, x, y, steps):
    """Return weights after steps of rate 0.1 along the mean gradient."""
    for _ in range(steps):
        weights = weights - 0.1 * gradient(net, weights, x, y)
    return weights


def held_of(rounds):
    return rounds.clients.setup.held


def assert_close(row, expected):
    assert torch.linalg.norm(row - expected) < 1e-4 * torch.linalg.norm(expected)


def mean_of(rounds, theta, count):
    """Return what a client's sum over its first examples releases."""
    tasks = held_of(rounds).gather(COHORT)
    batch = tasks.support_x[0][:count], tasks.support_y[0][:count]
    mechanisms = rounds.clients.mechanisms
    client = Turn(mechanisms, 0, int(COHORT[0]), theta, batch, batch)
    with rounds.clients._workers.worker() as worker:
        return client.mean(TASK, theta, batch, worker)[0].copy()


def watch_means(monkeypatch, **options):
    """Return the list of calls of `Turn.mean`; the options are those of a mock."""
    spy = mock.create_autospec(Turn.mean, **options)
    monkeypatch.setattr(Turn, "mean", spy)
    return spy.call_args_list


def test_maml_without_privacy_is_first_order_maml_by_autodiff(make_rounds):
    rounds, theta = make_rounds(PLAIN_MAML)
    tasks = held_of(rounds).gather(COHORT)
    for i, row in enumerate(contributions(rounds, theta)):
        start = torch.from_numpy(theta).double()
        support = tasks.support_x[i], tasks.support_y[i]
        weights = moved(rounds.net, start, *support, steps=2)
        query = gradient(rounds.net, weights, tasks.query_x[i], tasks.query_y[i])
        assert_close(row, query)


def test_reptile_sends_the_difference_after_its_steps(make_rounds):
    """Reference: three plain steps along the mean gradient of all nine examples."""
    update = {"inner_steps": 3, "inner_rate": 0.1, "optimizer": "sgd"}
    rounds, theta = make_rounds(PLAIN_REPTILE, {"client_update": update})
    tasks = held_of(rounds).gather(COHORT)
    for i, row in enumerate(contributions(rounds, theta)):
        x = np.concatenate([tasks.support_x[i], tasks.query_x[i]])
        y = np.concatenate([tasks.support_y[i], tasks.query_y[i]])
        start = torch.from_numpy(theta).double()
        assert_close(row, start - moved(rounds.net, start, x, y, steps=3))


@pytest.mark.parametrize(
    ("overlay", "rows", "steps", "observer"),
    [
        (AGRLR, 1, {SUPPORT: 2, QUERY: 1}, "server"),
        (SAMPLE, 6, {SUPPORT: 2}, "everyone"),
        (REPTILE, 1, {TASK: 2}, "server"),
    ],
)
def test_ledger_has_every_release_within_tasks(
    overlay, rows, steps, observer, make_rounds, tmp_path
):
    rounds, theta = make_rounds(overlay, TWO_STEPS)
    assert len(contributions(rounds, theta)) == 3 * rows
    assert rounds.sums.model_sum.denominator == 4 * rows  # |D^q| L of Algorithm 2, or L
    assert ledger_in(tmp_path) == [line for line, _, _ in rounds.log]
    assert {line.name: line.sampler["steps"] for line, _, _ in rounds.log} == steps
    for line, releases, _ in rounds.log:
        assert {(release.holder, release.step) for release in releases} == {
            (int(client), step) for client in COHORT for step in range(steps[line.name])
        }
        assert (line.unit, line.observer) == ("record", observer)


@pytest.mark.parametrize(
    ("overlay", "section", "multiplier", "releases"),
    [(AGRLR | TWO_STEPS, "within_task", 3e6, 3), (LOCAL, "own_update", 1.5e6, 1)],
)
def test_noise_within_tasks_has_the_stated_size_and_is_never_used_twice(
    overlay, section, multiplier, releases, make_rounds
):
    """15,000 draws: five deviations are 3 %. A client's update of its own always takes
    part, so its noise is 2 z C.
    """
    noise = {section: {"threshold": 1e-6, "multiplier": multiplier}}
    rounds, theta = make_rounds(overlay, noise)
    contributions(rounds, theta, 0)
    contributions(rounds, theta, 1)
    # [2 rounds x 3 clients x releases, d], deviation 3
    sums = [line.denominator * means for line, _, means in rounds.log]
    vectors = np.concatenate(sums)
    assert len(vectors) == 6 * releases
    assert vectors.std() == pytest.approx(3.0, rel=0.05)
    correlations = np.corrcoef(vectors) - np.eye(len(vectors))
    assert abs(correlations).max() < 5.5 / vectors.shape[1] ** 0.5


@pytest.mark.parametrize("overlay", [AGRLR, SAMPLE])
def test_support_set_reaches_a_contribution_through_its_noised_sum_alone(
    overlay, make_rounds, monkeypatch
):
    """Property 11: with the support's release fixed, its images change nothing."""
    rounds, theta = make_rounds(overlay)
    free = contributions(rounds, theta)
    release = np.full(rounds.net.dimension, 1e-3, np.float32), np.zeros(3)
    mean = Turn.mean

    def fixed(self, name, *args, **options):
        return release if name == SUPPORT else mean(self, name, *args, **options)

    monkeypatch.setattr(Turn, "mean", fixed)
    # A round is released once, so that each trial has rounds of its own.
    rounds, _ = make_rounds(overlay)
    before = contributions(rounds, theta)
    assert not torch.equal(before, free)
    rounds, _ = make_rounds(overlay)
    held = held_of(rounds)
    gather = held.gather

    def changed(ids):
        tasks = gather(ids)
        tasks.support_x[:] = 0.5
        return tasks

    monkeypatch.setattr(held, "gather", changed)
    assert torch.equal(before, contributions(rounds, theta))


def test_disjoint_batches_read_each_example_once(make_rounds, monkeypatch, tmp_path):
    batches = {"client_update": {"inner_steps": 3, "batches": "disjoint"}}
    rounds, theta = make_rounds(REPTILE, batches)
    calls = watch_means(monkeypatch, side_effect=Turn.mean)
    contributions(rounds, theta)
    tasks = held_of(rounds).gather(COHORT)
    for i, number in enumerate(COHORT):
        read = [call.args[3][0] for call in calls if call.args[0].client == number]
        assert [len(images) for images in read] == [3, 3, 3]
        examples = np.concatenate([tasks.support_x[i], tasks.query_x[i]])
        assert sorted(map(bytes, np.concatenate(read))) == sorted(map(bytes, examples))
    (line,) = ledger_in(tmp_path)
    assert (line.sampler["cohort"], line.sampler["records"]) == (3, 9)
    assert line.denominator == 3.0


def test_poisson_batches_are_divided_by_their_mean_size(make_rounds):
    rounds, theta = make_rounds(PLAIN_REPTILE, POISSON)
    tasks = held_of(rounds).gather(COHORT)
    gradients = torch.empty((3, rounds.net.dimension))
    with rounds.clients._workers.worker() as worker:
        worker.record_gradients(
            theta, tasks.support_x[0], tasks.support_y[0], gradients
        )
    for count in (0, 1, 2):
        expected = gradients[:count].sum(0).numpy() / 3
        np.testing.assert_allclose(mean_of(rounds, theta, count), expected, atol=1e-6)


@pytest.mark.parametrize("overlay", [REPTILE, PLAIN_REPTILE])
def test_poisson_batches_are_drawn_anew_in_each_step_round_and_client(
    overlay, make_rounds, monkeypatch
):
    """Five rounds of 48 clients of nine examples, three steps of chance 1/3."""
    rounds, theta = make_rounds(overlay, POISSON)
    numbers = np.arange(9)

    def gather(ids):
        """Return the numbers of the examples as images and labels."""
        support, query = np.split(np.tile(numbers, (len(ids), 1)), [3], axis=1)
        labels = {"support_y": support, "query_y": query}
        return TaskBatch(support_x=support, query_x=query, **labels)

    zeros = np.zeros(rounds.net.dimension, np.float32), np.zeros(1)
    calls = watch_means(monkeypatch, return_value=zeros)
    monkeypatch.setattr(held_of(rounds), "gather", gather)
    for index in range(5):
        list(rounds.clients.contributions(theta, np.arange(48), index))
    calls = sorted(calls, key=lambda call: (call.args[0].round, call.args[0].client))
    drawn = np.array([np.isin(numbers, call.args[3][0]) for call in calls])
    assert_drawn_anew(drawn.reshape(5, 48, 3, 9), 1 / 3)


def test_empty_poisson_batch_is_noised_and_the_rate_is_in_the_ledger(
    make_rounds, tmp_path
):
    rounds, theta = make_rounds(REPTILE, POISSON)
    mechanism = rounds.clients.mechanisms[TASK]
    deviation = mechanism.noise_multiplier * rounds.run.within_task.threshold / 3
    assert np.std(mean_of(rounds, theta, 0)) == pytest.approx(deviation, rel=0.2)
    rounds, _ = make_rounds(REPTILE, POISSON)
    contributions(rounds, theta)
    line = ledger_in(tmp_path)[-1]
    stated = {"kind": "within-task-poisson", "rate": 1 / 3, "steps": 3}
    assert stated.items() <= line.sampler.items()
    assert line.denominator == 3.0


def test_not_finite_gradient_within_a_task_counts_as_zero_and_is_counted(make_rounds):
    rounds, _ = make_rounds(AGRLR)
    rows = torch.zeros((2, rounds.net.dimension))
    rows[0, 0] = float("nan")
    mechanism = rounds.clients.mechanisms[SUPPORT]
    total = mechanism.begin_round(0, holder=5)
    total.add(rows)
    assert np.isfinite(mechanism.finish(total)).all()
    assert rounds.non_finite == 1


def test_maml_step_weights_are_those_of_the_authors_code():
    """K = 5 over 10 rounds: 1/5 each at first, 0.1 and 0.6 half-way, at least 3 % of
    1/5, and the last weight alone at the end.
    """
    maml = Maml(inner_steps=5, inner_rate=0.1, order=2, multi_step_rounds=10)
    np.testing.assert_allclose(maml.step_weights(0), [0.2] * 5)
    np.testing.assert_allclose(maml.step_weights(5), [0.1] * 4 + [0.6])
    np.testing.assert_allclose(maml.step_weights(9), [0.02] * 4 + [0.92])
    assert maml.step_weights(10) is None
    late = maml.replace(multi_step_rounds=1000).step_weights(999)
    np.testing.assert_allclose(late[0], 0.006)


def test_learnt_rates_are_clipped_and_noised_with_the_weights(make_rounds):
    """One client: its vector cut to C is the release less the noise of the stream."""
    overlay = {
        "client_update": {"learnable_rates": True, "inner_steps": 2},
        "participation": {"cohort": 1, "rounds": 3},
        "clipping": {"kind": "constant", "threshold": 0.01},
        "server": {"rate": 1.0, "optimizer": "sgd"},
    }
    rounds, _ = make_rounds(overlay)
    net = rounds.net
    assert net.dimension - net.weights == 2 * len(net.tensor_names)
    for index in range(2):
        before = rounds.theta.clone()
        cohort = rounds.plan.sample_cohort(index)
        ((sent, _),) = rounds.clients.contributions(before.numpy(), cohort, index)
        contribution = sent[0].double().numpy().copy()
        rounds.round(index)
        line, _, (mean,) = rounds.log[-1]
        assert line.dimension == net.dimension
        assert line.noise_stream == f"0/noise/{index}"
        noise = stream(0, "noise", index).standard_normal(net.dimension)
        norm = np.linalg.norm(contribution)
        assert norm > 0.01
        assert contribution[net.weights :].any()
        clipped = contribution * 0.01 / norm
        assert mean - 1.0 * 0.01 * noise == pytest.approx(clipped, abs=1e-8)
        moved_by = (before - rounds.theta).numpy()
        np.testing.assert_allclose(moved_by, mean, rtol=0, atol=1e-6)
