"""Data of a run's clients: few-shot tasks or labelled records."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from dpfedbench.data.clients_folder import check_made_for
from dpfedbench.data.images import load_dataset
from dpfedbench.data.owners import count_held_out
from dpfedbench.data.partition import Partition, RecordPartition, TaskBatch, gather
from dpfedbench.data.records import load_any_records
from dpsum.randomness import stream


class Tasks:
    """Clients that are few-shot tasks.

    Args:
        data_dir, clients_dir: folders of a prepared data set of classes and of a
            partition of it.
        support_per_class, query_per_class: numbers of examples that a client uses.

    Raises:
        BenchError: data are missing or damaged.
    """

    def __init__(
        self,
        data_dir: Path,
        clients_dir: Path,
        *,
        support_per_class: int,
        query_per_class: int,
    ) -> None:
        self.dataset = load_dataset(data_dir)
        self._partition = Partition.load(clients_dir)
        self._sizes = {
            "support_per_class": support_per_class,
            "query_per_class": query_per_class,
        }

    def gather(self, ids: np.ndarray) -> TaskBatch:
        """Return the data of the clients with these ids."""
        return gather(self.dataset, self._partition, ids, **self._sizes)

    def gather_left_out(self, ids: np.ndarray, per_class: int) -> TaskBatch:
        """Return clients' support sets, and query sets that training leaves out.

        The query sets have `per_class` examples of each class. They lie behind the
        support and query examples that training uses.
        """
        trained = self._sizes["query_per_class"]
        sizes = self._sizes | {"query_per_class": trained + per_class}
        batch = gather(self.dataset, self._partition, ids, **sizes)

        def left_out(values: np.ndarray) -> np.ndarray:
            of_class = (len(ids), -1, trained + per_class)
            by_class = values.reshape(*of_class, *values.shape[2:])[:, :, trained:]
            return by_class.reshape(len(ids), -1, *values.shape[2:])

        return dataclasses.replace(
            batch, query_x=left_out(batch.query_x), query_y=left_out(batch.query_y)
        )


class Records:
    """Clients that hold labelled records.

    Args:
        data_dir, clients_dir: folders of prepared records (or of classes taken as
            labels) and of a partition of the records.

    Attributes:
        record_indices: indices of each client's training records in the data set, int64 [n]
            each, ascending.
        images, labels: each client's training records, in that order.
        test_record_indices, test_images, test_labels: the same for the records left out of
            training; empty until `leave_out`.

    Raises:
        BenchError: data are missing or damaged.
    """

    def __init__(self, data_dir: Path, clients_dir: Path) -> None:
        self.dataset = load_any_records(data_dir)
        partition = RecordPartition.load(clients_dir)
        check_made_for(self.dataset.name, self.dataset.summary, partition.summary)
        self.record_indices = [
            np.sort(records[records >= 0]) for records in partition.records
        ]
        self.images, self.labels = self._of(self.record_indices)
        self.test_record_indices: list[np.ndarray] = []
        self.test_images: list[np.ndarray] = []
        self.test_labels: list[np.ndarray] = []

    def leave_out(self, share: float, *, seed: int) -> None:
        """Move a share of each client's records from training to its test.

        A client with two records or more keeps at least one for training and one for
        the test. A client with one record keeps it for training.
        """
        self.test_record_indices = []
        for client, indices in enumerate(self.record_indices):
            count = len(indices)
            tested = count_held_out(count, share)
            order = stream(seed, "held-out-examples", client).permutation(count)
            self.test_record_indices.append(np.sort(indices[order[:tested]]))
            self.record_indices[client] = np.sort(indices[order[tested:]])
        self.images, self.labels = self._of(self.record_indices)
        self.test_images, self.test_labels = self._of(self.test_record_indices)

    def _of(
        self, record_indices: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the images and the labels of each client's records."""
        images = [self.dataset.images[indices] for indices in record_indices]
        labels = [self.dataset.labels[indices] for indices in record_indices]
        return list(map(np.asarray, images)), labels
