"""The small federations of the tests of rounds, and steps on their tasks by hand."""

import numpy as np
import pytest
import torch

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import gather, sample_tasks
from dpfedbench.evaluation.few_shot import task_scores
from dpfedbench.models.choose import choose

TASKS = 5


@pytest.fixture
def dataset(federation):
    return load_dataset(federation[0])


def random_weights(net, seed, spread=0.3):
    """Return initial weights with added noise."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(net.dimension)
    return (net.initial(rng) + spread * noise).astype(np.float32)


def scores(run, dataset, members, *, tasks=TASKS, choice=None, **options):
    """Return the scores of an ensemble on tasks of the test split."""
    return task_scores(
        choice or choose(run.tested_net(dataset.image_shape)),
        members,
        dataset,
        run,
        split="test",
        tasks=tasks,
        purpose="meta-test",
        **options,
    )


def sampled_task(dataset, index, seed):
    """Return one task of the test split: three ways, one shot."""
    tasks = sample_tasks(
        dataset,
        "test",
        count=TASKS,
        ways=3,
        shots=1,
        query_per_class=3,
        seed=seed,
        purpose="meta-test",
    )
    return gather(
        dataset, tasks, np.array([index]), support_per_class=1, query_per_class=3
    )


def descend(net, theta, task, rates):
    """Return the weights after steps on the support set, in double precision."""
    weights = torch.from_numpy(theta).double()
    images = torch.from_numpy(task.support_x[0]).double()
    labels = torch.from_numpy(task.support_y[0])
    for rate in rates:
        weights = weights.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(net.logits(weights, images), labels)
        weights = weights - rate * torch.autograd.grad(loss, weights)[0]
    return weights.detach()


def query_loss(net, weights, task):
    """Return the mean loss on the query set, in double precision."""
    logits = net.logits(weights.double(), torch.from_numpy(task.query_x[0]).double())
    labels = torch.from_numpy(task.query_y[0])
    return torch.nn.functional.cross_entropy(logits, labels).item()
