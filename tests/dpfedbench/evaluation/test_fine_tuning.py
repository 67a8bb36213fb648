"""Steps of an optimiser on minibatches of a support set (Nichol et al. 2018)."""

import numpy as np
import pytest
import torch

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import gather, sample_tasks
from dpfedbench.evaluation.fine_tuning import fine_tune, minibatches
from dpfedbench.models.choose import choose
from dpsum.randomness import stream
from tests.dpfedbench.evaluation.test_few_shot import drawn, scores
from tests.dpfedbench.federation.conftest import make_config

NICHOL = {"steps": 7, "rate": 0.02, "optimizer": "adam", "beta1": 0.0, "batch": 2}


def test_minibatches_read_the_whole_set_once_in_each_pass():
    """Ten steps of 4 of 10 examples are four passes, and a step may cross two."""
    rng = np.random.default_rng(0)
    positions = minibatches(rng, examples=10, size=4, steps=10)
    assert positions.shape == (10, 4)
    passes = positions.reshape(4, 10)
    assert [sorted(one) for one in passes.tolist()] == [list(range(10))] * 4
    assert len({tuple(one) for one in passes.tolist()}) == 4
    assert len(minibatches(rng, examples=10, size=4, steps=0)) == 0


def test_minibatches_of_the_whole_set_keep_its_order():
    rng = np.random.default_rng(0)
    positions = minibatches(rng, examples=3, size=None, steps=2)
    assert positions.tolist() == [[0, 1, 2], [0, 1, 2]]


def first_task(dataset, seed, ways=3):
    sampled = sample_tasks(
        dataset,
        "test",
        count=5,
        ways=ways,
        shots=1,
        query_per_class=3,
        seed=seed,
        purpose="meta-test",
    )
    return gather(
        dataset, sampled, np.array([0]), support_per_class=1, query_per_class=3
    )


def tuned_by_torch(net, theta, task, positions, *, rate, beta1):
    """The weights after torch's own Adam, in double precision."""
    weights = torch.from_numpy(theta).double().requires_grad_()
    adam = torch.optim.Adam([weights], lr=rate, betas=(beta1, 0.999))
    for some in positions:
        adam.zero_grad()
        logits = net.logits(weights, torch.from_numpy(task.support_x[0][some]).double())
        labels = torch.from_numpy(task.support_y[0][some])
        torch.nn.functional.cross_entropy(logits, labels).backward()
        adam.step()
    return weights.detach()


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_fine_tune_takes_torchs_steps_of_adam(federation, beta1):
    """At a rate of 0.02 both differ by less than a step's thousandth; another beta1
    by more than a step.
    """
    run = make_config({"seed": 3, "evaluation": NICHOL | {"beta1": beta1}})
    dataset = load_dataset(federation[0])
    net, task = run.tested_net(dataset.image_shape), first_task(dataset, 3)
    theta = drawn(net, 2)
    found = fine_tune(
        choose(net, dtype=torch.float64).make(),
        theta.astype(np.float64),
        task.support_x[0],
        task.support_y[0],
        run,
        rng=np.random.default_rng(5),
    )[0]
    # Three examples, 7 steps of 2: five passes, of which the last is cut.
    rng = np.random.default_rng(5)
    order = np.concatenate([rng.permutation(3) for _ in range(5)])[:14].reshape(7, 2)
    wanted, other = (
        tuned_by_torch(net, theta, task, order, rate=0.02, beta1=beta)
        for beta in (beta1, 0.9 - beta1)
    )
    assert (found - wanted).abs().max() < 2e-5
    assert (found - other).abs().max() > 0.02


def test_the_meta_test_scores_what_fine_tune_makes(federation):
    run = make_config({"seed": 3, "evaluation": NICHOL})
    dataset = load_dataset(federation[0])
    net, task = run.tested_net(dataset.image_shape), first_task(dataset, 3)
    theta = drawn(net, 2)
    found = scores(run, dataset, [theta])
    rng = stream(3, "test-minibatches/meta-test", 0)
    order = np.concatenate([rng.permutation(3) for _ in range(5)])[:14].reshape(7, 2)
    weights = tuned_by_torch(net, theta, task, order, rate=0.02, beta1=0.0)
    logits = net.logits(weights, torch.from_numpy(task.query_x[0]).double())
    wanted = torch.nn.functional.cross_entropy(
        logits, torch.from_numpy(task.query_y[0])
    )
    assert found.losses[0] == pytest.approx(wanted.item(), rel=1e-3)
    again = scores(run, dataset, [theta], threads=3)
    assert np.array_equal(found.losses, again.losses)


