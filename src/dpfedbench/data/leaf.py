"""Data in LEAF's layout, whose records belong to users (Caldas et al. 2018).

A folder has the sub-folders `train` and `test`, or `all_data`, with JSON files of three
keys: `users`, `num_samples` (of each user) and `user_data` (for each user `x`, a list
of flat images with values from 0 to 1, and `y`, a list of labels). FEMNIST, LEAF's
characters by about 3,500 writers, has this layout. Its strokes are dark on white; here they
are bright on dark, as in the other data sets.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.config.part import Settings, setting
from dpfedbench.data.folder_files import data_files, folder_of
from dpfedbench.data.images import with_progress
from dpfedbench.data.owners import check_names, count_held_out
from dpfedbench.data.records import RawRecords
from dpfedbench.data.sources import Source
from dpfedbench.errors import BenchError
from drawnsets.writers import CHARACTERS

FEMNIST_FOLDER = "femnist"
FEMNIST_SOURCE = "https://github.com/TalwalkarLab/leaf"
PLACES = {
    "femnist": Source(
        name="FEMNIST",
        folders=(FEMNIST_FOLDER,),
        parts={"train": ("train", "all_data"), "test": ("test", "all_data")},
        check="sizes of every user; no user twice, cut or empty",
        downloaded=False,
        in_root=False,
    )
}
_HEAD = re.compile(r'"user_data"\s*:')


class LeafOptions(Settings):
    """Arguments of `read` in a configuration."""

    folder: str = setting(
        doc="folder with train and test, or all_data; absolute, or below the local data"
    )
    height: int = setting(28, ge=1, le=1024, doc="height of an image, in pixels")
    width: int = setting(28, ge=1, le=1024, doc="width of an image, in pixels")
    channels: int = setting(1, ge=1, le=4, doc="channels of an image")
    inverted: bool = setting(
        False, doc="whether 1 is background, as in FEMNIST; then values are inverted"
    )
    class_names: list[str] | None = setting(
        None, doc="name of each label; null: the labels' numbers"
    )


OPTIONS = LeafOptions
"""Schema of this reader's options."""


def read(local: Path | None, download_dir: Path, **options: Any) -> RawRecords:
    """Read a folder in LEAF's layout. Each record's owner is its user.

    Args:
        local: the local data folder; a relative `folder` lies below it.
        options: see `LeafOptions`.

    Raises:
        BenchError: a file is missing or damaged; a user is cut, empty, or there twice.
    """
    chosen = LeafOptions(**options)
    root = folder_of(chosen.folder, local)
    shape = (chosen.height, chosen.width, chosen.channels)
    parts = {}
    for split, files in _files(root).items():
        parts[split] = _read_users(with_progress(files, f"reading {root.name}"), shape)
    if "all_data" in parts:
        parts = _split(parts["all_data"])
    names = _class_names(root, parts, chosen.class_names)
    arrays: dict[str, Any] = {}
    for split, users in parts.items():
        images = np.concatenate([x for x, _ in users.values()])
        arrays[f"{split}_images"] = 255 - images if chosen.inverted else images
        arrays[f"{split}_labels"] = np.concatenate([y for _, y in users.values()])
        sizes = [len(y) for _, y in users.values()]
        arrays[f"{split}_owners"] = np.repeat(np.array(list(users)), sizes)
    return RawRecords(
        **arrays, class_names=names, versions={}, facts={"layout": "LEAF"}
    )


def holds(local: Path | None, **_: Any) -> str:
    """Return the contents as in `data.DATASETS_TABLE`."""
    return "records"


def owner_counts(local: Path | None, *, folder: str, **_: Any) -> np.ndarray:
    """Return the number of training records of each user, int64 [users, 1].

    Only the heads of the files are read, where they begin with `users` and
    `num_samples`.

    Raises:
        BenchError: a file is missing or damaged.
    """
    files = _files(folder_of(folder, local))
    sizes: dict[str, int] = {}
    for path in files.get("train") or files["all_data"]:
        sizes |= _sizes(path)
    counts = np.array([sizes[user] for user in sorted(sizes)], np.int64)
    if "all_data" in files:
        counts -= [count_held_out(count) for count in counts.tolist()]
    return counts[:, None]


def read_femnist(local: Path | None, download_dir: Path) -> RawRecords:
    """Read FEMNIST from LEAF's files in the local data folder."""
    return read(
        local,
        download_dir,
        folder=_femnist(local),
        inverted=True,
        class_names=list(CHARACTERS),
    )


def count_femnist(local: Path | None) -> np.ndarray:
    """Return the number of training records of each writer of FEMNIST."""
    return owner_counts(local, folder=_femnist(local))


def _femnist(local: Path | None) -> str:
    """Return FEMNIST's folder.

    Raises:
        BenchError: there is no local data folder with it.
    """
    folder = (local or Path()) / FEMNIST_FOLDER
    if local is None or not folder.is_dir():
        raise BenchError(
            f"no FEMNIST found: make it with {FEMNIST_SOURCE} and put its folders train"
            f" and test in {FEMNIST_FOLDER} of the local data folder (DPFEDBENCH_DATA),"
            " or leave its stand-in, writers"
        )
    return FEMNIST_FOLDER


