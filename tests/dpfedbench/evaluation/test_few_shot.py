"""The meta-test by hand: logits of the network itself, tasks drawn once for all
methods.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import gather, sample_tasks
from dpfedbench.evaluation import few_shot
from dpfedbench.evaluation.few_shot import FewShotMeasures, task_scores
from dpfedbench.models.choose import choose
from dpfedbench.models.members import save_members
from tests.dpfedbench.federation.conftest import make_config

TASKS = 5


def drawn(net, seed):
    rng = np.random.default_rng(seed)
    return (net.initial(rng) + 0.3 * rng.standard_normal(net.dimension)).astype(
        np.float32
    )


def scores(config, dataset, members, **more):
    choice = choose(config.tested_net(dataset.image_shape))
    return task_scores(
        choice,
        members,
        dataset,
        config,
        split="test",
        tasks=TASKS,
        purpose="meta-test",
        **more,
    )


def test_without_steps_members_vote_by_their_mean_probability(federation):
    config, dataset = (
        make_config({"evaluation": {"steps": 0}}),
        load_dataset(federation[0]),
    )
    net = config.tested_net(dataset.image_shape)
    members = [drawn(net, 0), drawn(net, 1)]
    found = scores(config, dataset, members)
    sampled = sample_tasks(
        dataset,
        "test",
        count=TASKS,
        ways=3,
        shots=1,
        query_per_class=3,
        seed=0,
        purpose="meta-test",
    )
    for index in range(TASKS):
        task = gather(
            dataset, sampled, np.array([index]), support_per_class=1, query_per_class=3
        )
        x, y = torch.from_numpy(task.query_x[0]), torch.from_numpy(task.query_y[0])
        each = [
            torch.softmax(net.logits(torch.from_numpy(theta), x).double(), dim=1)
            for theta in members
        ]
        mean = (each[0] + each[1]) / 2
        assert (
            found.accuracies[index] == (mean.argmax(dim=1) == y).double().mean().item()
        )
        wanted = -torch.log(mean[torch.arange(len(y)), y]).mean().item()
        assert found.losses[index] == pytest.approx(wanted, rel=1e-5)


def test_steps_are_gradient_descent_on_the_support_set(federation):
    config = make_config({"seed": 3, "evaluation": {"steps": 2, "rate": 0.1}})
    dataset = load_dataset(federation[0])
    net = config.tested_net(dataset.image_shape)
    theta = drawn(net, 2)
    found = scores(config, dataset, [theta])
    sampled = sample_tasks(
        dataset,
        "test",
        count=TASKS,
        ways=3,
        shots=1,
        query_per_class=3,
        seed=3,
        purpose="meta-test",
    )
    for index in range(TASKS):
        task = gather(
            dataset, sampled, np.array([index]), support_per_class=1, query_per_class=3
        )
        weights = torch.from_numpy(theta).double()
        for _ in range(2):
            weights = weights.detach().requires_grad_()
            logits = net.logits(weights, torch.from_numpy(task.support_x[0]).double())
            loss = torch.nn.functional.cross_entropy(
                logits, torch.from_numpy(task.support_y[0])
            )
            weights = weights - 0.1 * torch.autograd.grad(loss, weights)[0]
        logits = net.logits(
            weights.detach(), torch.from_numpy(task.query_x[0]).double()
        )
        wanted = torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(task.query_y[0])
        ).item()
        assert found.losses[index] == pytest.approx(wanted, rel=1e-4)


def test_threads_change_no_bit_and_methods_share_tasks(federation):
    dataset = load_dataset(federation[0])
    one, other = make_config(), make_config({"method": "maml"})
    theta = drawn(one.tested_net(dataset.image_shape), 3)
    found = [
        scores(run, dataset, [theta], threads=threads)
        for run, threads in ((one, 1), (one, 3), (other, 1))
    ]
    assert all(np.array_equal(each.losses, found[0].losses) for each in found)


def without_others(dataset, split):
    """The data set with noise in place of all images but those of a split's classes."""
    images, own = (
        np.random.default_rng(9).integers(
            256, size=dataset.images.shape, dtype=np.uint8
        ),
        dataset.splits[split],
    )
    images[own] = dataset.images[own]
    return dataclasses.replace(dataset, images=images)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_each_measure_reads_its_own_split_alone(
    federation, split, tmp_path, monkeypatch
):
    """Noise in all images of other classes changes nothing, and in its own it does."""
    config, dataset = make_config(), load_dataset(federation[0])
    net = config.tested_net(dataset.image_shape)
    theta = drawn(net, 4)
    save_members(tmp_path / "model.safetensors", net, [theta])

    def measured(dataset):
        if split == "validation":
            return FewShotMeasures(
                config, dataset, choose(net), net=net, threads=1
            ).validate(theta)
        monkeypatch.setattr(few_shot, "load_dataset", lambda folder: dataset)
        files = {
            "model_path": tmp_path / "model.safetensors",
            "out_path": tmp_path / "metrics.json",
        }
        few_shot.meta_test(config, data_dir=federation[0], **files)
        return json.loads((tmp_path / "metrics.json").read_text())

    others = {"validation": "test", "test": "validation"}
    assert measured(without_others(dataset, split)) == measured(dataset)
    assert measured(without_others(dataset, others[split])) != measured(dataset)


@pytest.mark.parametrize(
    "evaluation",
    [{"steps": 3}, {"steps": 3, "optimizer": "adam", "batch": 2}, {"best_step": True}],
)
@pytest.mark.parametrize("normalisation", ["batch", "record"])
def test_tasks_that_are_computed_together_score_as_each_by_itself(
    federation, evaluation, normalisation
):
    """Bit for bit, whatever the number at once and the threads."""
    config = make_config(
        {"evaluation": evaluation, "model": {"normalisation": normalisation}}
    )
    dataset = load_dataset(federation[0])
    net = config.tested_net(dataset.image_shape)
    members = [drawn(net, 0), drawn(net, 1)]
    single = choose(net)._replace(tasks=1)

    def found(at_once, **more):
        return task_scores(
            single._replace(tasks=at_once),
            members,
            dataset,
            config,
            split="test",
            tasks=7,
            purpose="meta-test",
            **more,
        )

    alone = found(1)
    assert len(set(alone.losses)) == 7
    for together in (found(3), found(8), found(3, threads=2)):
        assert np.array_equal(together.losses, alone.losses)
        assert np.array_equal(together.accuracies, alone.accuracies)
