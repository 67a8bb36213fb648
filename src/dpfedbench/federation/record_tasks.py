"""Few-shot clients that take each example's gradient by itself, and private sums over them within their task.

    for each step:  gradient of each example -> (private) sum (C_0, z_0) -> step of the task's own weights;
    then MAML's query gradient at the adapted weights (first order), or Reptile's difference of the weights.

With `local.query: client` (DP-AGRLR, Algorithm 3) the query examples' gradients are a private sum of the client's too,
so that what it sends protects each of its examples against the server. With `server` (sample-level DP-MAML, Algorithm
2) they go to the server's private sum one by one. Nothing else leaves a client: a second-order gradient, or statistics
over a batch, would carry raw examples past the noise, and `config` refuses them. Without `local` no sum is clipped or
noised.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from dpfedbench.config import LocalConfig, RunConfig
from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import gather, load_partition
from dpfedbench.evaluation.meta_test import pretraining_network, validation_measures
from dpfedbench.federation.composition import Maml, Reptile
from dpfedbench.federation.contributions import Gather
from dpfedbench.federation.local_sums import QUERY, SUPPORT, TASK, LocalSums, Observer
from dpfedbench.federation.optimizers import OPTIMIZERS
from dpfedbench.kernels import choose
from dpfedbench.models.gradients import Found, Gradients
from dpfedbench.models.net import Weights
from dpfedbench.privacy.ledger import Release
from dpfedbench.randomness import stream
from dpfedbench.threads import Threads

_CHUNK_PER_THREAD = 8

Examples = tuple[np.ndarray, np.ndarray]
"""Images [n, H, W, C] and labels [n]."""


class Passes(Protocol):
    """Gradients of single examples, for the use of one thread: `Gradients`, or an audit's."""

    def each(self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> Found:
        """Write gradients to `out` [n, d]."""
        ...


class Source(Protocol):
    """What the clients hold and how the gradients of it are taken; or what an audit puts in the place of both."""

    @property
    def gather(self) -> Gather:
        """Client ids to their tasks."""
        ...

    @property
    def net(self) -> Weights: ...

    def passes(self) -> Passes:
        """A new one, for the use of one thread."""
        ...

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Measures of a model on public validation tasks."""
        ...


class OwnTasks:
    """Images at the clients, and gradients of the network.

    Raises:
        BenchError: data missing or damaged.
    """

    def __init__(self, config: RunConfig, *, data_dir: Path, clients_dir: Path, threads: int) -> None:
        self._config, self._dataset, self._threads = config, load_dataset(data_dir), threads
        partition, clients = load_partition(clients_dir), config.clients
        sizes = {"support_per_class": clients.support_per_class, "query_per_class": clients.query_per_class}
        self.gather: Gather = lambda ids: gather(self._dataset, partition, ids, **sizes)
        self.net = pretraining_network(config, image_shape=self._dataset.image_shape, classes=config.task.ways)

    def passes(self) -> Gradients:
        """The network's gradients."""
        return choose(self.net).make()

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Accuracy in percent and loss on the query sets of public validation tasks, after adaptation."""
        return validation_measures(self.net, theta, self._dataset, self._config, self._threads)


class RecordTaskClients:
    """The clients of a meta-learning run whose examples are taken one by one.

    Args:
        config: the run.
        update: what each of them computes.
        local: the private sums they take; None: sums as they are.
        source: what they hold.
        threads: CPU threads, one client each at a time; changes no bit of the result.
        observer: shown each client's releases.

    Attributes:
        each: contributions that one client makes: one, or one for each query example where the server sums those.

    Raises:
        BenchError: an epsilon that no noise meets.
    """

    columns: tuple[str, ...] = ("validation_loss",)

    def __init__(
        self,
        config: RunConfig,
        update: Maml | Reptile,
        local: LocalConfig | None,
        *,
        source: Source,
        threads: int = 1,
        observer: Observer | None = None,
    ) -> None:
        self._seed, self.update, self._source, self.net = config.seed, update, source, source.net
        self.sums = LocalSums(config, update, local, dimension=self.net.dimension, observer=observer)
        self._by_server = local is not None and local.query == "server"
        self._disjoint = local is not None and local.batches == "disjoint"
        self.each = config.task.ways * config.clients.query_per_class if self._by_server else 1
        examples = config.task.ways * (config.clients.support_per_class + config.clients.query_per_class)
        self._threads = Threads(
            threads, lambda: (source.passes(), np.empty((examples, self.net.dimension), np.float32))
        )

    @property
    def non_finite(self) -> int:
        """Gradients of the last round that were not finite and counted as zero."""
        return self.sums.non_finite

    def stream(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Iterator[tuple[torch.Tensor, np.ndarray, np.ndarray]]:
        """Contributions, with losses and accuracies on the query sets (Reptile: on all examples, before training)."""
        self.sums.begin()
        chunk = _CHUNK_PER_THREAD * self._threads.count
        room = torch.empty((chunk * self.each, self.net.dimension))
        rows = room.numpy().reshape(chunk, self.each, -1)
        with self._threads.running() as pool:
            for start in range(0, len(cohort), chunk):
                ids = cohort[start : start + chunk]
                tasks = self._source.gather(ids)
                waiting = [
                    pool.submit(
                        self._contribute, _Client(self.sums, index, int(client)), theta,
                        (tasks.support_x[i], tasks.support_y[i]), (tasks.query_x[i], tasks.query_y[i]), rows[i],
                    )
                    for i, client in enumerate(ids)
                ]  # fmt: skip
                found = np.array([future.result() for future in waiting]).reshape(-1, 2)
                yield room[: len(ids) * self.each], found[:, 0], found[:, 1]

    def releases(self, index: int) -> list[Release]:
        """The ledger's lines of the clients' own releases, of the round just streamed."""
        return self.sums.releases(index)

    def _contribute(
        self, client: _Client, theta: np.ndarray, support: Examples, query: Examples, out: np.ndarray
    ) -> np.ndarray:
        """Write one client's contribution to `out` [each, d]; returns mean loss and accuracy [2]."""
        with self._threads.worker() as worker:
            if isinstance(self.update, Reptile):
                return self._difference(client, theta, support, query, worker, out[0])
            adapted = theta.copy()
            for step in range(self.update.inner_steps):
                mean, _ = client.mean(SUPPORT, adapted, support, worker, step)
                adapted -= np.float32(self.update.inner_rate) * mean
            if self._by_server:
                return _measures(worker[0].each(adapted, *query, out)).mean(axis=0)
            out[0], found = client.mean(QUERY, adapted, query, worker)
            return found.mean(axis=0)

    def _difference(
        self,
        client: _Client,
        theta: np.ndarray,
        support: Examples,
        query: Examples,
        worker: tuple[Passes, np.ndarray],
        out: np.ndarray,
    ) -> np.ndarray:
        """Reptile: the weights it got less those that its steps make of them."""
        assert isinstance(self.update, Reptile)
        images, labels = np.concatenate([support[0], query[0]]), np.concatenate([support[1], query[1]])
        batches = [np.arange(len(labels))] * self.update.steps
        if self._disjoint:
            order = stream(self._seed, "task-batches", client.round, client.client).permutation(len(labels))
            batches = np.split(order, self.update.steps)
        weights = torch.from_numpy(theta.copy())
        optimizer = OPTIMIZERS[self.update.optimizer](weights, rate=self.update.rate)
        measured = []
        for step, own in enumerate(batches):
            mean, found = client.mean(TASK, weights.numpy(), (images[own], labels[own]), worker, step)
            measured.append(found)
            optimizer.step(torch.from_numpy(mean))
        np.subtract(theta, weights.numpy(), out=out)
        return measured[0].mean(axis=0)

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Accuracy in percent on public validation tasks."""
        return self._source.validate(theta)

    def test(self, theta: np.ndarray) -> dict[str, float]:
        """Nothing: a meta-model is tested when it is finished."""
        return {}


def _measures(found: Found) -> np.ndarray:
    """Losses and hits [n, 2]."""
    return np.stack([found.losses, found.right], axis=1)


class _Client:
    """One client in one round, and the sums it takes."""

    def __init__(self, sums: LocalSums, round_: int, client: int) -> None:
        self._sums, self.round, self.client = sums, round_, client

    def mean(
        self, name: str, theta: np.ndarray, examples: Examples, worker: tuple[Passes, np.ndarray], step: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The (private) mean gradient float32 [d] of some of its examples; with losses and hits [n, 2]."""
        passes, room = worker
        rows = room[: len(examples[1])]
        found = _measures(passes.each(theta, *examples, rows))
        return self._sums.mean(name, rows, round_=self.round, client=self.client, step=step), found
