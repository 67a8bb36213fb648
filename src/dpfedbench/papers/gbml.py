"""Differentially Private Meta-Learning (Li et al. 2020): task-global and local DP
Reptile. DP-FedMeta's Table 2 calls the first one GBML.

Reptile in batches (Nichol et al. 2018). In each round the server sends the meta-model
phi to a cohort of clients. Each client trains from phi for k steps on all of its
examples, to the weights phi_k, and sends phi - phi_k. The server takes a step

    phi <- phi + eps * mean(phi_k - phi).

Task-global DP Reptile (Section 4): within its task each client trains by DP-Adam. In
each step

1. it takes the gradient of each of its examples and clips it to C_0 in L2 norm;
2. it adds the gradients up, adds N(0, z_0^2 C_0^2 I) and divides by the number of
   examples;
3. it takes a step of Adam along that.

The weights that it sends protect each of its examples against the server and everyone
who receives the meta-model. The server adds no noise.

Local DP Reptile (Section 4): each client trains without noise, and clips and noises the
difference of the weights itself, once in total. This is DP-FedAvg (McMahan et al. 2018)
with the noise added to each clipped update, and not to their sum. The server learns of
all data of a client no more than this one release discloses.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.model_settings import ModelSettings
from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.config.sections import Evaluation, PartitionScheme, Task
from dpfedbench.lazy import np, torch
from dpfedbench.method import Method
from dpfedbench.models.zoo.conv4 import Conv4Model
from dpfedbench.parts.budget import OwnUpdate, WithinTask
from dpfedbench.parts.optimizers.optimizer import (
    OPTIMIZER_WITHOUT_NOISE,
    Adam,
    Optimizer,
    Sgd,
)
from dpfedbench.parts.partitions.shared import Shared
from dpfedbench.parts.schedules.schedule import Linear
from dpfedbench.parts.server.server_step import Step
from dpfedbench.run import Run
from dpfedbench.training.client_updates.client_update import ClientUpdate
from dpfedbench.training.client_updates.within_task import (
    ClientsWithinTask,
    Compute,
    Turn,
    create_mechanisms,
    mean_loss,
    within_task,
)
from dpfedbench.training.clients import Clients, Setup
from dpsum import participation
from dpsum.accounting.claims import REPTILE_STEPS
from dpsum.participation import (
    BallsAndBins,
    OnePass,
    Passes,
    Poisson,
)
from dpsum.randomness import stream
from dpsum.sampling import Sampler
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpsum.mechanism import Mechanism

TASK = "task-gradient-sum"
OWN_UPDATE = "own-update"


class Reptile(ClientUpdate):
    """The weights that a client received less those after its steps.

    The optimiser starts anew at every client.
    """

    kind: Literal["reptile"] = "reptile"
    client_data = "tasks"
    sends = "model-difference-sum"
    by_record = True
    keeps_state = False

    inner_steps: int = setting(5, ge=1, le=100_000, doc="optimiser steps")
    inner_rate: float = setting(0.001, gt=0, le=1e6, doc="learning rate of these steps")
    optimizer: Optimizer = setting(Adam(), doc="optimiser of these steps")
    batches: Literal["full", "disjoint", "poisson"] = setting(
        "full",
        doc=(
            "full: each step reads all examples; disjoint: an example is in one"
            " step; poisson: in each step with probability 1/inner_steps"
        ),
    )
    largest: float | None = setting(
        None,
        ge=1e-20,
        le=1e20,
        doc="L2 norm to which a step's (noised) mean gradient is clipped; null: none",
        paper="0.3 to 1",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        OPTIMIZER_WITHOUT_NOISE,
        Rule(
            lambda update, run: (
                update.batches == "disjoint"
                and _examples_of_client(run) % update.inner_steps
                and _examples_of_client(run)
            ),
            "client_update.inner_steps ({part.inner_steps}) does not divide a"
            " client's {fault} examples into disjoint batches: change"
            " client_update.inner_steps or the number of examples",
        ),
    )

    def samplers(self, run: Run, records: int) -> dict[str, Sampler]:
        if _noises_updates(run.client_sums):
            return {OWN_UPDATE: _own_update_sampler(run)}
        return {TASK: self._task_sampler(run)}

    def _task_sampler(self, run: Run) -> Sampler:
        return within_task(
            run,
            _examples_of_client(run),
            steps=self.inner_steps,
            batches=self.batches,
        )

    def clients(self, setup: Setup) -> Clients:
        write = functools.partial(self.write, setup.run.stream_seed)
        samplers = {TASK: self._task_sampler(setup.run)}
        if _noises_updates(setup.client_sums):
            plain = dataclasses.replace(setup, client_sums=())
            return noised_clients(setup, write, create_mechanisms(plain, samplers))
        return ClientsWithinTask(setup, create_mechanisms(setup, samplers), write)

    def write(self, seed: int, turn: Turn, worker: Any, out: torch.Tensor) -> float:
        """Write a client's difference of the weights to `out`.

        Args:
            seed: seed of the streams that draw batches.
            turn: the client.
            worker: gradients of its examples.
            out: receives the difference [1, d].

        Returns:
            The mean loss of all examples before the first step.
        """
        images = np.concatenate([turn.support[0], turn.query[0]])
        labels = np.concatenate([turn.support[1], turn.query[1]])
        weights = torch.from_numpy(turn.theta.copy())
        state = self.optimizer.begin(weights)
        losses_by_step = []
        rng = stream(seed, "task-batches", turn.round, turn.client)
        for step, batch in enumerate(self._draw_batches(rng, len(labels))):
            mean, losses = turn.mean(
                TASK, weights.numpy(), (images[batch], labels[batch]), worker, step
            )
            losses_by_step.append(losses)
            if self.largest is not None:
                norm = max(float(np.linalg.norm(mean)), 1e-30)
                mean *= min(1.0, self.largest / norm)
            gradient = torch.from_numpy(mean)
            self.optimizer.step(weights, gradient, state, self.inner_rate)
        out[0] = torch.from_numpy(turn.theta - weights.numpy())
        return mean_loss(losses_by_step[0])

    def _draw_batches(
        self, rng: np.random.Generator, examples: int
    ) -> list[np.ndarray]:
        """Return the positions of the examples that each step reads."""
        if self.batches == "full":
            return [np.arange(examples)] * self.inner_steps
        if self.batches == "disjoint":
            return np.split(rng.permutation(examples), self.inner_steps)
        return poisson_batches(rng, self.inner_steps, examples)


def _examples_of_client(run: Run) -> int:
    """Return the number of a client's examples: its support and its query set."""
    per_class = run.clients.support_per_class + run.clients.query_per_class
    return run.task.ways * per_class


