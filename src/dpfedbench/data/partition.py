"""Simulated clients and few-shot tasks: their images or records, and batches of them.

`parts.partitions` decides how a data set is divided. summary.json records how far
clients share images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dpfedbench.data.clients_folder import (
    ClientsFolder,
    check_made_for,
    of_training,
)
from dpfedbench.data.images import ImageDataset
from dpfedbench.data.records import RecordDataset
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpsum.randomness import stream

BLOCK = 4096
"""Number of clients per random stream; part of the meaning of a seed."""


@dataclass(frozen=True, kw_only=True)
class Partition(ClientsFolder):
    """Images of each client (or task).

    Attributes:
        classes: integers [clients, ways], indices into the data set's classes, distinct
            within a row; the position in the row is the label.
        examples: integers [clients, ways, examples], distinct within a class of a
            client, in random order.
        quarter_turns: integers [clients, ways] from 0 to 3: number of counterclockwise
            turns by 90 degrees of a client's images of a class. None: no image is
            turned.
        summary: dataset, split, kind, seed, counts, and how often an image is used. A
            turned image is the same image.
    """

    arrays: ClassVar[tuple[str, ...]] = ("classes", "examples")
    optional_arrays: ClassVar[tuple[str, ...]] = ("quarter_turns",)

    classes: np.ndarray
    examples: np.ndarray
    quarter_turns: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Check the shapes against each other."""
        if (
            self.classes.ndim != 2
            or self.examples.ndim != 3
            or self.examples.shape[:2] != self.classes.shape
        ):
            raise ValueError(
                f"classes {self.classes.shape} and examples {self.examples.shape}"
                " have different shapes"
            )
        turns = self.quarter_turns
        if turns is not None and (
            turns.shape != self.classes.shape or not np.isin(turns, range(4)).all()
        ):
            raise ValueError(
                f"quarter_turns must be 0 to 3 for each of {self.classes.shape}"
            )

    @property
    def ways(self) -> int:
        """Number of classes per client."""
        return int(self.classes.shape[1])

    @property
    def examples_per_class(self) -> int:
        """Number of images per class of a client."""
        return int(self.examples.shape[2])


@dataclass(frozen=True, kw_only=True)
class RecordPartition(ClientsFolder):
    """Records of each client.

    Attributes:
        records: int32 [clients, most records of a client], indices into the data set's
            images; no record occurs twice, and shorter rows are padded with -1.
        summary: dataset, kind, seed, counts, and each client's records of each label.
    """

    arrays: ClassVar[tuple[str, ...]] = ("records",)

    records: np.ndarray


@dataclass(frozen=True, kw_only=True)
class TaskBatch:
    """Data of n clients or tasks.

    Images are in [0, 1], examples are ordered by class, and labels are 0 ... ways - 1.

    Attributes:
        support_x: float32 [n, ways * support_per_class, H, W, C].
        support_y: int64 [n, ways * support_per_class].
        query_x: float32 [n, ways * query_per_class, H, W, C].
        query_y: int64 [n, ways * query_per_class].
    """

    support_x: np.ndarray
    support_y: np.ndarray
    query_x: np.ndarray
    query_y: np.ndarray

    def select(self, tasks: slice) -> TaskBatch:
        """Return the data of some of the tasks."""
        return TaskBatch(**{name: values[tasks] for name, values in vars(self).items()})


def partition_of(
    dataset: ImageDataset,
    classes: np.ndarray,
    examples: np.ndarray,
    *,
    kind: str,
    seed: int,
    own: Mapping[str, Any],
    quarter_turns: np.ndarray | None = None,
) -> Partition:
    """Return the partition of clients that hold these examples of training classes.

    Args:
        dataset: the data set.
        classes: integers [clients, ways].
        examples: integers [clients, ways, examples].
        kind: name of the kind of partition.
        seed: the run's seed.
        own: settings of the partition, for the summary.
        quarter_turns: as for `Partition`.
    """
    (clients, ways, examples_each) = examples.shape
    pool = dataset.splits["train"]
    used = np.bincount(
        (
            classes[:, :, None].astype(np.int64) * dataset.examples_per_class + examples
        ).ravel(),
        minlength=dataset.images.shape[0] * dataset.examples_per_class,
    ).reshape(-1, dataset.examples_per_class)[pool]
    summary = {
        **of_training(dataset, kind=kind, seed=seed, clients=clients),
        "ways": ways,
        "examples_per_class": examples_each,
        # A client holds an image at most once, so the uses of an image equal its
        # clients.
        "clients_per_image": {
            "mean": float(used.mean()),
            "min": int(used.min()),
            "max": int(used.max()),
        },
        **own,
    }
    return Partition(
        classes=classes.astype(_index_type(int(pool.max()) + 1)),
        examples=examples.astype(_index_type(dataset.examples_per_class)),
        quarter_turns=quarter_turns,
        summary=summary,
    )


