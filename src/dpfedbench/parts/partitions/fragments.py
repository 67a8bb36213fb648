"""Clients that hold records of few labels: the training records are sorted by label,
cut into fragments, and dealt out.

Section V of Adap DP-FL has this partition: 400 fragments of 150 records, 40 of them for
each of 10 clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpfedbench.parts.partitions.record_clients import RecordClients
from dpsum.randomness import stream

if TYPE_CHECKING:
    from dpfedbench.data.records import RecordDataset


class Fragments(RecordClients):
    """Clients that hold equally many random fragments of the training records.

    The records are sorted by label and cut into equal fragments.
    """

    partition: Literal["fragments"] = "fragments"
    fragments: int = setting(
        ge=1, le=10_000_000, doc="number of fragments; a multiple of `count`"
    )

    def model_post_init(self, _: Any) -> None:
        """Refuse fragments that cannot be dealt out equally."""
        if self.count > self.fragments:
            raise BenchError(
                f"clients.count is {self.count}, more than the {self.fragments}"
                " fragments of clients.fragments: lower clients.count or raise"
                " clients.fragments"
            )
        if self.fragments % self.count:
            raise BenchError(
                f"clients.fragments ({self.fragments}) is not a multiple of"
                f" clients.count ({self.count}): try"
                f" {self.count * round(self.fragments / self.count)} fragments"
            )

    def folder(self, ways: int) -> str:
        return f"{self.count}clients-{self.fragments}fragments"

    def check_room(self, dataset: str, *, ways: int, classes: int, each: int) -> None:
        for key, parts in (
            ("clients.count", self.count),
            ("clients.fragments", self.fragments),
        ):
            if classes * each % parts:
                raise BenchError(
                    f"{key} is {parts:,}, which does not divide the {classes * each:,}"
                    f" training records of {dataset}: change it"
                )

    def deal(self, dataset: RecordDataset, *, seed: int) -> list[np.ndarray]:
        """Deal equally many fragments to each client.

        Records of one label keep their order in the data set.
        """
        pool = dataset.splits["train"]
        self.check_room(dataset.name, ways=0, classes=1, each=len(pool))
        pool = pool[np.argsort(dataset.labels[pool], kind="stable")]
        dealt = stream(seed, "partition/fragments").permutation(self.fragments)
        return list(pool.reshape(self.fragments, -1)[dealt].reshape(self.count, -1))