def test_only_the_adapted_tensors_move(federation):
    run = make_config({"evaluation": NICHOL})
    dataset = load_dataset(federation[0])
    net, task = run.tested_net(dataset.image_shape), first_task(dataset, 0)
    theta, head = drawn(net, 2), net.head

    class OfHead:
        evaluation = run.evaluation

        @staticmethod
        def adapted(net):
            return head

    found = fine_tune(
        choose(net).make(),
        theta,
        task.support_x[0],
        task.support_y[0],
        OfHead(),
        rng=np.random.default_rng(0),
    )[0]
    moved = found.numpy() != theta
    size = sum(int(np.prod(net.shapes[name])) for name in head)
    assert moved[-size:].mean() > 0.9 and not moved[:-size].any()


def test_learnt_rates_are_not_those_of_another_optimiser(federation):
    """Adam's steps from the same weights are the same, whatever rates were learnt."""
    dataset = load_dataset(federation[0])
    learnt, plain = (
        make_config({"client_update": {"learnable_rates": flag}, "evaluation": NICHOL})
        for flag in (True, False)
    )
    net, task = plain.tested_net(dataset.image_shape), first_task(dataset, 3)
    theta = drawn(net, 2)
    with_rates = learnt.tested_net(dataset.image_shape)
    rates = np.full(with_rates.dimension - net.dimension, 7.0, np.float32)
    tuned = [
        fine_tune(
            choose(tested).make(),
            weights,
            task.support_x[0],
            task.support_y[0],
            run,
            rng=np.random.default_rng(1),
        )
        for tested, weights, run in (
            (net, theta, plain),
            (with_rates, np.concatenate([theta, rates]), learnt),
        )
    ]
    assert torch.equal(*tuned)


def test_the_tests_name_tells_optimisers_and_minibatches_apart():
    changes = (
        {},
        {"optimizer": "adam"},
        {"optimizer": "adam", "beta1": 0.0},
        {"optimizer": "adam", "schedule": "cosine"},
        {"optimizer": "adam", "best_step": True},
        {"batch": 2},
        {"batch": 3},
    )
    runs = [make_config({"evaluation": change}) for change in changes]
    assert len({run.test_name for run in runs}) == len({run.key for run in runs}) == 7


def test_fine_tune_lets_the_rate_fall_on_a_cosine(federation):
    """Plain descent by hand, at rates 0.2 (1 + cos(pi k / 4)) / 2."""
    steps = {"steps": 4, "rate": 0.2, "schedule": "cosine"}
    run = make_config({"seed": 3, "evaluation": steps})
    dataset = load_dataset(federation[0])
    net, task = run.tested_net(dataset.image_shape), first_task(dataset, 3)
    theta = drawn(net, 2)
    found = fine_tune(
        choose(net, dtype=torch.float64).make(),
        theta.astype(np.float64),
        task.support_x[0],
        task.support_y[0],
        run,
        rng=np.random.default_rng(0),
    )[0]
    weights = torch.from_numpy(theta).double()
    images, labels = map(torch.from_numpy, (task.support_x[0], task.support_y[0]))
    for rate in (0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.1 * (1 - 0.5**0.5)):
        weights = weights.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(
            net.logits(weights, images.double()), labels
        )
        weights = weights - rate * torch.autograd.grad(loss, weights)[0]
    assert (found - weights.detach()).abs().max() < 1e-6


def test_best_step_scores_the_step_with_most_right_answers(federation):
    """Beside the tests of 0 to 7 steps, one by one; Adam at a rate that overshoots."""
    steps = {"optimizer": "adam", "rate": 0.05}
    dataset = load_dataset(federation[0])
    net = make_config().tested_net(dataset.image_shape)
    theta = drawn(net, 2)
    by_steps = [
        scores(make_config({"evaluation": steps | {"steps": count}}), dataset, [theta])
        for count in range(8)
    ]
    honest = np.array([one.accuracies for one in by_steps])
    best = make_config({"evaluation": steps | {"steps": 7, "best_step": True}})
    found = scores(best, dataset, [theta]).accuracies
    assert np.array_equal(found, honest.max(axis=0))
    assert (found > honest[-1]).any()
