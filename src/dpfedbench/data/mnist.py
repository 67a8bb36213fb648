"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017).

Each has 70,000 grey pictures of 28×28 in ten classes.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.data.images import with_progress
from dpfedbench.data.records import RawRecords
from dpfedbench.data.sources import Copy, Source
from dpfedbench.errors import BenchError

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
SPELLINGS = {name: (f"{name}.gz", name) for name in FILES.values()}
"""Names of each file, compressed or not."""


@dataclass(frozen=True, kw_only=True)
class _Set(Source):
    """Properties of one data set of the format.

    Attributes:
        checksums: MD5 of each uncompressed file. Compressing again does not change it.
    """

    checksums: dict[str, str]


_CHECK = "published MD5 of each uncompressed file"
_MNIST = _Set(
    name="MNIST",
    folders=("mnist", "MNIST", "MNIST/raw"),
    parts=SPELLINGS,
    check=_CHECK,
    downloaded=True,
    copy_bytes=11_594_728,
    checksums={
        "train_images": "6bbc9ace898e44ae57da46a324031adb",
        "train_labels": "a25bea736e30d166cdddb491f175f624",
        "test_images": "2646ac647ad5339dbf082846283269ea",
        "test_labels": "27ae3e4e09519cfbb04c329615203637",
    },
)
_FASHION_MNIST = _Set(
    name="Fashion-MNIST",
    folders=("fashion-mnist", "FashionMNIST", "FashionMNIST/raw"),
    parts=SPELLINGS,
    check=_CHECK,
    downloaded=True,
    copy_bytes=30_878_551,
    checksums={
        "train_images": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train_labels": "9018921c3c673c538a1fc5bad174d6f9",
        "test_images": "8181f5470baa50b63fa0f6fddb340f0a",
        "test_labels": "15d484375f8d13e6eb1aabb0c3f46965",
    },
)

PLACES = {"mnist": _MNIST, "fashion-mnist": _FASHION_MNIST}


def read_mnist(local: Path | None, download_dir: Path) -> RawRecords:
    """Read MNIST: handwritten digits, strokes bright (255) on dark (0).

    Args:
        local: local data folder. It, or its subfolder `mnist`, `MNIST` or `MNIST/raw`,
            holds all four IDX files, compressed (.gz) or not. The uncompressed content
            of each has the published checksum.

    Raises:
        BenchError: there is no copy and no network, or the copy is incomplete, damaged
            or of another data set.
    """
    return _read(_MNIST, local, download_dir)


def read_fashion_mnist(local: Path | None, download_dir: Path) -> RawRecords:
    """Read Fashion-MNIST, whose files have the format and the names of MNIST's.

    See `read_mnist`. A local copy may also lie in the subfolder `fashion-mnist`,
    `FashionMNIST` or `FashionMNIST/raw`.
    """
    return _read(_FASHION_MNIST, local, download_dir)


def read_idx(content: bytes) -> np.ndarray:
    """Read the content of an IDX file of unsigned bytes.

    It has two zeros, the type, the number of axes, their lengths and the values.
    """
    axes = content[3]
    shape = np.frombuffer(content, ">u4", count=axes, offset=4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    return values.reshape(shape.tolist())


def _read(wanted: _Set, local: Path | None, download_dir: Path) -> RawRecords:
    copies = wanted.find(local)
    arrays: dict[str, Any] = {}
    for field, name in with_progress(FILES.items(), f"reading {wanted.name}"):
        copy = copies.get(name) or _download(wanted, f"{name}.gz", download_dir)
        values = read_idx(_content(copy, wanted, field))
        if field.endswith("images"):
            arrays[field] = values[..., None]
        else:
            arrays[field] = values.astype(np.int64)
    # "7 - seven" for a digit, "Sandal" for a garment.
    names = [name.rpartition(" - ")[2] for name in wanted.published.classes]
    return RawRecords(**arrays, class_names=tuple(names), versions={})


def _download(wanted: _Set, name: str, download_dir: Path) -> Copy:
    """Return a file from the authors' download address."""
    url = wanted.published.mirrors[0] + name
    return wanted.fetch(url, dict(wanted.published.resources)[name], download_dir)


def _content(copy: Copy, wanted: _Set, field: str) -> bytes:
    """Return the uncompressed content of a file, which is the published one.

    Raises:
        BenchError: the content has another MD5: the file is damaged, or is a file of
            the other data set.
    """
    with copy.judged():
        content = copy.path.read_bytes()
        if copy.path.suffix == ".gz":
            content = gzip.decompress(content)
    checksum = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if checksum == wanted.checksums[field]:
        return content
    for data_set in (_MNIST, _FASHION_MNIST):
        if data_set is not wanted and checksum in data_set.checksums.values():
            raise BenchError(
                f"{copy.path} is a file of {data_set.name}, whose files have the same"
                f" names: put {wanted.name}'s {FILES[field]} in {wanted.place}"
            )
    raise copy.damaged(
        f"the MD5 of its uncompressed content is {checksum}, not"
        f" {wanted.checksums[field]}"
    )


READERS = {"mnist": read_mnist, "fashion-mnist": read_fashion_mnist}
