"""Clients that hold labelled records, train on them, and send what that changed in the model (FedAvg).

The model difference is the "update" of McMahan et al. (Learning Differentially Private Recurrent Language Models,
2018): clipped and summed by the server it is DP-FedAvg, whose unit is the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from dpfedbench.config import RunConfig
from dpfedbench.data.clients_folder import check_made_for
from dpfedbench.data.fragments import load_fragments
from dpfedbench.data.records import load_records
from dpfedbench.evaluation.record_test import evaluate_in_pieces, held_out, network
from dpfedbench.federation.composition import ModelDifference
from dpfedbench.federation.optimizers import OPTIMIZERS
from dpfedbench.kernels import choose
from dpfedbench.models.gradients import Gradients, Workers

_CHUNK_PER_THREAD = 8
_PIECE = 8  # records whose gradients are added up at once: they stay in the cache; part of what a result's bits are


class RecordClients:
    """The clients of a run whose data are records.

    Args:
        config: the run.
        update: what each of them computes.
        data_dir, clients_dir: prepared records and a partition of them into fragments.
        threads: CPU threads, one client each at a time; changes no bit of the result.

    Raises:
        BenchError: data missing or damaged, or of another number of classes than the run's.
    """

    columns: tuple[str, ...] = ("test_accuracy", "test_loss", "validation_loss")
    each = 1

    def __init__(
        self, config: RunConfig, update: ModelDifference, *, data_dir: Path, clients_dir: Path, threads: int
    ) -> None:
        self.update = update
        self.dataset, partition = load_records(data_dir), load_fragments(clients_dir)
        check_made_for(self.dataset.name, self.dataset.summary, partition.summary)
        self.records = np.sort(partition.records, axis=1)
        self.held_out = held_out(config, self.dataset)
        self.net = network(config, self.dataset)
        self._threads = Workers(choose(self.net), self._with_room, threads=threads)

    def _with_room(self, gradients: Gradients) -> tuple[Gradients, np.ndarray]:
        return gradients, np.empty((_PIECE, self.net.dimension), np.float32)

    def stream(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Iterator[tuple[torch.Tensor, np.ndarray, np.ndarray]]:
        """Model differences; losses and accuracies (0 to 1) are the broadcast model's on each client's records."""
        chunk = _CHUNK_PER_THREAD * self._threads.count
        buffer = torch.empty((chunk, self.net.dimension))
        rows = buffer.numpy()
        with self._threads.running() as pool:
            for start in range(0, len(cohort), chunk):
                ids = cohort[start : start + chunk]
                found = np.array(list(pool.map(self._difference, [theta] * len(ids), ids, rows))).reshape(-1, 2)
                yield buffer[: len(ids)], found[:, 0], found[:, 1]

    def _difference(self, theta: np.ndarray, client: int, out: np.ndarray) -> tuple[float, float]:
        """Write theta less the model that the client's steps make of it to `out` [d]."""
        own = self.records[client]
        images, labels = np.asarray(self.dataset.images[own]), np.asarray(self.dataset.labels[own])
        model = torch.from_numpy(theta.copy())
        optimizer = OPTIMIZERS[self.update.optimizer](model, rate=self.update.rate)
        with self._threads.worker() as (worker, room):
            losses, correct, _ = worker.evaluate(theta, images, labels)
            for _ in range(self.update.steps):
                total = np.zeros(self.net.dimension)
                for _, gradients in worker.pieces(model.numpy(), images, labels, room):
                    total += np.asarray(gradients).sum(axis=0)  # a few in single precision, all in double
                optimizer.step(torch.from_numpy((total / len(labels)).astype(np.float32)))
        np.subtract(theta, model.numpy(), out=out)
        return float(losses.mean()), float(correct.mean())

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """The loss on the public validation split."""
        loss, _ = self._measure(theta, *self.held_out.validation)
        return {"validation_loss": loss}

    def test(self, theta: np.ndarray) -> dict[str, float]:
        """Loss and accuracy in percent on the test part, less the validation split."""
        loss, accuracy = self._measure(theta, *self.held_out.test)
        return {"test_loss": loss, "test_accuracy": accuracy}

    def _measure(self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        with self._threads.worker() as (worker, _):
            losses, correct, _ = evaluate_in_pieces(lambda *piece: worker.evaluate(theta, *piece), images, labels)
        return float(losses.mean()), 100 * float(correct.mean())
