"""Simulated clients and few-shot tasks: which images each one holds, and how batches are made from them.

Clients are tasks drawn from shared images, as in the papers; summary.json says how far images are shared. A
`disjoint` partition gives no image to two clients.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpfedbench.data.clients_folder import PREVIEW, ClientsFolder, check_made_for
from dpfedbench.data.images import SPLITS, ImageDataset
from dpfedbench.errors import BenchError
from dpsum.randomness import stream

KINDS = ("shared", "disjoint")
_BLOCK = 4096  # clients drawn from one stream; part of what a seed means


@dataclass(frozen=True, kw_only=True)
class Partition(ClientsFolder):
    """Which images each client (or task) holds.

    Attributes:
        classes: integers [clients, ways], indices into the data set's classes, distinct within a row; the
            position in the row is the label.
        examples: integers [clients, ways, examples], distinct within a class of a client, in random order.
        summary: what it is: dataset, split, kind, seed, counts, and how often an image is used.
    """

    arrays: ClassVar[tuple[str, ...]] = ("classes", "examples")

    classes: np.ndarray
    examples: np.ndarray

    def __post_init__(self) -> None:
        """Check the shapes against each other."""
        if self.classes.ndim != 2 or self.examples.ndim != 3 or self.examples.shape[:2] != self.classes.shape:
            raise ValueError(f"classes {self.classes.shape} and examples {self.examples.shape} do not fit together")

    @property
    def ways(self) -> int:
        """Classes per client."""
        return int(self.classes.shape[1])

    @property
    def examples_per_class(self) -> int:
        """Images per class of a client."""
        return int(self.examples.shape[2])

    def preview(self) -> list[list[Any]]:
        rows: list[list[Any]] = [["client", "label", "class", "class_name", "examples"]]
        for client in range(min(PREVIEW, len(self))):
            for label, index in enumerate(self.classes[client]):
                examples = " ".join(map(str, self.examples[client, label]))
                rows.append([client, label, index, self.called(index), examples])
        return rows


@dataclass(frozen=True, kw_only=True)
class TaskBatch:
    """The data of n clients or tasks; images in [0, 1], examples class by class, labels 0 ... ways - 1.

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