def record_partition_of(
    dataset: RecordDataset,
    held: Sequence[np.ndarray],
    *,
    kind: str,
    seed: int,
    own: Mapping[str, Any],
) -> RecordPartition:
    """Return the partition of clients that hold these training records.

    Args:
        dataset: the data set.
        held: each client's record indices.
        kind, seed, own: as for `partition_of`.
    """
    sizes = [len(records) for records in held]
    classes = len(dataset.class_names)
    padded = np.full((len(held), max(sizes)), -1, np.int32)
    for row, records in zip(padded, held, strict=True):
        row[: len(records)] = records
    histogram = [
        np.bincount(dataset.labels[records], minlength=classes).tolist()
        for records in held
    ]
    summary = {
        **of_training(dataset, kind=kind, seed=seed, clients=len(held)),
        **own,
        "records_per_client": sizes[0] if len(set(sizes)) == 1 else sizes,
        "label_histogram": histogram,
        "labels_per_client": [
            sum(count > 0 for count in counts) for counts in histogram
        ],
    }
    return RecordPartition(records=padded, summary=summary)


def sample_tasks(
    dataset: ImageDataset,
    split: str,
    *,
    count: int,
    ways: int,
    shots: int,
    query_per_class: int,
    seed: int,
    purpose: str,
) -> Partition:
    """Draw new tasks for validation or meta-testing uniformly.

    Support and query set of a task are disjoint.

    Args:
        dataset: the data set of the tasks.
        split: "train", "validation" or "test".
        count: number of tasks. The first n tasks do not depend on it.
        ways: classes per task.
        shots: support images per class.
        query_per_class: query images per class.
        seed: the run's seed.
        purpose: name of the random stream, e.g. "meta-test". Other purposes draw other
            tasks.

    Returns:
        A partition with shots + query_per_class examples per class; `gather` uses
        the first ones as support.

    Raises:
        BenchError: the split has too few classes, or images per class.
    """
    check_task_sizes(dataset, split, ways=ways, examples=shots + query_per_class)
    classes, examples = drawn(
        dataset,
        split,
        count,
        ways,
        shots + query_per_class,
        seed,
        f"tasks-{purpose}-{split}",
    )
    summary = {
        "dataset": dataset.name,
        "dataset_sha256": dataset.summary["sha256"],
        "split": split,
        "kind": "tasks",
        "purpose": purpose,
        "seed": seed,
        "tasks": count,
        "ways": ways,
        "shots": shots,
        "query_per_class": query_per_class,
    }
    return Partition(classes=classes, examples=examples, summary=summary)


def gather(
    dataset: ImageDataset,
    partition: Partition,
    ids: np.ndarray,
    *,
    support_per_class: int,
    query_per_class: int,
) -> TaskBatch:
    """Return the images of selected clients.

    Args:
        dataset: the data set that the partition was made for.
        partition: clients or tasks.
        ids: integers [n], the selected clients in the order of the result.
        support_per_class: support images per class, the first ones of each class.
        query_per_class: query images per class, which follow the support images.

    Raises:
        BenchError: a client holds too few images, or the partition was made for other
            images.
    """
    if support_per_class + query_per_class > partition.examples_per_class:
        raise BenchError(
            f"{support_per_class} support and {query_per_class} query images per class"
            f" are more than the {partition.examples_per_class} that a client holds:"
            " raise clients.examples_per_class, or lower the support or query images"
            " per class"
        )
    check_made_for(dataset.name, dataset.summary, partition.summary)
    ids = np.asarray(ids)
    if len(ids) and (ids.min() < 0 or ids.max() >= len(partition)):
        raise IndexError(f"client ids must be in 0 ... {len(partition) - 1}")
    classes = partition.classes[ids].astype(np.intp)
    examples = partition.examples[ids].astype(np.intp)
    images = np.asarray(dataset.images)
    turns = None if partition.quarter_turns is None else partition.quarter_turns[ids]

    def part(start: int, per_class: int) -> tuple[np.ndarray, np.ndarray]:
        pixels = images[classes[:, :, None], examples[:, :, start : start + per_class]]
        if turns is not None:
            _turn(pixels, turns)
        x = pixels.reshape(
            len(ids), partition.ways * per_class, *dataset.image_shape
        ).astype(np.float32)
        x /= np.float32(255)
        y = np.repeat(np.arange(partition.ways, dtype=np.int64), per_class)
        return x, np.tile(y, (len(ids), 1))

    support_x, support_y = part(0, support_per_class)
    query_x, query_y = part(support_per_class, query_per_class)
    return TaskBatch(
        support_x=support_x, support_y=support_y, query_x=query_x, query_y=query_y
    )


