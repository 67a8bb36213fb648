"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017).

Each has 70,000 grey pictures of 28×28 in ten classes.
"""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.data.images import Progress, with_progress
from dpfedbench.data.records import RawRecords
from dpfedbench.data.sources import Source

SIZE = 28
FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
DIGITS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
)
GARMENTS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True, kw_only=True)
class _Set(Source):
    """Properties of one data set of the format.

    Attributes:
        counts: number of records of each label, which distinguishes the set from
            others.
        class_names: one name per label.
    """

    counts: dict[str, tuple[int, ...]]
    class_names: tuple[str, ...]


_MNIST = _Set(
    name="MNIST",
    folders=("mnist", "MNIST", "MNIST/raw"),
    counts={
        "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    },
    class_names=DIGITS,
)
_FASHION_MNIST = _Set(
    name="Fashion-MNIST",
    folders=("fashion-mnist", "FashionMNIST", "FashionMNIST/raw"),
    counts={"train": (6000,) * 10, "test": (1000,) * 10},
    class_names=GARMENTS,
)

_KINDS = {
    8: "unsigned bytes",
    9: "signed bytes",
    11: "short integers",
    12: "integers",
    13: "floats",
    14: "doubles",
}


def read_mnist(
    local: Path | None, download_dir: Path, progress: Progress | None = None
) -> RawRecords:
    """Read MNIST: handwritten digits, strokes bright (255) on dark (0).

    Args:
        local: local data folder. It, or its subfolder `mnist`, `MNIST` or `MNIST/raw`,
            holds the four IDX files, compressed (.gz) or not. Compressing again changes
            checksums, so a local copy is checked by its content: 60,000 + 10,000
            records, 28×28, and MNIST's number of records of each label.

    Raises:
        BenchError: there is no copy and no network, or the copy is damaged or of
            another data set.
    """
    return _read(_MNIST, local, download_dir, progress)


def read_fashion_mnist(
    local: Path | None, download_dir: Path, progress: Progress | None = None
) -> RawRecords:
    """Read Fashion-MNIST, whose files have the format and the names of MNIST's.

    See `read_mnist`. A local copy may also lie in the subfolder `fashion-mnist`,
    `FashionMNIST` or `FashionMNIST/raw`.
    """
    return _read(_FASHION_MNIST, local, download_dir, progress)


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Read an IDX file of unsigned bytes, compressed by gzip or not.

    Args:
        path: the file.
        shape: required shape of the array.

    Raises:
        ValueError: the file holds something else; the message says what.
        OSError, EOFError, zlib.error: the file cannot be read or decompressed.
    """
    with open(path, "rb") as handle:
        packed = handle.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else open(path, "rb") as handle:
        # Reading one byte more than expected shows whether there are too many.
        content = handle.read(4 + 4 * len(shape) + math.prod(shape) + 1)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _KINDS:
        raise ValueError("it is not an IDX file")
    if content[2] != 8:
        raise ValueError(f"it holds {_KINDS[content[2]]}, not {_KINDS[8]}")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise ValueError("it ends within its header")
    stated = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if stated != shape:
        raise ValueError(f"it holds {_times(stated)} values, not {_times(shape)}")
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"it has {len(content) - start} bytes of values, not {math.prod(shape)}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _read(
    wanted: _Set, local: Path | None, download_dir: Path, progress: Progress | None
) -> RawRecords:
    arrays: dict[str, Any] = {}
    for field, name in with_progress(FILES.items(), progress, f"reading {wanted.name}"):
        packed = f"{name}.gz"
        counts = wanted.counts[field.partition("_")[0]]
        copy = wanted.find(local, packed, name)
        if copy is None:
            published = wanted.published
            url = published.mirrors[0] + packed
            md5 = dict(published.resources)[packed]
            copy = wanted.fetch(url, md5, download_dir, local)
        with copy.judged():
            if field.endswith("images"):
                arrays[field] = read_idx(copy.path, (sum(counts), SIZE, SIZE))[
                    ..., None
                ]
                continue
            labels = arrays[field] = read_idx(copy.path, (sum(counts),)).astype(
                np.int64
            )
            if labels.max() >= len(counts):
                raise ValueError(f"it has the label {labels.max()}")
            for label, count in enumerate(np.bincount(labels, minlength=len(counts))):
                if count != counts[label]:
                    raise ValueError(
                        f"label {label} occurs {count} times, not {counts[label]}"
                    )
    return RawRecords(**arrays, class_names=wanted.class_names, versions={})


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "no"


READERS = {"mnist": read_mnist, "fashion-mnist": read_fashion_mnist}
