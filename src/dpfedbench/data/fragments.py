"""Clients that hold records of few labels: the training records sorted by label, cut into fragments, dealt out.

The partition of Adap DP-FL's Section V: 400 fragments of 150 records, 40 of them to each of 10 clients.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpfedbench.data.clients_folder import PREVIEW, ClientsFolder
from dpfedbench.data.records import RecordDataset
from dpfedbench.errors import BenchError
from dpsum.randomness import stream

KIND = "fragments"


@dataclass(frozen=True, kw_only=True)
class RecordPartition(ClientsFolder):
    """Which records each client holds.

    Attributes:
        records: int32 [clients, most records of a client], indices into the data set's images; no record is in it
            twice, and rows of clients that hold fewer end with -1.
        summary: what it is: dataset, kind, seed, counts, and each client's records of each label.
    """

    arrays: ClassVar[tuple[str, ...]] = ("records",)

    records: np.ndarray

    def __post_init__(self) -> None:
        """Check the shape."""
        if self.records.ndim != 2 or self.records.dtype != np.int32:
            raise ValueError(f"records must be int32 [clients, records], not {self.records.dtype} {self.records.shape}")

    def preview(self) -> list[list[Any]]:
        rows: list[list[Any]] = [["client", "label", "class_name", "records"]]
        for client, counts in enumerate(self.summary["label_histogram"][:PREVIEW]):
            rows += [[client, label, self.called(label), count] for label, count in enumerate(counts) if count]
        return rows


def make_fragments(dataset: RecordDataset, *, clients: int, fragments: int, seed: int) -> RecordPartition:
    """Give each client equally many fragments, drawn at random; every training record goes to one client.

    The training records are sorted by label (those of one label keep their order) and cut into equal fragments.

    Args:
        dataset: only its training records are used.
        clients: how many.
        fragments: how many the training records are cut into; a multiple of `clients`.
        seed: the run's seed; drawn from the stream (seed, "partition", "fragments").

    Raises:
        BenchError: the fragments cannot be cut or dealt out equally.
    """
    pool = dataset.splits["train"]
    _check_divides(dataset.name, len(pool), clients, fragments)
    pool = pool[np.argsort(dataset.labels[pool], kind="stable")].astype(np.int32)
    dealt = stream(seed, "partition/fragments").permutation(fragments)
    records = pool.reshape(fragments, -1)[dealt].reshape(clients, -1)
    classes = len(dataset.class_names)
    histogram = [np.bincount(labels, minlength=classes).tolist() for labels in dataset.labels[records]]
    summary = {
        "dataset": dataset.name,
        "dataset_sha256": dataset.summary["sha256"],
        "split": "train",
        "kind": KIND,
        "seed": seed,
        "clients": clients,
        "fragments": fragments,
        "fragments_per_client": fragments // clients,
        "records_per_client": len(pool) // clients,
        "label_histogram": histogram,
        "labels_per_client": [sum(count > 0 for count in counts) for counts in histogram],
    }
    return RecordPartition(records=records, summary=summary, class_names=dataset.class_names)


def _check_divides(name: str, records: int, clients: int, fragments: int) -> None:
    for key, value in (("clients.count", clients), ("clients.fragments", fragments)):
        if value < 1:
            raise BenchError(f"{key} is {value}: it must be at least 1")
    if clients > fragments:
        raise BenchError(
            f"{clients} clients are more than {fragments} fragments: lower clients.count, or raise clients.fragments"
        )
    if records % clients:
        nearest = _nearest(clients, [count for count in range(1, records + 1) if records % count == 0])
        raise BenchError(
            f"{clients} clients cannot have equal shares of {name}'s {records} training records: "
            f"set clients.count to {nearest}, the nearest that can"
        )
    if fragments % clients or records % fragments:
        if fragments % clients:
            wrong = f"{fragments} fragments are not a multiple of {clients} clients"
        else:
            wrong = f"{name}'s {records} training records cannot be cut into {fragments} equal fragments"
        nearest = _nearest(fragments, [count for count in range(clients, records + 1, clients) if records % count == 0])
        raise BenchError(f"{wrong}: set clients.fragments to {nearest}, the nearest that works")


def _nearest(value: int, choices: list[int]) -> int:
    return min(choices, key=lambda choice: abs(choice - value))
