"""Steps of an optimiser on minibatches of a support set (Nichol et al. 2018)."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedbench.evaluation.fine_tuning import fine_tune
from dpfedbench.models.choose import choose
from dpsum.randomness import stream
from tests.dpfedbench.training.conftest import make_config

from .conftest import descend, query_loss, random_weights, sampled_task, scores

NICHOL = {"steps": 7, "rate": 0.02, "optimizer": "adam", "beta1": 0.0, "batch": 2}


@pytest.fixture
def start(dataset):
    """Return the tested network, weights, and the first task of seed 3."""
    net = make_config().tested_net(dataset.image_shape)
    return net, random_weights(net, 2), sampled_task(dataset, 0, seed=3)


def fine_tuned(run, net, theta, task, *, seed, dtype=torch.float32):
    """Return the weights after the run's steps on the task."""
    precision = np.float64 if dtype == torch.float64 else np.float32
    return fine_tune(
        choose(net, dtype=dtype).make(),
        theta.astype(precision),
        task.support_x[0],
        task.support_y[0],
        run,
        rng=np.random.default_rng(seed),
    )[0]


def nichol_positions(rng):
    """Return minibatches of three examples, 7 steps of 2: five passes, the last one
    cut.
    """
    order = np.concatenate([rng.permutation(3) for _ in range(5)])
    return order[:14].reshape(7, 2)


def tuned_by_torch(net, theta, task, positions, *, beta1):
    """Return the weights after torch's Adam at 0.02, in double precision."""
    weights = torch.from_numpy(theta).double().requires_grad_()
    adam = torch.optim.Adam([weights], lr=0.02, betas=(beta1, 0.999))
    images = torch.from_numpy(task.support_x[0]).double()
    labels = torch.from_numpy(task.support_y[0])
    for batch in positions:
        adam.zero_grad()
        logits = net.logits(weights, images[batch])
        torch.nn.functional.cross_entropy(logits, labels[batch]).backward()
        adam.step()
    return weights.detach()


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_fine_tune_takes_torchs_steps_of_adam(start, beta1):
    """At a rate of 0.02 the weights differ by less than a thousandth of a step. Another
    beta1 differs by more than a step.
    """
    net, theta, task = start
    run = make_config({"evaluation": NICHOL | {"beta1": beta1}})
    tuned = fine_tuned(run, net, theta, task, seed=5, dtype=torch.float64)
    positions = nichol_positions(np.random.default_rng(5))
    expected = tuned_by_torch(net, theta, task, positions, beta1=beta1)
    with_wrong_beta = tuned_by_torch(net, theta, task, positions, beta1=0.9 - beta1)
    assert (tuned - expected).abs().max() < 2e-5
    assert (tuned - with_wrong_beta).abs().max() > 0.02


def test_meta_test_scores_what_fine_tune_makes(dataset, start):
    net, theta, task = start
    run = make_config({"seed": 3, "evaluation": NICHOL})
    positions = nichol_positions(stream(3, "test-minibatches/meta-test", 0))
    weights = tuned_by_torch(net, theta, task, positions, beta1=0.0)
    loss = scores(run, dataset, [theta]).losses[0]
    assert loss == pytest.approx(query_loss(net, weights, task), rel=1e-3)


def test_fine_tune_moves_the_adapted_tensors_alone(start):
    net, theta, task = start
    evaluation = make_config({"evaluation": NICHOL}).evaluation
    head_run = SimpleNamespace(evaluation=evaluation, adapted=lambda net: net.head)
    moved = fine_tuned(head_run, net, theta, task, seed=0).numpy() != theta
    size = sum(int(np.prod(net.shapes[name])) for name in net.head)
    assert moved[-size:].mean() > 0.9
    assert not moved[:-size].any()


def test_name_of_the_test_differs_by_optimiser_and_minibatch():
    adam = {"optimizer": "adam"}
    others = ({"beta1": 0.0}, {"schedule": "cosine"}, {"best_step": True})
    changes = (
        {},
        {"batch": 2},
        {"batch": 3},
        adam,
        *(adam | other for other in others),
    )
    runs = [make_config({"evaluation": change}) for change in changes]
    assert len({run.test_name for run in runs}) == len({run.key for run in runs}) == 7


def test_fine_tune_lets_the_rate_fall_on_a_cosine(start):
    """Reference: plain descent at rates 0.2 (1 + cos(pi k / 4)) / 2."""
    net, theta, task = start
    steps = {"steps": 4, "rate": 0.2, "schedule": "cosine"}
    run = make_config({"evaluation": steps})
    tuned = fine_tuned(run, net, theta, task, seed=0, dtype=torch.float64)
    rates = (0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.1 * (1 - 0.5**0.5))
    assert (tuned - descend(net, theta, task, rates)).abs().max() < 1e-6


def test_best_step_scores_the_step_with_most_right_answers(dataset, start):
    """Reference: tests of 0 to 7 steps, one by one. Adam's rate overshoots."""
    _, theta, _ = start
    steps = {"optimizer": "adam", "rate": 0.05}

    def accuracies(**evaluation):
        run = make_config({"evaluation": steps | evaluation})
        return scores(run, dataset, [theta]).accuracies

    by_steps = np.array([accuracies(steps=count) for count in range(8)])
    best = accuracies(steps=7, best_step=True)
    assert np.array_equal(best, by_steps.max(axis=0))
    assert (best > by_steps[-1]).any()
