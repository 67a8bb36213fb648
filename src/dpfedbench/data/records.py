"""Data set of labelled records, each a training or a test record.

It is stored in the same three files as a data set of classes (`images`): images.npy,
classes.csv, summary.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpfedbench.data.folder_files import read_table, readable_file
from dpfedbench.data.images import (
    Content,
    Prepared,
    Raw,
    class_table,
    load_dataset,
    open_files,
)
from dpfedbench.data.owners import (
    FILE,
    check_owners,
    owner_table,
    read_owners,
)
from dpfedbench.errors import BenchError
from dpfedbench.files import read_json
from dpfedbench.lazy import np
from dpsum.randomness import stream

SPLITS = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class RawRecords(Raw):
    """Labelled records, as a reader returns them.

    Attributes:
        train_images: uint8 [training records, height, width, channels].
        train_labels: int64 [training records], indices into `class_names`.
        test_images: uint8 [test records, height, width, channels].
        test_labels: int64 [test records].
        class_names: one unique name per label.
        train_owners, test_owners: text [records], names of the records' owners; both
            None where the reader knows no owners.
    """

    kind: ClassVar[str] = "records"

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    train_owners: np.ndarray | None = None
    test_owners: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Check shapes and labels; an error here is a bug of the reader."""
        check_owners(self.train_owners, self.train_labels.shape, "train_owners")
        check_owners(self.test_owners, self.test_labels.shape, "test_owners")
        if (self.train_owners is None) != (self.test_owners is None):
            raise ValueError("owners of both splits are needed, or of none")
        for split, images, labels in self.blocks():
            if images.dtype != np.uint8 or images.ndim != 4:
                raise ValueError(
                    f"{split} images must be uint8 [records, H, W, C], not"
                    f" {images.dtype} {images.shape}"
                )
            if (
                labels.dtype != np.int64
                or labels.shape != images.shape[:1]
                or not len(labels)
            ):
                raise ValueError(
                    f"{split} labels must be int64 {images.shape[:1]}, not"
                    f" {labels.dtype} {labels.shape}"
                )
        if len(set(self.class_names)) != len(self.class_names):
            raise ValueError("one unique name per class is needed")

    def blocks(self) -> tuple[tuple[str, np.ndarray, np.ndarray], ...]:
        """Return (split, images, labels) of each split, in the order of `SPLITS`."""
        return (
            ("train", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        )

    def content(self) -> Content:
        """Return the content of the folder.

        Records are ordered by split (train, then test), then by label, then by owner,
        then as the reader returned them. The counts in classes.csv therefore determine
        each record's split and label.
        """
        classes = len(self.class_names)
        orders = [
            np.argsort(labels, kind="stable")
            if owners is None
            else np.lexsort((owners, labels))
            for (_, _, labels), owners in zip(
                self.blocks(), (self.train_owners, self.test_owners), strict=True
            )
        ]
        ordered = [
            images[order]
            for (_, images, _), order in zip(self.blocks(), orders, strict=True)
        ]
        class_records = {
            split: np.bincount(labels, minlength=classes).tolist()
            for split, _, labels in self.blocks()
        }
        counts = {
            "records": sum(map(len, ordered)),
            "classes": classes,
            "image_shape": list(self.train_images.shape[1:]),
            "split_records": {split: len(labels) for split, _, labels in self.blocks()},
        }
        tables = {"classes": class_table(self.class_names, **class_records)}
        if self.train_owners is not None and self.test_owners is not None:
            counts["owners"] = len(np.unique(self.train_owners))
            owners = (self.train_owners[orders[0]], self.test_owners[orders[1]])
            tables[FILE] = owner_table(np.concatenate(owners))
        return np.concatenate(ordered), tables, counts


@dataclass(frozen=True, kw_only=True)
class RecordDataset(Prepared):
    """Data set of labelled records, split into "train" and "test".

    Attributes:
        images: uint8 [records, height, width, channels].
        labels: int64 [records], indices into `class_names`; -1 for a record in neither
            split.
        splits: indices of each split's records, ordered by label.
    """

    labels: np.ndarray


def load_any_records(folder: Path | str) -> RecordDataset:
    """Open a data set of records, or of classes whose images become records.

    Pre-training reads a data set of classes in this way. Only its training classes
    become labels (numbered among themselves), and all of their images are training
    records. There is no test part, because the other classes belong to the meta-test.

    Raises:
        BenchError: a file is missing or was changed.
    """
    folder = Path(folder)
    if read_json(folder / "summary.json")["kind"] == "records":
        return load_records(folder)
    dataset = load_dataset(folder)
    classes = dataset.splits["train"]
    examples_each = dataset.examples_per_class
    labels = np.full(len(dataset.class_names), -1)
    labels[classes] = np.arange(len(classes))
    return RecordDataset(
        name=dataset.name,
        images=dataset.images.reshape(-1, *dataset.image_shape),
        labels=np.repeat(labels, examples_each),
        splits={
            "train": (
                classes[:, None] * examples_each + np.arange(examples_each)
            ).ravel(),
            "test": np.empty(0, np.int64),
        },
        class_names=tuple(dataset.class_names[index] for index in classes),
        summary=dataset.summary,
        owners=read_owners(folder, dataset.summary, (len(labels) * examples_each,)),
    )


def held_out_places(
    dataset: RecordDataset, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split public validation records off the test part.

    They are the same for every seed, and whether or not a run uses them, so that all
    runs are tested on the same records.

    Returns:
        Indices of the public validation records and of the remaining test records, both
        ascending.

    Raises:
        BenchError: no test record would remain.
    """
    test_records = dataset.splits["test"]
    if count >= len(test_records):
        raise BenchError(
            f"validation.tasks is {count}, but the test part of {dataset.name} has"
            f" {len(test_records)} records: lower it"
        )
    order = test_records[stream(0, "public-validation").permutation(len(test_records))]
    return np.sort(order[:count]), np.sort(order[count:])


def load_records(folder: Path | str) -> RecordDataset:
    """Open a prepared data set of records, and check that it is complete.

    Raises:
        BenchError: a file is missing or was changed, or it is a data set of classes.
    """
    folder = Path(folder)
    summary, images = open_files(folder, "records", ("records",))
    with readable_file(folder / "classes.csv") as path:
        rows = read_table(path)
        names = tuple(row["name"] for row in rows)
        counts = [[int(row[split]) for row in rows] for split in SPLITS]
        labels = np.concatenate(
            [np.repeat(np.arange(len(rows)), by_class) for by_class in counts]
        )
        if len(images) != len(labels):
            raise ValueError("its record counts do not add up")
    train = sum(counts[0])
    splits = {"train": np.arange(train), "test": np.arange(train, len(images))}
    return RecordDataset(
        name=summary["name"],
        images=images,
        labels=labels,
        splits=splits,
        class_names=names,
        summary=summary,
        owners=read_owners(folder, summary, labels.shape),
    )
