"""Every client draws its classes, and its images of them, uniformly and apart from the
others, as in the papers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.data.partition import drawn
from dpfedbench.parts.partitions.task_clients import TaskClients

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.data.images import ImageDataset


class Shared(TaskClients):
    """Two clients may hold one image. The first n clients do not depend on how many
    follow.
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
