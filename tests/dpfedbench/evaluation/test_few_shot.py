"""The meta-test: tasks, votes of an ensemble, steps of each optimiser and splits, each
by hand in double precision.
"""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import gather, sample_tasks
from dpfedbench.evaluation import few_shot
from dpfedbench.evaluation.fine_tuning import fine_tune
from dpfedbench.models.choose import choose
from dpfedbench.models.members import save_members
from dpsum.randomness import stream
from tests.dpfedbench.training.conftest import make_config

TASKS = 5
NICHOL = {"steps": 7, "rate": 0.02, "optimizer": "adam", "beta1": 0.0, "batch": 2}
"""Steps of an optimiser on minibatches of a support set (Nichol et al. 2018)."""


@pytest.fixture
def dataset(federation):
    return load_dataset(federation[0])


@pytest.fixture
def net(dataset):
    return make_config().tested_net(dataset.image_shape)


def random_weights(net, seed):
    """Return initial weights with added noise."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(net.dimension)
    return (net.initial(rng) + 0.3 * noise).astype(np.float32)


@pytest.fixture
def theta(net):
    return random_weights(net, 2)


def scores(run, dataset, members, **options):
    """Return the scores of an ensemble on tasks of the test split."""
    choice = options.pop("choice", choose(run.tested_net(dataset.image_shape)))
    drawn = {"split": "test", "tasks": TASKS, "purpose": "meta-test"}
    drawn |= {name: options.pop(name) for name in drawn if name in options}
    tasks = few_shot.draw_tasks(dataset, run, **drawn)
    numbers = np.arange(drawn["tasks"])
    return few_shot.adapted_scores(
        choice, members, run, tasks, numbers, purpose=drawn["purpose"], **options
    )


def sampled_tasks(dataset, seed):
    """Return tasks of the test split, three ways and one shot: (support set, query set),
    each (images, labels).
    """
    size = {"query_per_class": 3}
    drawn = {"count": TASKS, "ways": 3, "shots": 1, "seed": seed}
    tasks = sample_tasks(dataset, "test", purpose="meta-test", **drawn, **size)
    batch = gather(dataset, tasks, np.arange(TASKS), support_per_class=1, **size)
    support_x, support_y, query_x, query_y = map(torch.from_numpy, vars(batch).values())
    support_sets = zip(support_x.double(), support_y, strict=True)
    query_sets = zip(query_x.double(), query_y, strict=True)
    return list(zip(support_sets, query_sets, strict=True))


def mean_loss(net, weights, records):
    images, labels = records
    return cross_entropy(net.logits(weights, images), labels)


def descend(net, theta, support, rates):
    """Return the weights after steps on the support set."""
    weights = torch.from_numpy(theta).double()
    for rate in rates:
        weights = weights.detach().requires_grad_()
        loss = mean_loss(net, weights, support)
        weights = weights - rate * torch.autograd.grad(loss, weights)[0]
    return weights.detach()


def test_ensemble_votes_by_its_mean_probability(dataset, net):
    config = make_config({"evaluation": {"steps": 0}})
    members = [random_weights(net, seed) for seed in (0, 1)]
    result = scores(config, dataset, members)
    for index, (_, (images, labels)) in enumerate(sampled_tasks(dataset, seed=0)):
        first, second = (
            torch.softmax(net.logits(torch.from_numpy(theta).double(), images), dim=1)
            for theta in members
        )
        mean = (first + second) / 2
        accuracy = (mean.argmax(dim=1) == labels).double().mean().item()
        assert result.accuracies[index] == accuracy
        loss = torch.nn.functional.nll_loss(torch.log(mean), labels).item()
        assert result.losses[index] == pytest.approx(loss, rel=1e-5)


def test_steps_are_gradient_descent_on_the_support_set(dataset, net, theta):
    config = make_config({"seed": 3, "evaluation": {"steps": 2, "rate": 0.1}})
    losses = [
        mean_loss(net, descend(net, theta, support, [0.1, 0.1]), query).item()
        for support, query in sampled_tasks(dataset, seed=3)
    ]
    result = scores(config, dataset, [theta])
    assert result.losses == pytest.approx(losses, rel=1e-4)


def test_methods_are_tested_on_the_same_tasks(dataset, theta):
    runs = make_config(), make_config({"method": "maml"})
    losses = [scores(run, dataset, [theta]).losses for run in runs]
    assert np.array_equal(*losses)


def test_few_shot_measures_read_their_own_split_alone(
    federation, dataset, net, tmp_path, monkeypatch
):
    run = make_config()
    theta = random_weights(net, 4)
    save_members(tmp_path / "model.safetensors", net, [theta])
    paths = {
        "data_dir": federation[0],
        "model_path": tmp_path / "model.safetensors",
        "out_path": tmp_path / "metrics.json",
    }

    def measures(split=None):
        """Return what validation and test measure, with noise in place of a split."""
        images = dataset.images.copy()
        classes = dataset.splits.get(split, [])
        rng = np.random.default_rng(9)
        images[classes] = rng.integers(256, size=images[classes].shape)
        noisy = dataclasses.replace(dataset, images=images)
        validation = few_shot.FewShotMeasures(
            run=run, dataset=noisy, choice=choose(net), threads=1
        )
        monkeypatch.setattr(few_shot, "load_dataset", lambda folder: noisy)
        few_shot.meta_test(run, **paths)
        return validation.validate(theta), json.loads(paths["out_path"].read_text())

    validated, tested = measures()
    assert measures("train") == (validated, tested)
    assert measures("validation")[1] == tested
    assert measures("validation")[0] != validated
    assert measures("test")[0] == validated
    assert measures("test")[1] != tested


@pytest.mark.parametrize(
    "evaluation",
    [{"steps": 3}, {"steps": 3, "optimizer": "adam", "batch": 2}, {"best_step": True}],
)
@pytest.mark.parametrize("normalisation", ["batch", "record"])
def test_tasks_computed_together_score_as_alone(dataset, evaluation, normalisation):
    """Scores are equal to the bit, for each number of tasks at once and of threads."""
    config = make_config(
        {"evaluation": evaluation, "model": {"normalisation": normalisation}}
    )
    net = config.tested_net(dataset.image_shape)
    members = [random_weights(net, seed) for seed in (0, 1)]

    def together(count, threads=1):
        choice = choose(net)._replace(tasks=count)
        options = {"tasks": 7, "choice": choice, "threads": threads}
        return vars(scores(config, dataset, members, **options))

    alone = together(1)
    assert len(set(alone["losses"])) == 7
    for result in (together(3), together(8), together(3, threads=2)):
        np.testing.assert_equal(result, alone)


# Steps of an optimiser on minibatches


@pytest.fixture
def task(dataset):
    """Return the first task of seed 3."""
    return sampled_tasks(dataset, seed=3)[0]


def fine_tuned(run, net, theta, task, seed=0):
    """Return the weights after the run's steps on the task."""
    gradients = choose(net, dtype=torch.float64).make()
    rng = np.random.default_rng(seed)
    return fine_tune(gradients, theta.astype(np.float64), *task[0], run, rng=rng)[0]


