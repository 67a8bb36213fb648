"""Natural clients: each client is one owner of the data (a person, a device, an
institution), and holds that owner's examples.

N is the number of owners with enough examples. `clients.count` is the most clients: if
there are more owners, a draw chooses among them.

N is public, as for every partition: zero-out adjacency replaces an owner's contribution
by zero and does not hide that the owner is a client. So it is public too that an owner
has enough examples to be one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpfedbench.parts.partitions.record_clients import RecordClients
from dpfedbench.parts.partitions.task_clients import TaskClients
from dpsum.randomness import stream

if TYPE_CHECKING:
    from dpfedbench.data.images import ImageDataset, Prepared
    from dpfedbench.data.owners import Owners
    from dpfedbench.data.records import RecordDataset


class Natural(RecordClients):
    """Clients that each hold the training records of one owner."""

    partition: Literal["natural"] = "natural"
    equal_sizes: ClassVar[bool] = False
    synthetic: ClassVar[bool] = False
    least: int = setting(
        2, ge=1, le=10_000_000, doc="smallest number of training records of a client"
    )

    def folder(self, ways: int) -> str:
        return f"{self.count}clients-natural-least{self.least}"

    def eligible(self, counts: np.ndarray, *, ways: int) -> np.ndarray:
        return np.flatnonzero(counts.sum(axis=1) >= self.least)

    def deal(self, dataset: RecordDataset, *, seed: int) -> list[np.ndarray]:
        owners = _owners_of(dataset)
        pool = dataset.splits["train"]
        counts = owners.counts(pool)[:, None]
        chosen = _choose(self.eligible(counts, ways=1), self.count, dataset.name, seed)
        of_record = owners.of_example[pool]
        return [pool[of_record == owner] for owner in chosen]


class NaturalTasks(TaskClients):
    """Few-shot clients that each hold some classes of one owner, with the owner's images.
    For texts, each client is one task of the data set, such as a role of a play.
    """

    partition: Literal["natural-tasks"] = "natural-tasks"
    takes_texts: ClassVar[bool] = True
    synthetic: ClassVar[bool] = False

    def eligible(self, counts: np.ndarray, *, ways: int) -> np.ndarray:
        enough = counts >= self.examples_per_class
        return np.flatnonzero(enough.sum(axis=1) >= ways)

    def draw(
        self, dataset: ImageDataset, *, ways: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        owners = _owners_of(dataset)
        pool = dataset.splits["train"]
        counts = np.zeros((len(owners.names), len(pool)), np.int64)
        for column, index in enumerate(pool):
            counts[:, column] = owners.counts(np.array([index]))
        eligible = self.eligible(counts, ways=ways)
        chosen = _choose(eligible, self.count, dataset.name, seed)
        classes = np.empty((len(chosen), ways), np.int64)
        examples = np.empty((*classes.shape, self.examples_per_class), np.int64)
        for row, owner in enumerate(chosen.tolist()):
            rng = stream(seed, "partition/natural-tasks", owner)
            enough = pool[counts[owner] >= self.examples_per_class]
            classes[row] = rng.permutation(enough)[:ways]
            for column, index in enumerate(classes[row]):
                held = np.flatnonzero(owners.of_example[index] == owner)
                examples[row, column] = rng.permutation(held)[: self.examples_per_class]
        return classes, examples


def _owners_of(dataset: Prepared) -> Owners:
    """Return the owners of a data set.

    Raises:
        BenchError: it knows none.
    """
    if dataset.owners is None:
        raise BenchError(
            f"clients.partition is natural, but {dataset.name} knows no owners of its"
            " examples: take another partition, or give its reader the owners"
        )
    return dataset.owners


def _choose(eligible: np.ndarray, count: int, dataset: str, seed: int) -> np.ndarray:
    """Draw `count` of the owners that have enough examples, ascending.

    Raises:
        BenchError: there are fewer owners.
    """
    if count > len(eligible):
        raise BenchError(
            f"clients.count is {count}, but {dataset} has {len(eligible)} owners with"
            " enough examples: lower it to that, or plan the runs again if the data"
            " changed"
        )
    order = stream(seed, "partition/natural").permutation(len(eligible))
    return np.sort(eligible[order[:count]])