def poisson_batches(
    rng: np.random.Generator, steps: int, examples: int
) -> list[np.ndarray]:
    """Draw for each step the positions of the examples that it reads.

    Each step reads each example with probability 1/steps, independently.
    """
    return [np.flatnonzero(row) for row in rng.random((steps, examples)) < 1 / steps]


def _noises_updates(client_sums: Sequence[SumSpec]) -> bool:
    """Return whether each client clips and noises its own update."""
    return any(spec.name == OWN_UPDATE for spec in client_sums)


def _own_update_sampler(run: Run) -> Sampler:
    plan = run.participation
    return participation.local(
        clients=run.clients.count, cohort=plan.cohort, rounds=plan.rounds
    )


def noised_clients(
    setup: Setup, write: Compute, mechanisms: Mapping[str, Mechanism] | None = None
) -> ClientsWithinTask:
    """Return clients that clip and noise their own contributions.

    Args:
        setup: the parts of the run, with one sum of each client: that over its update.
        write: computes a client's contribution without noise.
        mechanisms: mechanisms of further sums, which `write` takes.
    """
    sampler = _own_update_sampler(setup.run)
    spec = dataclasses.replace(
        setup.calibrated_client_sums({OWN_UPDATE: sampler})[OWN_UPDATE],
        denominator=1.0,
        stream_indices=("round", "client"),
    )
    own_update = setup.create_mechanism(
        spec, participation=sampler, dimension=setup.net.dimension
    )

    def write_noised(turn: Turn, worker: Any, out: torch.Tensor) -> float:
        loss = write(turn, worker, out)
        total = own_update.begin_round(turn.round, holder=turn.client)
        total.add(out)
        out[0] = torch.from_numpy(own_update.finish(total))
        return loss

    every = {**(mechanisms or {}), OWN_UPDATE: own_update}
    return ClientsWithinTask(setup, every, write_noised)