def steps_of_adam(net, theta, task, rng, beta1):
    """Return the weights after torch's Adam at 0.02 on minibatches of three examples, 7
    steps of 2: five passes, the last one cut.
    """
    weights = torch.from_numpy(theta).double().requires_grad_()
    adam = torch.optim.Adam([weights], lr=0.02, betas=(beta1, 0.999))
    order = np.concatenate([rng.permutation(3) for _ in range(5)])
    images, labels = task[0]
    for batch in order[:14].reshape(7, 2):
        adam.zero_grad()
        mean_loss(net, weights, (images[batch], labels[batch])).backward()
        adam.step()
    return weights.detach()


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_fine_tune_takes_torchs_steps_of_adam(net, theta, task, beta1):
    """At a rate of 0.02 the weights differ by less than a thousandth of a step."""
    run = make_config({"evaluation": NICHOL | {"beta1": beta1}})
    tuned = fine_tuned(run, net, theta, task, seed=5)
    expected = steps_of_adam(net, theta, task, np.random.default_rng(5), beta1)
    assert (tuned - expected).abs().max() < 2e-5


def test_meta_test_scores_what_fine_tune_makes(dataset, net, theta, task):
    run = make_config({"seed": 3, "evaluation": NICHOL})
    rng = stream(3, "test-minibatches/meta-test", 0)
    weights = steps_of_adam(net, theta, task, rng, beta1=0.0)
    loss = mean_loss(net, weights, task[1]).item()
    assert scores(run, dataset, [theta]).losses[0] == pytest.approx(loss, rel=1e-3)


def test_fine_tune_moves_the_adapted_tensors_alone(net, theta, task):
    evaluation = make_config({"evaluation": NICHOL}).evaluation
    head_run = SimpleNamespace(
        evaluation=evaluation, adapted_tensors=lambda net: net.head
    )
    moved = fine_tuned(head_run, net, theta, task).numpy() != theta
    size = sum(int(np.prod(net.shapes[name])) for name in net.head)
    assert moved[-size:].mean() > 0.9
    assert not moved[:-size].any()


def test_name_of_the_test_differs_by_optimiser_and_minibatch():
    adam = {"optimizer": "adam"}
    adam_settings = [{"beta1": 0.0}, {"schedule": "cosine"}, {"best_step": True}]
    changes = [
        {},
        {"batch": 2},
        {"batch": 3},
        adam,
        *(adam | settings for settings in adam_settings),
    ]
    runs = [make_config({"evaluation": change}) for change in changes]
    assert len({run.test_name for run in runs}) == len({run.key for run in runs}) == 7


def test_fine_tune_lets_the_rate_fall_on_a_cosine(net, theta, task):
    """Reference: plain descent at rates 0.2 (1 + cos(pi k / 4)) / 2."""
    steps = {"steps": 4, "rate": 0.2, "schedule": "cosine"}
    tuned = fine_tuned(make_config({"evaluation": steps}), net, theta, task)
    rates = (0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.1 * (1 - 0.5**0.5))
    assert (tuned - descend(net, theta, task[0], rates)).abs().max() < 1e-6


def test_best_step_scores_the_step_with_most_right_answers(dataset, theta):
    """Reference: tests of 0 to 7 steps, one by one. Adam's rate overshoots."""

    def accuracies(**steps):
        evaluation = {"optimizer": "adam", "rate": 0.05} | steps
        run = make_config({"evaluation": evaluation})
        return scores(run, dataset, [theta]).accuracies

    by_steps = np.array([accuracies(steps=count) for count in range(8)])
    best = accuracies(steps=7, best_step=True)
    assert np.array_equal(best, by_steps.max(axis=0))
    assert (best > by_steps[-1]).any()
