"""Adaptation to a task by optimiser steps on minibatches of its support set.

Nichol et al. (2018, Section 6.1 and Table 3) test Reptile in this way: 50 steps of Adam
with beta1 = 0, each on 5 of the 25 support examples. Minibatches are consecutive parts
of a random order of the support set; each pass draws a new order. The holder of the
task adapts to it and keeps the result, so nothing here is a release.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dpfedbench.data.partition import TaskBatch
from dpfedbench.models.gradients import Gradients
from dpfedbench.models.net import Array, tensor_of
from dpfedbench.models.points import Point
from dpfedbench.parts.optimizers.optimizer import Adam, Optimizer, Sgd
from dpfedbench.parts.schedules.schedule import ConstantRate, Cosine
from dpfedbench.run import Run


def minibatches(
    rng: np.random.Generator, *, examples: int, size: int | None, steps: int
) -> np.ndarray:
    """Draw the positions of each step's examples, int64 [steps, size].

    Args:
        rng: generator of the orders.
        examples: number of examples of the support set.
        size: examples per step. None: all of them, in their own order.
        steps: number of steps.
    """
    if size is None:
        return np.tile(np.arange(examples), (steps, 1))
    passes = -(-steps * size // examples)
    order = [rng.permutation(examples) for _ in range(passes)]
    positions = np.concatenate([np.empty(0, np.int64), *order])
    return positions[: steps * size].reshape(steps, size)


def fine_tune(
    gradients: Gradients,
    theta: np.ndarray,
    x: Array,
    y: Array,
    run: Run,
    *,
    rng: np.random.Generator,
    steps: int | None = None,
    rate: float | None = None,
    after_step: Callable[[torch.Tensor], None] | None = None,
) -> torch.Tensor:
    """Adapt weights to one task as the run's meta-test does.

    Args:
        gradients: gradients of the network, for use by one thread.
        theta: weights [d] to start from.
        x, y: images [n, ...] and labels [n] of the support set.
        run: settings of the optimiser, minibatch size, steps, rate and adapted tensors.
        rng: generator of the minibatches.
        steps, rate: override the run's settings.
        after_step: called with the weights [1, w] before the first step and after each
            step.

    Returns:
        The adapted weights [1, w], for `Gradients.logits`.
    """
    test = run.evaluation
    net = gradients.net
    steps = test.steps if steps is None else steps
    rate = test.rate if rate is None else rate
    optimizer: Optimizer = Sgd() if test.optimizer == "sgd" else Adam(beta1=test.beta1)
    start = tensor_of(theta, gradients.device).to(gradients.dtype)
    weights = start[: net.weights].clone()
    moves = torch.ones_like(weights)
    adapted = run.adapted_tensors(net)
    if adapted is not None:
        mask = net.mask(*adapted)[: net.weights]
        moves = torch.from_numpy(mask).to(moves)
    state = optimizer.begin(weights)
    gradient = torch.empty_like(weights)[None]
    batches = minibatches(rng, examples=len(y), size=test.batch, steps=steps)
    schedule = Cosine() if test.schedule == "cosine" else ConstantRate()
    point: Point | None = None
    if after_step is not None:
        after_step(weights[None])
    for step, rows in enumerate(batches):
        point = gradients.task_gradients(
            weights[None], x[rows][None], y[rows][None], gradient, into=point
        )
        step_rate = schedule.rate(rate, step, steps)
        optimizer.step(weights, gradient[0] * moves, state, step_rate)
        if after_step is not None:
            after_step(weights[None])
    return weights[None]


def best_logits(
    gradients: Gradients,
    theta: np.ndarray,
    task: TaskBatch,
    run: Run,
    *,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the query logits [m, outputs] after the step with the most right answers.

    The query set both selects the step and is scored, as in DP-FedMeta's released code,
    so the accuracy is optimistic. Ties go to the first step.
    """
    best = np.empty(0)
    most = -1

    def keep_best(weights: torch.Tensor) -> None:
        nonlocal best, most
        logits = np.asarray(gradients.logits(weights, task.query_x))[0]
        right = int((logits.argmax(axis=1) == task.query_y[0]).sum())
        if right > most:
            best = logits
            most = right

    support = task.support_x[0], task.support_y[0]
    fine_tune(gradients, theta, *support, run, rng=rng, after_step=keep_best)
    return best
