"""Base of the partitions whose clients hold labelled records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpfedbench.config.sections import PartitionScheme
from dpfedbench.data.partition import RecordPartition, record_partition_of
from dpfedbench.data.records import load_any_records

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.data.records import RecordDataset


class RecordClients(PartitionScheme):
    """Clients that each hold some of the training records; no record is at two clients.

    `deal` chooses the records.
    """

    holds: ClassVar[str] = "records"

    def make(self, data_dir: Path, *, ways: int, seed: int) -> RecordPartition:
        dataset = load_any_records(data_dir)
        settings = {
            key: value for key, value in self.own_values.items() if key != self.tag
        }
        return record_partition_of(
            dataset,
            self.deal(dataset, seed=seed),
            kind=self.partition,
            seed=seed,
            own=settings,
        )

    def deal(self, dataset: RecordDataset, *, seed: int) -> list[np.ndarray]:
        """Return the training records of each client, as integers.

        They are drawn from the stream (seed, "partition/NAME").

        Raises:
            BenchError: these data do not allow such a partition.
        """
        raise NotImplementedError