class NonPrivateReptile(Method):
    """Reptile in batches (Nichol et al. 2018), without privacy."""

    name = "reptile"
    title = "Non-private Reptile"
    paper = "dp-meta-learning-gbml"
    # Sizes of a small run, on all examples in each step.
    defaults = {
        "client_update": {
            "kind": "reptile",
            "inner_steps": 5,
            "inner_rate": 0.001,
            "optimizer": {"kind": "adam", "beta1": 0.9},
            "batches": "full",
        },
        "server": {"optimizer": "sgd", "rate": 1.0},
    }

    # Section 4 and Appendix C, Figure 3: Omniglot, 5-way 5-shot, a million tasks.
    dataset: str = "omniglot"
    task: Task = Task(ways=5, shots=5)
    clients: PartitionScheme = Shared(  # type: ignore[call-arg]  # its tag is partition
        count=1_000_000,
        examples_per_class=10,
        support_per_class=5,
        query_per_class=5,
    )
    # Examples are clipped one by one, which excludes the paper's batch normalisation.
    model: ModelSettings = Conv4Model(filters=64, normalisation="record")
    # Appendix C searched the cohort (5 to 50) and Adam's rate (1e-4 to 5e-3).
    participation: OnePass | BallsAndBins | Poisson | Passes = OnePass(
        cohort=25, rounds=40_000
    )
    client_update: Reptile = Reptile(
        inner_steps=5, inner_rate=0.005, optimizer=Adam(beta1=0.0), batches="poisson"
    )
    # Appendix C: the rate falls along a line.
    server: Step = Step(optimizer=Sgd(), rate=1.0, schedule=Linear())
    evaluation: Evaluation = Evaluation(
        tasks=100_000,
        query_per_class=1,
        steps=50,
        rate=0.001,
        optimizer="adam",
        beta1=0.0,
        batch=5,
    )

    def sums(self) -> list[SumSpec]:
        return [
            SumSpec(
                name=self.client_update.sends,
                unit="client",
                observer="everyone",
            )
        ]


class DpReptile(NonPrivateReptile):
    """Task-global DP Reptile (Section 4): each client takes private sums over its
    examples, one for each step.
    """

    name = "dp-reptile"
    title = "Task-global DP Reptile (GBML)"
    claims = {"within-task": REPTILE_STEPS, "within-task-poisson": REPTILE_STEPS}
    defaults = NonPrivateReptile.defaults | {
        "within_task": {
            "threshold": 0.2,
            "multiplier": None,
            "epsilon": 9.5,
            "delta": 1.0e-3,
            "profile": "claimed",
        },
    }

    # Appendix C searched the threshold (0.001 to 0.5). Section 4: delta = 1e-3.
    within_task: WithinTask = WithinTask(
        threshold=0.1, multiplier=0.585, epsilon=None, delta=1e-3, profile="claimed"
    )

    def sums(self) -> list[SumSpec]:
        return [self.within_task.sum(TASK, observer="server"), *super().sums()]


class LocalReptile(NonPrivateReptile):
    """Local DP Reptile (Section 4): each client takes one private sum, over its own
    update alone.
    """

    name = "local-reptile"
    title = "Local DP Reptile"
    claims = {"local": REPTILE_STEPS}
    defaults = NonPrivateReptile.defaults | {
        "own_update": {
            "threshold": 0.01,
            "multiplier": 0.51,
            "epsilon": None,
            "delta": 1.0e-3,
            "profile": "claimed",
        },
    }

    # Table 4 searched the threshold (0.005 to 0.5).
    own_update: OwnUpdate = OwnUpdate(
        threshold=0.25, multiplier=0.51, epsilon=None, delta=1e-3, profile="claimed"
    )

    def sums(self) -> list[SumSpec]:
        return [self.own_update.sum(OWN_UPDATE, observer="server"), *super().sums()]
