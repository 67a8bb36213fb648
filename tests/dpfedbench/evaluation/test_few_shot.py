"""The meta-test: tasks, votes of an ensemble, steps and splits, each by hand."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from dpfedbench.evaluation import few_shot
from dpfedbench.evaluation.few_shot import FewShotMeasures
from dpfedbench.models.choose import choose
from dpfedbench.models.members import save_members
from tests.dpfedbench.training.conftest import make_config

from .conftest import TASKS, descend, query_loss, random_weights, sampled_task, scores


def test_ensemble_votes_by_its_mean_probability(dataset):
    config = make_config({"evaluation": {"steps": 0}})
    net = config.tested_net(dataset.image_shape)
    members = [random_weights(net, seed) for seed in (0, 1)]
    result = scores(config, dataset, members)
    for index in range(TASKS):
        task = sampled_task(dataset, index, seed=0)
        images, labels = map(torch.from_numpy, (task.query_x[0], task.query_y[0]))
        first, second = (
            torch.softmax(net.logits(torch.from_numpy(theta), images).double(), dim=1)
            for theta in members
        )
        mean = (first + second) / 2
        accuracy = (mean.argmax(dim=1) == labels).double().mean().item()
        assert result.accuracies[index] == accuracy
        loss = -torch.log(mean[torch.arange(len(labels)), labels]).mean().item()
        assert result.losses[index] == pytest.approx(loss, rel=1e-5)


def test_steps_are_gradient_descent_on_the_support_set(dataset):
    config = make_config({"seed": 3, "evaluation": {"steps": 2, "rate": 0.1}})
    net = config.tested_net(dataset.image_shape)
    theta = random_weights(net, 2)
    result = scores(config, dataset, [theta])
    for index in range(TASKS):
        task = sampled_task(dataset, index, seed=3)
        loss = query_loss(net, descend(net, theta, task, [0.1, 0.1]), task)
        assert result.losses[index] == pytest.approx(loss, rel=1e-4)


def test_methods_are_tested_on_the_same_tasks(dataset):
    config = make_config()
    plain = make_config({"method": "maml"})
    theta = random_weights(config.tested_net(dataset.image_shape), 3)
    losses = [scores(run, dataset, [theta]).losses for run in (config, plain)]
    assert np.array_equal(*losses)


def without_others(dataset, split):
    """Return the data set with noise as the images of all other splits."""
    rng = np.random.default_rng(9)
    images = rng.integers(256, size=dataset.images.shape, dtype=np.uint8)
    classes = dataset.splits[split]
    images[classes] = dataset.images[classes]
    return dataclasses.replace(dataset, images=images)


@pytest.mark.parametrize(
    ("split", "unread"), [("validation", "test"), ("test", "validation")]
)
def test_few_shot_measure_reads_its_own_split_alone(
    federation, dataset, split, unread, tmp_path, monkeypatch
):
    config = make_config()
    net = config.tested_net(dataset.image_shape)
    theta = random_weights(net, 4)
    model = tmp_path / "model.safetensors"
    metrics = tmp_path / "metrics.json"
    save_members(model, net, [theta])

    def measure(dataset):
        if split == "validation":
            measures = FewShotMeasures(
                run=config, dataset=dataset, choice=choose(net), net=net, threads=1
            )
            return measures.validate(theta)
        monkeypatch.setattr(few_shot, "load_dataset", lambda folder: dataset)
        few_shot.meta_test(
            config, data_dir=federation[0], model_path=model, out_path=metrics
        )
        return json.loads(metrics.read_text())

    assert measure(without_others(dataset, split)) == measure(dataset)
    assert measure(without_others(dataset, unread)) != measure(dataset)


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
    choice = choose(net)

    def together(count, threads=1):
        several = choice._replace(tasks=count)
        options = {"tasks": 7, "choice": several, "threads": threads}
        return scores(config, dataset, members, **options)

    alone = together(1)
    assert len(set(alone.losses)) == 7
    for result in (together(3), together(8), together(3, threads=2)):
        assert np.array_equal(result.losses, alone.losses)
        assert np.array_equal(result.accuracies, alone.accuracies)