def _files(root: Path) -> dict[str, list[Path]]:
    """Return the JSON files of `train` and `test`, or of `all_data`.

    Raises:
        BenchError: there are none.
    """
    files = {
        split: [path for path in data_files(root / split) if path.suffix == ".json"]
        for split in ("train", "test", "all_data")
    }
    if files["train"] and files["test"]:
        return {"train": files["train"], "test": files["test"]}
    if files["all_data"]:
        return {"all_data": files["all_data"]}
    raise BenchError(
        f"{root} has no data in LEAF's layout: put *.json in its folders train and test,"
        " or in all_data"
    )


def _sizes(path: Path) -> dict[str, int]:
    """Return the users of a file, each with its number of records."""
    with open(path, encoding="utf-8") as handle:
        head = handle.read(1 << 24)
        match = _HEAD.search(head)
        if match is None:
            head += handle.read()
    try:
        if match is not None:
            values = json.loads(head[: match.start()].rstrip().rstrip(",") + "}")
        else:
            values = json.loads(head)
        return dict(zip(values["users"], values["num_samples"], strict=True))
    except (ValueError, KeyError, TypeError):
        users = _load(path)
        return {user: len(data["y"]) for user, data in users}


Users = dict[str, tuple["np.ndarray", "np.ndarray"]]
"""Images, uint8 [records, height, width, channels], and labels of each user."""


def _read_users(files: Iterator[Path], shape: tuple[int, int, int]) -> Users:
    """Return the records of all users of some files, by the users' names, sorted."""
    users: Users = {}
    for path in files:
        for user, data in _load(path):
            if user in users:
                raise BenchError(f"{path}: the user {user} is there twice: keep one")
            users[user] = _records(path, user, data, shape)
    return dict(sorted(users.items()))


def _load(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the users of a file with their data.

    Raises:
        BenchError: the file is damaged, or its keys contradict each other.
    """
    try:
        with open(path, encoding="utf-8") as handle:
            pairs = json.load(handle, object_pairs_hook=list)
        values = dict(pairs)
        users = [(str(user), dict(data)) for user, data in values["user_data"]]
        listed = list(values["users"])
        sizes = dict(zip(listed, values["num_samples"], strict=True))
        held = {user: len(data["y"]) for user, data in users}
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(
            f"{path} is no file in LEAF's layout, or is cut ({error}): copy it again"
        ) from error
    names = [user for user, _ in users]
    check_names(names, str(path))
    for user in names:
        if names.count(user) > 1 or listed.count(user) > 1:
            raise BenchError(f"{path}: the user {user} is there twice: keep one")
    for user in sorted({*names, *listed}):
        if sizes.get(user) != held.get(user):
            raise BenchError(
                f"{path}: the user {user} has {held.get(user, 0)} records, but"
                f" num_samples says {sizes.get(user, 0)}: copy the file again"
            )
    return users


def _records(
    path: Path, user: str, data: dict[str, Any], shape: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of a user.

    Raises:
        BenchError: the user has no records, or they are cut or out of range.
    """
    labels = data["y"]
    if not labels:
        raise BenchError(f"{path}: the user {user} has no records: remove it")
    pixels = shape[0] * shape[1] * shape[2]
    images = data.get("x", [])
    if len(images) != len(labels):
        raise BenchError(
            f"{path}: the user {user} has {len(images)} images and {len(labels)} labels:"
            " copy the file again"
        )
    try:
        values = np.array(images, np.float64).reshape(len(labels), pixels)
        numbers = np.array(labels, np.int64)
        if not (values >= 0).all() or not (values <= 1).all() or (numbers < 0).any():
            raise ValueError("a value is out of range")
    except (ValueError, TypeError) as error:
        raise BenchError(
            f"{path}: the user {user} has an image that is not {pixels} values from 0 to"
            f" 1, or a label that is no number from 0 ({error})"
        ) from error
    return np.rint(values * 255).astype(np.uint8).reshape(-1, *shape), numbers


def _split(users: Users) -> dict[str, Users]:
    """Take the first records of each user as test records."""
    parts: dict[str, Users] = {"train": {}, "test": {}}
    for user, (images, labels) in users.items():
        tested = count_held_out(len(labels))
        parts["train"][user] = (images[tested:], labels[tested:])
        parts["test"][user] = (images[:tested], labels[:tested])
    return parts


def _class_names(
    root: Path, parts: dict[str, Users], stated: Sequence[str] | None
) -> tuple[str, ...]:
    """Return one name for each label.

    Raises:
        BenchError: a label has no name.
    """
    largest = max(int(y.max()) for users in parts.values() for _, y in users.values())
    if stated is None:
        return tuple(str(label) for label in range(largest + 1))
    if largest >= len(stated):
        raise BenchError(
            f"{root} has the label {largest}, but class_names has {len(stated)} names:"
            " name all labels"
        )
    return tuple(stated)


READERS = {"femnist": read_femnist}
OWNER_COUNTS = {"femnist": count_femnist}
