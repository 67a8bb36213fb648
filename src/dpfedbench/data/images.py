"""A prepared data set: one array of images, a list of classes and a summary.

This module saves, checks and loads it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dpfedbench.data.folder_files import read_table, readable_file
from dpfedbench.data.owners import (
    FILE,
    Owners,
    check_owners,
    owner_table,
    read_owners,
)
from dpfedbench.errors import BenchError
from dpfedbench.files import (
    atomic_path,
    read_json,
    sha256,
    write_json,
    write_table,
    writing,
)
from dpfedbench.lazy import np
from dpsum.progress import Progress
from dpsum.randomness import stream

SPLITS = ("train", "validation", "test")

KINDS = {
    "classes": "classes of images",
    "records": "labelled records",
    "texts": "texts",
}
"""Kinds of data sets, in words."""

_CHARACTER = re.compile(r"U\+[0-9A-F]{4,} (\w+)")
"""Pattern of a class name that is a code point and a Unicode name.

The first word of the Unicode name is the script.
"""

Item = TypeVar("Item")


def with_progress(items: Collection[Item], what: str) -> Iterator[Item]:
    """Yield the items one after another, and print how many are done."""
    progress = Progress(what, len(items), unit="items")
    for done, item in enumerate(items, start=1):
        yield item
        progress.step(done, 1)


Content = tuple["np.ndarray", Mapping[str, Iterable[Sequence[Any]]], dict[str, Any]]
"""Content of a data set's folder.

The array of images.npy; the rows of each table with its header first, by the table's
name; and the array's facts for summary.json.
"""


@dataclass(frozen=True, kw_only=True)
class Raw:
    """Data of a reader, before anything is written.

    It is the base of `RawImages`, `RawRecords` and `RawTexts`.

    Attributes:
        versions: versions of the libraries that can change a pixel or a word.
        facts: further entries of summary.json.
    """

    kind: ClassVar[str]
    """Kind of data that a loader asks for: "classes", "records" or "texts"."""

    versions: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)

    def content(self) -> Content:
        """Return the tables to write, one of which is "classes"."""
        raise NotImplementedError

    def save(self, folder: Path, facts: dict[str, Any]) -> None:
        """Write images.npy, the tables and, last, summary.json.

        Each file is written completely or not at all. The old summary is deleted first
        and the new one is written last. A data set whose writing was interrupted
        therefore has no summary, and `open_files` refuses it.

        Args:
            folder: output folder, created if missing.
            facts: entries of summary.json that are known before preparation: name,
                source, licence, version, stand_in, ...

        Raises:
            BenchError: the folder cannot be written to.
        """
        array, tables, counts = self.content()
        with writing(folder / "summary.json"):
            (folder / "summary.json").unlink(missing_ok=True)
        with (
            atomic_path(folder / "images.npy") as temporary,
            open(temporary, "wb") as handle,
        ):
            np.save(handle, array, allow_pickle=False)
        for name, rows in tables.items():
            write_table(folder / f"{name}.csv", rows)
        digest = sha256(folder / "images.npy")
        facts = facts | self.facts
        recorded = facts.get("recorded_sha256")
        write_json(
            folder / "summary.json",
            {
                **facts,
                "kind": self.kind,
                "sha256": digest,
                "matches_record": None if recorded is None else digest == recorded,
                **{
                    f"{name}_sha256": sha256(folder / f"{name}.csv")
                    for name in tables
                    if name != "classes"
                },
                **counts,
                "made_with": self.versions,
            },
        )


@dataclass(frozen=True, kw_only=True)
class RawImages(Raw):
    """Images by class, as a reader returns them.

    Attributes:
        images: uint8 [classes, examples per class, height, width, channels].
        class_names: one unique name per class, in the order of `images`.
        splits: one of "train", "validation", "test" per class.
        owners: text [classes, examples per class], names of the images' owners; None
            where the reader knows no owners.
    """

    kind: ClassVar[str] = "classes"

    images: np.ndarray
    class_names: tuple[str, ...]
    splits: tuple[str, ...]
    owners: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Check shapes and names; an error here is a bug of the reader."""
        check_owners(self.owners, self.images.shape[:2], "owners")
        if self.images.dtype != np.uint8 or self.images.ndim != 5:
            raise ValueError(
                "images must be uint8 [classes, examples, H, W, C], not"
                f" {self.images.dtype} {self.images.shape}"
            )
        check_splits(len(self.images), self.class_names, self.splits)

    def content(self) -> Content:
        classes, examples, *shape = self.images.shape
        counts = {
            "classes": classes,
            "examples_per_class": examples,
            "image_shape": shape,
            "split_classes": {split: self.splits.count(split) for split in SPLITS},
        }
        tables = {"classes": class_table(self.class_names, split=self.splits)}
        if self.owners is not None:
            of_training = self.owners[np.array(self.splits) == "train"]
            counts["owners"] = len(np.unique(of_training))
            tables[FILE] = owner_table(self.owners)
        return self.images, tables, counts


