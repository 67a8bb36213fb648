"""Canaries among the examples of few-shot clients: an audit of the private sums that clients make over their examples.

The mechanism is the run's own, the client update and its sums, with drawn gradients in place of a model's. Every
example is a canary with a coordinate of its own, and there is nothing else in the sums.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedbench.audit.canaries import Found, gradients_of, nothing
from dpfedbench.audit.units import LARGE, Coordinates
from dpfedbench.data.partition import TaskBatch
from dpfedbench.kernels.adding import TORCH
from dpfedbench.method import Method
from dpfedbench.models.gradients import Found as Measured
from dpfedbench.parts.client_updates.client_update import Setup
from dpsum.accounting.analyses import find
from dpsum.audit.ideal import gaussian, secret
from dpsum.budget import Budget
from dpsum.ledger import Ledger, Release
from dpsum.mechanism import Mechanism
from dpsum.randomness import stream
from dpsum.total import Total


class TaskSource:
    """Few-shot clients whose examples are all canaries, for their own sums: an image is an example's number.

    Attributes:
        read: numbers of the examples whose gradients were taken last.
    """

    device = "cpu"

    def __init__(self, net: Coordinates, support: int, present: np.ndarray) -> None:
        self.net, self._support, self._present = net, support, present
        self.read = np.empty(0, np.int64)

    def gather(self, ids: np.ndarray) -> TaskBatch:
        """Numbers for images, the client's own for labels."""
        numbers = np.tile(np.arange(self._present.shape[1]), (len(ids), 1))
        labels = np.repeat(np.asarray(ids)[:, None], numbers.shape[1], axis=1)
        parts = [(values[:, : self._support], values[:, self._support :]) for values in (numbers, labels)]
        return TaskBatch(support_x=parts[0][0], support_y=parts[1][0], query_x=parts[0][1], query_y=parts[1][1])

    def each(self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: torch.Tensor) -> Measured:
        """The examples' gradients, whatever the model is, as `models.gradients.Gradients.each` does."""
        self.read = x
        rows = out.numpy()
        rows[:] = 0
        rows[np.arange(len(x)), self.net.ordinary + x] = LARGE * self._present[y[0], x]
        return nothing(len(x))

    def add_each(self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, total: Any) -> tuple[Measured, np.ndarray]:
        """Add the examples' gradients, as `models.gradients.Gradients.add_each` does."""
        rows = torch.empty((len(x), self.net.dimension))
        return self.each(theta, x, y, rows), total.add(rows)


def one_own_run(run: Method, *, seed: int, canaries: int, inserted: bool = True) -> Found:
    """Let few-shot clients make their own releases once, every example a canary; nothing else is in them.

    Clients are alike and no canary is at two of them, so that each needs one round only, and there may be more of them
    than the run has.

    Args:
        run: the run.
        seed: the audit's.
        canaries: m, rounded down to whole clients.
        inserted: false: no canary is ever inserted, whatever its coin (a null).
    """
    ways, shape = run.task.ways, run.clients
    support, examples = ways * shape.support_per_class, ways * (shape.support_per_class + shape.query_per_class)
    holders = max(1, canaries // examples)
    run = run.replace(seed=seed)
    coins = stream(seed, "audit-coins").integers(2, size=(holders, examples)).astype(bool)
    net = Coordinates(ordinary=1, reserved=examples)
    source = TaskSource(net, support, coins if inserted else np.zeros_like(coins))
    scores, seen = np.zeros(coins.shape), np.zeros(coins.shape, bool)
    squares, drawn = np.zeros(coins.shape), dict[float, list[float]]()  # of known releases; z of those drawn at a rate
    releases: list[Release] = []

    def show(entry: Mechanism, total: Total, released: np.ndarray) -> None:
        # Which examples were sampled in secret the observer does not know.
        assert entry.sum.noise is not None
        client, made = total.holder, total.sum
        known, rate = find(entry.sum.noise.mechanism, entry.sampler["kind"]).known, entry.sampler["rate"]
        own = source.read if known else np.arange(examples)
        x = released[net.ordinary + own] / made.threshold
        ratio = (2 * x - 1) / (2 * made.noise_multiplier**2)
        if known or rate == 1:
            scores[client, own] += ratio
            squares[client, own] += made.noise_multiplier**-2
        else:
            scores[client, own] += np.logaddexp(np.log1p(-rate), np.log(rate) + ratio)
            drawn.setdefault(rate, []).extend([made.noise_multiplier] * (client == 0))
        seen[client, own] = True

    model: Any = net
    budget = Budget(claims=run.claims, unaccounted=run.unaccounted)
    enter = functools.partial(
        Mechanism.of, budget=budget, ledger=Ledger(Path(os.devnull)), seed=seed, arithmetic=TORCH,
        observer=lambda line, _: releases.append(line),
    )  # fmt: skip
    clients = run.client.clients(
        Setup(
            run=run, net=model, held=source, gradients=gradients_of(source), own=run.own_sums(), enter=enter,
            plan=run.participation.plan(clients=run.clients.count, seed=seed),
        )
    )  # fmt: skip
    for entry in budget.mechanisms:
        entry.on_release = functools.partial(show, entry)
    for _ in clients.contributions(net.initial(stream(seed, "initial-weights")), np.arange(holders), 0):
        pass

    def ideal_scores(generator: np.random.Generator) -> np.ndarray:
        scores = gaussian(coins[seen], squares[seen], generator)
        return scores + sum(secret(coins[seen], z, generator, rate=rate) for rate, z in drawn.items())

    return Found(
        holders=holders, coins=coins[seen], scores=scores[seen], releases=releases, ideal=ideal_scores
    )  # fmt: skip
