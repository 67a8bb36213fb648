"""Base of the partitions whose clients are few-shot tasks, or tasks of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpfedbench.data.clients_folder import ClientsFolder
from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import check_task_sizes, partition_of
from dpfedbench.data.tokens import is_text, load_texts
from dpfedbench.errors import BenchError
from dpfedbench.settings.sections import Clients

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.data.images import ImageDataset
    from dpfedbench.data.tokens import TextDataset


class TaskClients(Clients):
    """Each client holds so many images of each of so many training classes (`draw`)."""

    def folder(self, ways: int) -> str:
        return f"{ways}way-{self.count}clients-{self.examples_per_class}examples-{self.partition}"

    def make(self, data_dir: Path, *, ways: int, seed: int) -> ClientsFolder:
        if is_text(data_dir):
            return self.of_texts(load_texts(data_dir), seed=seed)
        dataset = load_dataset(data_dir)
        check_task_sizes(
            dataset,
            clients=self.count,
            ways=ways,
            examples_per_class=self.examples_per_class,
        )
        classes, examples = self.draw(dataset, ways=ways, seed=seed)
        own = {key: value for key, value in self.own.items() if key != self.tag}
        return partition_of(
            dataset, classes, examples, kind=self.partition, seed=seed, own=own
        )

    def draw(
        self, dataset: ImageDataset, *, ways: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the clients hold; of each draw a stream of its own, (seed,
        "partition/NAME", ...).

        Returns:
            Training classes, integers [clients, ways], distinct within a client; and
            the numbers of their images, integers [clients, ways, examples_per_class],
            distinct within a class.

        Raises:
            BenchError: they cannot be had of these data.
        """
        raise NotImplementedError

    def of_texts(self, texts: TextDataset, *, seed: int) -> ClientsFolder:
        """The clients of a data set of texts."""
        raise BenchError(
            f"clients.partition is {self.partition}, but {texts.name} holds texts: it"
            " shares out images"
        )