def make_partition(
    dataset: ImageDataset, *, clients: int, ways: int, examples_per_class: int, kind: str, seed: int
) -> Partition:
    """Give each client images of a few training classes.

    "shared": every client draws its classes, and its images of them, uniformly and apart from the others. The
    first n clients do not depend on how many follow.
    "disjoint": no image is in two clients. Classes are dealt like cards, one shuffled deck after another, so
    that as many clients fit as can.

    Args:
        dataset: only its training classes are used.
        clients: how many.
        ways: classes per client.
        examples_per_class: images a client holds of each of its classes, support and query together.
        kind: "shared" or "disjoint".
        seed: the run's seed; drawn from the streams (seed, "partition", ...).

    Raises:
        BenchError: the data set has too few classes, or images per class, or (disjoint) images in all.
    """
    if kind not in KINDS:
        raise BenchError(f"clients.partition is {kind!r}: choose one of {', '.join(KINDS)}")
    for name, value in (
        ("clients.count", clients),
        ("task.ways", ways),
        ("clients.examples_per_class", examples_per_class),
    ):
        _require_positive(name, value)
    pool = dataset.splits["train"]
    _check_fits(dataset, "train", ways, examples_per_class)
    if kind == "shared":
        classes, examples = _draw(dataset, "train", clients, ways, examples_per_class, seed, "partition")
    else:
        classes, examples = _deal(stream(seed, "partition"), dataset, pool, clients, ways, examples_per_class)
    used = np.bincount(
        (classes[:, :, None].astype(np.int64) * dataset.examples_per_class + examples).ravel(),
        minlength=dataset.images.shape[0] * dataset.examples_per_class,
    ).reshape(-1, dataset.examples_per_class)[pool]
    summary = {
        "dataset": dataset.name,
        "dataset_sha256": dataset.summary["sha256"],
        "split": "train",
        "kind": kind,
        "seed": seed,
        "clients": clients,
        "ways": ways,
        "examples_per_class": examples_per_class,
        "images_per_client": ways * examples_per_class,
        # A client holds an image at most once, so an image's uses are its clients.
        "clients_per_image": {"mean": float(used.mean()), "min": int(used.min()), "max": int(used.max())},
        "images_used": int((used > 0).sum()),
        "images_available": int(used.size),
        "split_classes": {split: len(dataset.splits[split]) for split in SPLITS},
        "split_images": {split: len(dataset.splits[split]) * dataset.examples_per_class for split in SPLITS},
    }
    return Partition(classes=classes, examples=examples, summary=summary, class_names=dataset.class_names)


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
    """Draw fresh tasks for validation or meta-testing, uniformly; support and query of a task are disjoint.

    Args:
        dataset: where they come from.
        split: "train", "validation" or "test".
        count: how many tasks; the first n do not depend on it.
        ways: classes per task.
        shots: support images per class.
        query_per_class: query images per class.
        seed: the run's seed.
        purpose: names the stream, e.g. "meta-test"; other purposes draw other tasks.

    Returns:
        A partition with shots + query_per_class examples per class; `gather` takes the first as support.

    Raises:
        BenchError: the split has too few classes, or images per class.
    """
    if split not in SPLITS:
        raise BenchError(f"there is no split {split!r}: choose one of {', '.join(SPLITS)}")
    for name, value in (("tasks", count), ("ways", ways), ("shots", shots), ("query_per_class", query_per_class)):
        _require_positive(name, value)
    _check_fits(dataset, split, ways, shots + query_per_class)
    classes, examples = _draw(dataset, split, count, ways, shots + query_per_class, seed, f"tasks-{purpose}-{split}")
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
    dataset: ImageDataset, partition: Partition, ids: np.ndarray, *, support_per_class: int, query_per_class: int
) -> TaskBatch:
    """Fetch the images of some clients: of each class the first examples as support, the next as query.

    Args:
        dataset: the data set that the partition was made for.
        partition: clients or tasks.
        ids: integers [n], which of them, in the order wanted.
        support_per_class: support images per class.
        query_per_class: query images per class.

    Raises:
        BenchError: a client holds too few images, or the partition was made for other images.
    """
    if support_per_class + query_per_class > partition.examples_per_class:
        raise BenchError(
            f"{support_per_class} support and {query_per_class} query images per class are more than the "
            f"{partition.examples_per_class} that a client holds: raise clients.examples_per_class, or lower "
            f"the support or query images per class"
        )
    check_made_for(dataset.name, dataset.summary, partition.summary)
    ids = np.asarray(ids)
    if len(ids) and (ids.min() < 0 or ids.max() >= len(partition)):
        raise IndexError(f"client ids must be in 0 ... {len(partition) - 1}")
    classes = partition.classes[ids].astype(np.intp)
    examples = partition.examples[ids].astype(np.intp)
    images = np.asarray(dataset.images)

    def part(start: int, per_class: int) -> tuple[np.ndarray, np.ndarray]:
        pixels = images[classes[:, :, None], examples[:, :, start : start + per_class]]
        x = pixels.reshape(len(ids), partition.ways * per_class, *dataset.image_shape).astype(np.float32)
        x /= np.float32(255)
        y = np.repeat(np.arange(partition.ways, dtype=np.int64), per_class)
        return x, np.tile(y, (len(ids), 1))

    support_x, support_y = part(0, support_per_class)
    query_x, query_y = part(support_per_class, query_per_class)
    return TaskBatch(support_x=support_x, support_y=support_y, query_x=query_x, query_y=query_y)


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise BenchError(f"{name} is {value}: it must be at least 1")


def _check_fits(dataset: ImageDataset, split: str, ways: int, examples: int) -> None:
    classes = len(dataset.splits[split])
    if ways > classes:
        raise BenchError(f"{ways} ways are more than the {classes} {split} classes of {dataset.name}: lower task.ways")
    if examples > dataset.examples_per_class:
        raise BenchError(
            f"{examples} images per class (support and query) are more than the "
            f"{dataset.examples_per_class} that a class of {dataset.name} holds: lower the shots, the query "
            f"images or the examples per class"
        )


