"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017).

Each has 70,000 grey pictures of 28×28 in ten classes.
"""

from __future__ import annotations

import gzip
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


@dataclass(frozen=True, kw_only=True)
class _Set(Source):
    """Properties of one data set of the format.

    Attributes:
        counts: number of records of each label, which distinguishes the set from
            others.
    """

    counts: dict[str, tuple[int, ...]]


_MNIST = _Set(
    name="MNIST",
    folders=("mnist", "MNIST", "MNIST/raw"),
    counts={
        "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    },
)
_FASHION_MNIST = _Set(
    name="Fashion-MNIST",
    folders=("fashion-mnist", "FashionMNIST", "FashionMNIST/raw"),
    counts={"train": (6000,) * 10, "test": (1000,) * 10},
)


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


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file of unsigned bytes, compressed by gzip or not.

    The file has two zeros, the type, the number of axes, their lengths and the values.
    """
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    axes = content[3]
    shape = np.frombuffer(content, ">u4", count=axes, offset=4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    return values.reshape(shape.tolist())


def _read(
    wanted: _Set, local: Path | None, download_dir: Path, progress: Progress | None
) -> RawRecords:
    arrays: dict[str, Any] = {}
    for field, name in with_progress(FILES.items(), progress, f"reading {wanted.name}"):
        packed = f"{name}.gz"
        counts = wanted.counts[field.partition("_")[0]]
        copy = wanted.find(local, packed, name)
        if copy is None:
            url = wanted.published.mirrors[0] + packed
            md5 = dict(wanted.published.resources)[packed]
            copy = wanted.fetch(url, md5, download_dir)
        with copy.judged():
            values = read_idx(copy.path)
        if field.endswith("images"):
            if values.shape != (sum(counts), SIZE, SIZE):
                raise copy.damaged(f"it holds {values.shape} values")
            arrays[field] = values[..., None]
        else:
            present = tuple(np.bincount(values.ravel(), minlength=len(counts)).tolist())
            if present != counts:
                raise copy.damaged(f"its labels occur {present} times, not {counts}")
            arrays[field] = values.astype(np.int64)
    # "7 - seven" for a digit, "Sandal" for a garment.
    names = [name.rpartition(" - ")[2] for name in wanted.published.classes]
    return RawRecords(**arrays, class_names=tuple(names), versions={})


READERS = {"mnist": read_mnist, "fashion-mnist": read_fashion_mnist}
