"""Clients that are few-shot tasks: each adapts the model to its support set and sends a MAML query gradient."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from dpfedbench.config import RunConfig
from dpfedbench.data.images import ImageDataset, load_dataset
from dpfedbench.data.partition import gather, load_partition
from dpfedbench.evaluation.meta_test import few_shot_network, validation_measures
from dpfedbench.federation.composition import Maml
from dpfedbench.federation.contributions import Contributions, Gather


class TaskClients:
    """The clients of a meta-learning run.

    Args:
        config: the run.
        update: what each of them computes.
        data_dir, clients_dir: a prepared data set of classes and a client partition of it.
        threads: CPU threads; changes no bit of the result.
        device: "cpu" or a CUDA device.

    Raises:
        BenchError: data missing or damaged.
    """

    columns: tuple[str, ...] = ("validation_loss",)
    each = 1

    def __init__(
        self, config: RunConfig, update: Maml, *, data_dir: Path, clients_dir: Path, threads: int, device: str
    ) -> None:
        self.config, self.threads, self.update = config, threads, update
        self.dataset: ImageDataset = load_dataset(data_dir)
        partition = load_partition(clients_dir)
        clients = config.clients
        sizes = {"support_per_class": clients.support_per_class, "query_per_class": clients.query_per_class}
        self.gather: Gather = lambda ids: gather(self.dataset, partition, ids, **sizes)
        self.net = few_shot_network(config, self.dataset.image_shape)
        self.contributions = Contributions(self.net, update, threads=threads, device=device)

    def stream(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Iterator[tuple[torch.Tensor, np.ndarray, np.ndarray]]:
        """Query gradients, with losses and accuracies on the query sets."""
        return self.contributions.stream(theta, cohort, self.gather, self.update.step_weights(index))

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Accuracy in percent and loss on the query sets of public validation tasks, after adaptation."""
        return validation_measures(self.net, theta, self.dataset, self.config, self.threads)

    def test(self, theta: np.ndarray) -> dict[str, float]:
        """Nothing: a meta-model is tested when it is finished."""
        return {}