def _index_type(dataset_size: int) -> type[np.signedinteger[Any]]:
    return np.int16 if dataset_size <= np.iinfo(np.int16).max else np.int32


def _draw(
    dataset: ImageDataset, split: str, clients: int, ways: int, examples_per_class: int, seed: int, purpose: str
) -> tuple[np.ndarray, np.ndarray]:
    """Classes [clients, ways] of the split, examples [clients, ways, examples]; uniform, no repeats."""
    pool, per_class = dataset.splits[split], dataset.examples_per_class
    classes = np.empty((clients, ways), dtype=_index_type(int(pool.max()) + 1))
    examples = np.empty((clients, ways, examples_per_class), dtype=_index_type(per_class))
    for block, start in enumerate(range(0, clients, _BLOCK)):
        # Whole blocks are drawn, and the last one cut: a client does not depend on how many there are.
        rng, stop = stream(seed, purpose, block), min(start + _BLOCK, clients)
        chosen = pool[_distinct(rng, _BLOCK, len(pool), ways)]
        picked = _distinct(rng, _BLOCK * ways, per_class, examples_per_class)
        classes[start:stop] = chosen[: stop - start]
        examples[start:stop] = picked.reshape(_BLOCK, ways, -1)[: stop - start]
    return classes, examples


def _distinct(rng: np.random.Generator, rows: int, size: int, take: int) -> np.ndarray:
    """Rows of `take` distinct numbers below `size` in random order, each ordered choice equally likely.

    Floyd's sampling (Bentley and Floyd 1987) on all rows at once, then a shuffle of each row.
    """
    if 2 * take > size:
        # A whole shuffle costs no more than Floyd's comparisons here.
        return rng.permuted(np.broadcast_to(np.arange(size), (rows, size)), axis=1)[:, :take]
    chosen = np.empty((take, rows), dtype=np.int32)
    for step, last in enumerate(range(size - take, size)):
        pick = rng.integers(0, last + 1, size=rows, dtype=np.int32)
        taken = (chosen[:step] == pick).any(axis=0)
        chosen[step] = np.where(taken, last, pick)
    return rng.permuted(np.ascontiguousarray(chosen.T), axis=1)


def _deal(
    rng: np.random.Generator, dataset: ImageDataset, pool: np.ndarray, clients: int, ways: int, examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Deal each image to one client at most.

    Each training class is cut at random into `shares` disjoint sets of images. A deck has each class once;
    decks follow one another, and every client takes the next `ways` cards. A hand that spans two decks could
    hold a class twice; the new deck is then rearranged so that its first cards are none of those in the hand.
    """
    shares = dataset.examples_per_class // examples
    most = len(pool) * shares // ways
    if clients > most:
        raise BenchError(
            f"{clients} clients of {ways} classes with {examples} images each cannot be disjoint: "
            f"{dataset.name}'s training images are enough for {most}; lower clients.count to that, or take "
            f"clients.partition: shared"
        )
    cards: list[np.ndarray] = []
    for deck in range(shares):
        order = rng.permutation(len(pool))
        held = (deck * len(pool)) % ways  # cards that the current client has from the previous deck
        if held:
            clash = np.isin(order, cards[-1][-held:])
            front = np.flatnonzero(clash[: ways - held])
            spare = ways - held + np.flatnonzero(~clash[ways - held :])[: len(front)]
            order[front], order[spare] = order[spare], order[front]
        cards.append(order)
    hands = np.concatenate(cards)[: clients * ways].reshape(clients, ways)
    share = (np.arange(clients * ways) // len(pool)).reshape(clients, ways)
    cut = rng.permuted(
        np.broadcast_to(np.arange(dataset.examples_per_class), (len(pool), dataset.examples_per_class)), axis=1
    )
    places = share[:, :, None] * examples + np.arange(examples)
    return (
        pool[hands].astype(_index_type(int(pool.max()) + 1)),
        cut[hands[:, :, None], places].astype(_index_type(dataset.examples_per_class)),
    )
