"""A prepared data set: one array of images, a list of classes, a summary; saved, checked and loaded here."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, read_json, sha256, write_json, write_table, writing
from dpfedbench.lazy import np
from dpsum.randomness import stream

SPLITS = ("train", "validation", "test")

_CHARACTER = re.compile(r"U\+[0-9A-F]{4,} (\w+)")
"""A class that is called by its code point and Unicode's name, whose first word is the script."""

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""


@dataclass(frozen=True, kw_only=True)
class RawImages:
    """What a reader hands over before anything is written.

    Attributes:
        images: uint8 [classes, examples per class, height, width, channels].
        class_names: one unique name per class, in the order of `images`.
        splits: one of "train", "validation", "test" per class.
        versions: of the libraries whose version can change a pixel.
        facts: what else summary.json is to say of it.
    """

    images: np.ndarray
    class_names: tuple[str, ...]
    splits: tuple[str, ...]
    versions: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check shapes and names; a fault here is ours, not the user's."""
        if self.images.dtype != np.uint8 or self.images.ndim != 5:
            raise ValueError(
                f"images must be uint8 [classes, examples, H, W, C], not {self.images.dtype} {self.images.shape}"
            )
        if not len(self.images) == len(self.class_names) == len(set(self.class_names)) == len(self.splits):
            raise ValueError("one unique name and one split per class are needed")
        if not set(self.splits) <= set(SPLITS):
            raise ValueError(f"unknown split among {sorted(set(self.splits))}")


@dataclass(frozen=True, kw_only=True)
class ImageDataset:
    """A data set as the rest of the library sees it.

    Attributes:
        name: the registry's name; a stand-in never bears the name of what it stands in for.
        images: uint8 [classes, examples per class, height, width, channels], memory-mapped, read-only.
        splits: class indices (int64, ascending) of "train", "validation" and "test"; disjoint.
        class_names: one per class.
        summary: the content of summary.json.
    """

    name: str
    images: np.ndarray
    splits: dict[str, np.ndarray]
    class_names: tuple[str, ...]
    summary: dict[str, Any]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        _, _, height, width, channels = self.images.shape
        return height, width, channels

    @property
    def examples_per_class(self) -> int:
        """How many images each class has."""
        return int(self.images.shape[1])

    @property
    def groups(self) -> tuple[str, ...]:
        """The group of each class: what its name has before the last "/", or the script of a character; "" for none."""
        return tuple(
            named[1] if (named := _CHARACTER.match(name)) else name.rpartition("/")[0] for name in self.class_names
        )


def shuffled_splits(classes: int, counts: tuple[int, int, int]) -> tuple[str, ...]:
    """Deal the classes at random, always the same way, into train, validation and test.

    MAML (Finn et al. 2017) shuffles Omniglot's characters with a fixed seed and takes the first 1,200 for
    training and validation. Its order started from the file system's, so that its exact split cannot be
    reproduced; ours starts from the sorted class names.

    Args:
        classes: how many classes there are.
        counts: how many go to train, validation and test; they add up to `classes`.
    """
    if sum(counts) != classes:
        raise ValueError(f"{counts} does not add up to {classes} classes")
    order = stream(1, "class-split").permutation(classes)
    dealt = np.repeat(np.array(SPLITS), counts)
    names = np.empty(classes, dtype=dealt.dtype)
    names[order] = dealt
    return tuple(str(name) for name in names)


def save_dataset(folder: Path, raw: RawImages, facts: dict[str, Any]) -> None:
    """Write images.npy, classes.csv and summary.json; see `write_files`.

    Args:
        folder: where the three files go; made if missing.
        raw: the images.
        facts: what summary.json says besides the counts: name, source, licence, version, stand_in, ...
    """
    classes, examples, *_ = raw.images.shape
    counts = {
        "classes": classes,
        "examples_per_class": examples,
        "image_shape": list(raw.images.shape[2:]),
        "split_classes": {split: raw.splits.count(split) for split in SPLITS},
    }
    rows = zip(range(classes), raw.class_names, raw.splits, strict=True)
    table = [("index", "name", "split"), *rows]
    write_files(folder, "classes", raw.images, table, facts | raw.facts, counts, raw.versions)


