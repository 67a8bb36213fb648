"""Partition in which every client draws its classes and images uniformly and
independently of the others, as in the papers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.data.partition import drawn
from dpfedbench.parts.partitions.task_clients import TaskClients

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.data.images import ImageDataset


class Shared(TaskClients):
    """Clients that may hold the same image.

    The first n clients do not depend on the number of clients that follow.
    """

    partition: Literal["shared"] = "shared"
    disjoint: ClassVar[bool] = False

    def draw(
        self, dataset: ImageDataset, *, ways: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        return drawn(
            dataset,
            "train",
            self.count,
            ways,
            self.examples_per_class,
            seed,
            "partition",
        )