def _turn(pixels: np.ndarray, quarter_turns: np.ndarray) -> None:
    """Turn images [n, ways, examples, side, side, C] counterclockwise in place.

    `quarter_turns` [n, ways] is the number of turns of each class.
    """
    for turns in (1, 2, 3):
        turned = quarter_turns == turns
        # A copy is needed, because source and target are the same array.
        pixels[turned] = np.rot90(pixels[turned], turns, axes=(2, 3)).copy()


def draw_quarter_turns(clients: int, ways: int, seed: int) -> np.ndarray:
    """Draw uniform numbers of quarter turns from 0 to 3, int8 [clients, ways].

    The first n clients do not depend on the number of clients.
    """
    turns = np.empty((clients, ways), dtype=np.int8)
    for block, start in enumerate(range(0, clients, BLOCK)):
        rng = stream(seed, "partition-rotations", block)
        stop = min(start + BLOCK, clients)
        drawn_turns = rng.integers(4, size=(BLOCK, ways), dtype=np.int8)
        turns[start:stop] = drawn_turns[: stop - start]
    return turns


def check_task_sizes(
    dataset: ImageDataset, split: str, *, ways: int, examples: int
) -> None:
    """Refuse tasks with more classes or images than a split of the data set has.

    Raises:
        BenchError: the message names the number and the available amount.
    """
    classes = len(dataset.splits[split])
    if ways > classes:
        raise BenchError(
            f"{ways} ways are more than the {classes} {split} classes of"
            f" {dataset.name}: lower task.ways"
        )
    if examples > dataset.examples_per_class:
        raise BenchError(
            f"{examples} images per class (support and query) are more than the"
            f" {dataset.examples_per_class} that a class of {dataset.name} holds: lower"
            " the shots, the query images or the examples per class"
        )


def _index_type(dataset_size: int) -> type[np.signedinteger[Any]]:
    return np.int16 if dataset_size <= np.iinfo(np.int16).max else np.int32


def drawn(
    dataset: ImageDataset,
    split: str,
    clients: int,
    ways: int,
    examples_per_class: int,
    seed: int,
    purpose: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw classes and examples of clients uniformly, without repetition.

    The first n clients do not depend on the number of clients.

    Returns:
        Classes [clients, ways] of the split, and examples [clients, ways, examples].
    """
    pool = dataset.splits[split]
    per_class = dataset.examples_per_class
    classes = np.empty((clients, ways), dtype=_index_type(int(pool.max()) + 1))
    examples = np.empty(
        (clients, ways, examples_per_class), dtype=_index_type(per_class)
    )
    for block, start in enumerate(range(0, clients, BLOCK)):
        # Whole blocks are drawn and the last one is cut, so that a client does not
        # depend on the number of clients.
        rng = stream(seed, purpose, block)
        stop = min(start + BLOCK, clients)
        chosen = pool[distinct(rng, BLOCK, len(pool), ways)]
        picked = distinct(rng, BLOCK * ways, per_class, examples_per_class)
        classes[start:stop] = chosen[: stop - start]
        examples[start:stop] = picked.reshape(BLOCK, ways, -1)[: stop - start]
    return classes, examples


def distinct(rng: np.random.Generator, rows: int, size: int, take: int) -> np.ndarray:
    """Draw rows of `take` distinct numbers below `size`, in uniformly random order.

    Floyd's sampling (Bentley and Floyd 1987) on all rows at once, then a shuffle of
    each row.
    """
    if 2 * take > size:
        # Here a complete shuffle is not slower than Floyd's comparisons.
        return rng.permuted(np.broadcast_to(np.arange(size), (rows, size)), axis=1)[
            :, :take
        ]
    chosen = np.empty((take, rows), dtype=np.int32)
    for step, last in enumerate(range(size - take, size)):
        pick = rng.integers(0, last + 1, size=rows, dtype=np.int32)
        taken = (chosen[:step] == pick).any(axis=0)
        chosen[step] = np.where(taken, last, pick)
    return rng.permuted(np.ascontiguousarray(chosen.T), axis=1)