def write_files(
    folder: Path,
    kind: str,
    images: np.ndarray,
    table: Sequence[Sequence[Any]],
    facts: dict[str, Any],
    counts: dict[str, Any],
    versions: dict[str, str],
    **beside: Iterable[Sequence[Any]],
) -> None:
    """Write images.npy, classes.csv and, last, summary.json, each whole or not at all.

    The old summary goes first and the new one comes last, so that a data set whose writing was cut short
    has no summary, and is refused by `open_files`.

    Args:
        folder: where the three files go; made if missing.
        kind: "classes", "records" or "texts".
        images: the array.
        table: the rows of classes.csv, its head first.
        facts: what is known of the data set before it is prepared.
        counts: what summary.json says of the array.
        versions: of the libraries whose version can change a pixel.
        beside: further tables, by name; summary.json has their checksums.
    """
    with writing(folder / "summary.json"):
        (folder / "summary.json").unlink(missing_ok=True)
    with atomic_path(folder / "images.npy") as temporary, open(temporary, "wb") as handle:
        np.save(handle, images, allow_pickle=False)
    for name, rows in {"classes": table, **beside}.items():
        write_table(folder / f"{name}.csv", rows)
    digest = sha256(folder / "images.npy")
    recorded = facts.get("recorded_sha256")
    write_json(
        folder / "summary.json",
        {
            **facts,
            "kind": kind,
            "sha256": digest,
            "matches_record": None if recorded is None else digest == recorded,
            **{f"{name}_sha256": sha256(folder / f"{name}.csv") for name in beside},
            **counts,
            **({"mean_pixel": round(float(images.mean(dtype=np.float64)), 4)} if images.dtype == np.uint8 else {}),
            "made_with": versions,
        },
    )


def load_dataset(folder: Path | str) -> ImageDataset:
    """Open a prepared data set, checking that it is whole.

    Raises:
        BenchError: a file is missing, or is not what was written there; or it is a data set of records.
    """
    folder = Path(folder)
    summary, images = open_files(folder, "classes", ("classes", "examples_per_class"))
    splits, names = read_splits(folder, len(images))
    return ImageDataset(name=summary["name"], images=images, splits=splits, class_names=names, summary=summary)


def open_files(folder: Path, kind: str, sizes: tuple[str, ...]) -> tuple[dict[str, Any], np.ndarray]:
    """Read summary.json and map images.npy into memory, checking one against the other.

    Args:
        folder: of the data set.
        kind: "classes", "records" or "texts": what the caller can use.
        sizes: the summary's keys that, before `image_shape`, make up the array's shape.

    Raises:
        BenchError: a file is missing, or is not what was written there; or the data set is of another kind.
    """
    summary = read_json(folder / "summary.json")
    try:
        name, digest, stored = summary["name"], summary["sha256"], summary.get("kind", "classes")
        if stored != kind:
            raise BenchError(_WRONG_KIND[kind].format(name=name, folder=folder))
        shape = (*(summary[size] for size in sizes), *([] if kind == "texts" else summary["image_shape"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise foreign_summary(folder, f"no {error}") from error
    path, number = folder / "images.npy", np.int32 if kind == "texts" else np.uint8
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
        if images.shape != shape or images.dtype != number or sha256(path) != digest:
            raise ValueError("its content is not what its summary says")
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing: {mend(folder)}") from error
    except (ValueError, OSError, EOFError) as error:
        raise BenchError(f"{path} is damaged ({error}): {mend(folder)}") from error
    return summary, images


def read_classes(folder: Path, classes: int) -> list[dict[str, str]]:
    """The rows of classes.csv, each with an index and a name.

    Raises:
        BenchError: it is missing, or does not list classes 0 to `classes` - 1.
    """
    path = folder / "classes.csv"
    try:
        with open(path, newline="", encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        whole = [int(row["index"]) for row in rows] == list(range(classes)) and all(row["name"] for row in rows)
    except FileNotFoundError as error:
        raise BenchError(f"{path} is missing: {mend(folder)}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise damaged_classes(folder, f"no readable column {error}") from error
    if not whole:
        raise damaged_classes(folder, f"it should list classes 0 to {classes - 1} with their names")
    return rows


def read_splits(folder: Path, classes: int) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The classes (or tasks) of each split, by their places in classes.csv, ascending; and the names of all.

    Raises:
        BenchError: as for `read_classes`, or a class is in none of the splits.
    """
    rows = read_classes(folder, classes)
    stated = np.array([row.get("split") for row in rows])
    if not set(stated) <= set(SPLITS):
        raise damaged_classes(folder, f"it should give each of them one of the splits {', '.join(SPLITS)}")
    return {split: np.flatnonzero(stated == split) for split in SPLITS}, tuple(row["name"] for row in rows)


def foreign_summary(folder: Path, what: str) -> BenchError:
    """The error for a summary.json that some other program, or an editor, may have written."""
    return BenchError(f"{folder / 'summary.json'} does not describe a data set ({what}): {mend(folder)}")


def damaged_classes(folder: Path, what: str) -> BenchError:
    """The error for a classes.csv whose content is wrong."""
    return BenchError(f"{folder / 'classes.csv'} is damaged ({what}): {mend(folder)}")


def mend(folder: Path) -> str:
    """What to do where a data set's files are not whole."""
    return f"delete {folder} and run the workflow again"


# What a loader says that meets another kind than its own.
_WRONG_KIND = {
    "classes": "{name} (in {folder}) is split by record, and this method needs a data set split by class: take "
    "one such as omniglot or glyphs",
    "records": "{name} (in {folder}) is split by class, and this method needs a data set split by record: take "
    "one such as fashion-mnist or digits",
    "texts": "{name} (in {folder}) is of images, and this run needs texts: see task.text",
}
