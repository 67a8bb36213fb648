"""Base of the partitions whose clients are few-shot tasks, or tasks of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.config.sections import PartitionScheme
from dpfedbench.data.clients_folder import ClientsFolder
from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import (
    check_task_sizes,
    draw_quarter_turns,
    partition_of,
)
from dpfedbench.data.text_tasks import make_text_partition
from dpfedbench.data.tokens import is_text, load_texts
from dpfedbench.errors import BenchError

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.data.images import ImageDataset
    from dpfedbench.data.tokens import TextDataset


class TaskClients(PartitionScheme):
    """Clients that each hold some images of some training classes (`draw`).

    Attributes:
        takes_texts: whether a client may be a task of a data set of texts instead.
    """

    takes_texts: ClassVar[bool] = False

    rotations: Literal["none", "quarter-turns"] = setting(
        "none",
        doc=(
            "quarter-turns: all images of a class at a client are rotated by 0,"
            " 90, 180 or 270 degrees, drawn for each client and class. Images of"
            " test tasks are never rotated"
        ),
        paper="quarter-turns (Omniglot in MAML++, on which DP-FedMeta's code is built)",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda clients, run: (
                clients.rotations != "none" and run.task.text is not None
            ),
            "clients.rotations is {part.rotations}, but clients of this run hold"
            " texts: set it to none",
        ),
    )

    def folder(self, ways: int) -> str:
        rotated = "" if self.rotations == "none" else f"{self.rotations}-"
        return (
            f"{ways}way-{self.count}clients-{self.examples_per_class}examples-"
            f"{rotated}{self.partition}"
        )

    def make(self, data_dir: Path, *, ways: int, seed: int) -> ClientsFolder:
        if is_text(data_dir):
            return self.of_texts(load_texts(data_dir), seed=seed)
        dataset = load_dataset(data_dir)
        check_task_sizes(dataset, "train", ways=ways, examples=self.examples_per_class)
        classes, examples = self.draw(dataset, ways=ways, seed=seed)
        settings = {
            key: value for key, value in self.own_values.items() if key != self.tag
        }
        return partition_of(
            dataset,
            classes,
            examples,
            kind=self.partition,
            seed=seed,
            own=settings,
            quarter_turns=self._quarter_turns(dataset, ways=ways, seed=seed),
        )

    def _quarter_turns(
        self, dataset: ImageDataset, *, ways: int, seed: int
    ) -> np.ndarray | None:
        """Return the turns of each client's classes (`Partition.quarter_turns`).

        Raises:
            BenchError: the images are not square.
        """
        if self.rotations == "none":
            return None
        height, width, _ = dataset.image_shape
        if height != width:
            raise BenchError(
                f"clients.rotations is {self.rotations}, but images of {dataset.name}"
                f" are {height} x {width} pixels: only square ones can be turned; set it"
                " to none"
            )
        return draw_quarter_turns(self.count, ways, seed)

    def draw(
        self, dataset: ImageDataset, *, ways: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the classes and images of each client.

        Each draw has its own stream, (seed, "partition/NAME", ...).

        Returns:
            Training classes, integers [clients, ways], distinct within a client; and
            the numbers of their images, integers [clients, ways, examples_per_class],
            distinct within a class.

        Raises:
            BenchError: these data do not allow such a partition.
        """
        raise NotImplementedError

    def of_texts(self, texts: TextDataset, *, seed: int) -> ClientsFolder:
        """Return the clients of a data set of texts, each with one task of it.

        Raises:
            BenchError: the partition is for images alone.
        """
        if not self.takes_texts:
            raise BenchError(
                f"clients.partition is {self.partition}, but {texts.name} holds texts:"
                " this partition is for images"
            )
        return make_text_partition(
            texts, clients=self.count, kind=self.partition, seed=seed
        )
