"""The Reptile client update (Nichol et al. 2018): what training on all of its examples
changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.parts.client_updates.client_update import (
    Clients,
    ClientUpdate,
    Setup,
    within_task,
)
from dpfedbench.parts.optimizers.optimizer import Adam, Optimizer
from dpfedbench.parts.within_task import Client, TaskClients
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run
from dpsum.randomness import stream
from dpsum.sampling import Sampler

TASK = "task-gradient-sum"


class Reptile(ClientUpdate):
    """The weights that a client got less those that so many steps on all of its
    examples make of them.

    Task-global private meta-learning (Li et al. 2020, Section 4) clips and noises each
    step's gradients. The optimiser starts anew at every client.
    """

    kind: Literal["reptile"] = "reptile"
    client_data = "tasks"
    sends = "model-difference-sum"
    by_record = True
    keeps_state = False

    inner_steps: int = setting(5, ge=1, le=100_000, doc="optimiser steps")
    inner_rate: float = setting(0.001, gt=0, le=1e6, doc="their learning rate")
    optimizer: Optimizer = setting(Adam(), doc="what takes them")
    batches: Literal["full", "disjoint", "poisson"] = setting(
        "full",
        doc=(
            "full: each step reads all examples; disjoint: each example is in one step;"
            " poisson: in each step with the chance 1/inner_steps"
        ),
    )
    largest: float | None = setting(
        None,
        ge=1e-20,
        le=1e20,
        doc="L2 norm to which a step's (noised) mean gradient is cut; null: it is not",
        paper="0.3 to 1",
    )

    def check(self, run: Run) -> None:
        self.optimizer.refuse_untold("client_update")
        examples = run.task.ways * (
            run.clients.support_per_class + run.clients.query_per_class
        )
        if self.batches == "disjoint" and examples % self.inner_steps:
            raise BenchError(
                f"client_update.inner_steps ({self.inner_steps}) does not divide a"
                f" client's {examples} examples into disjoint batches: change one of"
                " them"
            )

    def samplers(self, run: Run, records: int) -> dict[str, Sampler]:
        examples = run.task.ways * (
            run.clients.support_per_class + run.clients.query_per_class
        )
        return {
            TASK: within_task(
                run, examples, steps=self.inner_steps, batches=self.batches
            )
        }

    def clients(self, setup: Setup) -> Clients:
        return _Trained(self, setup)


class _Trained(TaskClients):
    """Clients that train on all of their examples."""

    def __init__(self, update: Reptile, setup: Setup) -> None:
        super().__init__(setup, update.samplers(setup.run, 0))
        self._update = update

    def client(
        self,
        worker: Any,
        theta: np.ndarray,
        client: int,
        index: int,
        held: Any,
        out: torch.Tensor,
    ) -> Sequence[float]:
        (support, query), sums = held, Client(self, index, client)
        update = self._update
        images, labels = (
            np.concatenate([support[0], query[0]]),
            np.concatenate([support[1], query[1]]),
        )
        batches = [np.arange(len(labels))] * update.inner_steps
        if update.batches != "full":
            rng = stream(self.setup.run.stream_seed, "task-batches", index, client)
            if update.batches == "disjoint":
                batches = np.split(rng.permutation(len(labels)), update.inner_steps)
            else:
                batches = sampled(rng, update.inner_steps, len(labels))
        weights = torch.from_numpy(theta.copy())
        state, measured = update.optimizer.begin(weights), []
        for step, own in enumerate(batches):
            mean, measures = sums.mean(
                TASK, weights.numpy(), (images[own], labels[own]), worker, step
            )
            measured.append(measures)
            if update.largest is not None:
                mean *= min(
                    1.0, update.largest / max(float(np.linalg.norm(mean)), 1e-30)
                )
            update.optimizer.step(
                weights, torch.from_numpy(mean), state, update.inner_rate
            )
        out[0] = torch.from_numpy(theta - weights.numpy())
        return (
            measured[0].mean(axis=0).tolist()
            if len(measured[0])
            else (math.nan, math.nan)
        )


def sampled(rng: np.random.Generator, steps: int, count: int) -> list[np.ndarray]:
    """For each step the places of the examples it reads: each of `count` with the
    chance 1/steps, apart from others.
    """

    return [np.flatnonzero(drawn) for drawn in rng.random((steps, count)) < 1 / steps]