def check_splits(classes: int, names: Sequence[str], splits: Sequence[str]) -> None:
    """Check that all classes (or tasks) have unique names and a split.

    An error here is a bug of the reader.
    """
    if not classes == len(names) == len(set(names)) == len(splits):
        raise ValueError("one unique name and one split per class are needed")
    if not set(splits) <= set(SPLITS):
        raise ValueError(f"unknown split among {sorted(set(splits))}")


def class_table(
    names: Sequence[str], **columns: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """Return the rows of classes.csv, starting with its header."""
    return [
        ("index", "name", *columns),
        *zip(range(len(names)), names, *columns.values(), strict=True),
    ]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Prepared data set of images: base of `ImageDataset` and `RecordDataset`.

    Attributes:
        name: the registry's name. A stand-in never has the name of the data set that it
            replaces.
        images: uint8 [..., height, width, channels], memory-mapped, read-only.
        splits: indices of each split's classes or records, int64, ascending; splits are
            disjoint.
        class_names: one per class or label.
        summary: the content of summary.json.
        owners: owners of the images; None where the data set knows none.
    """

    name: str
    images: np.ndarray
    splits: dict[str, np.ndarray]
    class_names: tuple[str, ...]
    summary: dict[str, Any]
    owners: Owners | None = None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of an image: (height, width, channels)."""
        height, width, channels = self.images.shape[-3:]
        return height, width, channels


class ImageDataset(Prepared):
    """Data set of classes, each in one of "train", "validation" and "test".

    `images` are uint8 [classes, examples per class, height, width, channels].
    """

    @property
    def examples_per_class(self) -> int:
        """Number of images of each class."""
        return int(self.images.shape[1])

    @property
    def groups(self) -> tuple[str, ...]:
        """Group of each class; "" for none.

        It is the part of the class name before the last "/", or the script of a
        character.
        """
        return tuple(
            named[1] if (named := _CHARACTER.match(name)) else name.rpartition("/")[0]
            for name in self.class_names
        )


def shuffled_splits(classes: int, counts: tuple[int, int, int]) -> tuple[str, ...]:
    """Split the classes into train, validation and test, in a random but fixed way.

    MAML (Finn et al. 2017) shuffles Omniglot's characters with a fixed seed and takes
    the first 1,200 for training and validation. Its order depends on the file system,
    so its exact split cannot be reproduced. This split starts from the sorted class
    names.

    Args:
        classes: number of classes.
        counts: numbers of train, validation and test classes, which add up to
            `classes`.
    """
    if sum(counts) != classes:
        raise ValueError(f"{counts} does not add up to {classes} classes")
    order = stream(1, "class-split").permutation(classes)
    dealt = np.repeat(np.array(SPLITS), counts)
    names = np.empty(classes, dtype=dealt.dtype)
    names[order] = dealt
    return tuple(str(name) for name in names)


def load_dataset(folder: Path | str) -> ImageDataset:
    """Open a prepared data set of classes, and check that it is complete.

    Raises:
        BenchError: a file is missing or was changed, or the data set is of another
            kind.
    """
    folder = Path(folder)
    summary, images = open_files(folder, "classes", ("classes", "examples_per_class"))
    splits, names = read_splits(folder)
    return ImageDataset(
        name=summary["name"],
        images=images,
        splits=splits,
        class_names=names,
        summary=summary,
        owners=read_owners(folder, summary, images.shape[:2]),
    )


def open_files(
    folder: Path, kind: str, sizes: tuple[str, ...]
) -> tuple[dict[str, Any], np.ndarray]:
    """Read summary.json and map images.npy into memory, and check that they agree.

    Args:
        folder: folder of the data set.
        kind: "classes", "records" or "texts": the kind that the caller can use.
        sizes: keys of the summary that, before `image_shape`, form the array's shape.

    Raises:
        BenchError: a file is missing or was changed, or the data set is of another
            kind.
    """
    texts = kind == "texts"
    summary = read_json(folder / "summary.json")
    with readable_file(folder / "summary.json", "does not describe a data set"):
        name = summary["name"]
        digest = summary["sha256"]
        stored = summary["kind"]
        if stored != kind:
            raise BenchError(
                f"{name} (in {folder}) holds {KINDS[stored]}, but this run needs"
                f" {KINDS[kind]}: take another data set"
            )
        shape = (
            *(summary[size] for size in sizes),
            *([] if texts else summary["image_shape"]),
        )
    with readable_file(folder / "images.npy") as path:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
        if (
            images.shape != shape
            or images.dtype != (np.int32 if texts else np.uint8)
            or sha256(path) != digest
        ):
            raise ValueError("its content differs from its summary")
    return summary, images


def read_splits(
    folder: Path,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the classes (or tasks) of each split, and the names of all classes.

    Classes are row indices of classes.csv, ascending.

    Raises:
        BenchError: the file is missing or damaged.
    """
    with readable_file(folder / "classes.csv") as path:
        rows = read_table(path)
        stated = np.array([row["split"] for row in rows])
        names = tuple(row["name"] for row in rows)
    return {split: np.flatnonzero(stated == split) for split in SPLITS}, names
