"""CIFAR-10 (Krizhevsky 2009): 60,000 pictures of 32×32 in colour, ten classes; 10,000 pictures are for testing.

There are two data sets, since results on one do not carry over to the other: `cifar-10` is the release, in its form
for Python or in its binary one, and `cifar-10-jpeg` is a copy whose pictures were saved as JPEG, which moves their
pixels a little.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL

from dpfedbench.data.entry import DatasetEntry
from dpfedbench.data.images import Progress
from dpfedbench.data.records import SPLITS, RawRecords
from dpfedbench.data.sources import Files, Source, check_published, fetch, find_local, place_for, read_pickle
from dpfedbench.errors import BenchError

if TYPE_CHECKING:
    from torchvision import datasets
else:
    from dpsum.lazy import Lazy

    datasets = Lazy("torchvision.datasets")  # slow to import, and not needed with a local copy

SIZE = 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
EXAMPLES = {"train": 5000, "test": 1000}
"""Pictures of each class."""
PLACES = ("cifar-10", "CIFAR10", "cifar10")
"""Subfolders of a local data folder."""
PYTHON, BINARY = "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"
BINARY_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"  # as its authors' page states it
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
JPEG, JPEG_FOLDER = "cifar-10-images.zip", "cifar-10-images"

_PARTS = {"train": tuple(f"data_batch_{part}" for part in range(1, 6)), "test": ("test_batch",)}

_SOURCE = Source(name="CIFAR-10", largest=64 << 20)  # a part has 31 million bytes


def read_cifar_10(
    local: Path | None,
    download_dir: Path,
    progress: Progress | None = None,
    *,
    examples: dict[str, int] = EXAMPLES,
    check_md5: bool = True,
) -> RawRecords:
    """Read the release.

    Args:
        local: a folder with an archive of the release (`cifar-10-python.tar.gz` or `cifar-10-binary.tar.gz`) or the
            folder extracted from it (`cifar-10-batches-py`, `cifar-10-batches-bin`), in itself or in its subfolder
            `cifar-10`, `CIFAR10` or `cifar10`.
        examples: pictures of each class that each split must have (tests use tiny archives).
        check_md5: whether a local archive must be the published one, byte for byte. A folder is judged by its content.

    Raises:
        BenchError: no copy and no network; a local copy in neither form; or one that is damaged or incomplete.
    """
    path = find_local(local, PLACES, (PYTHON, BINARY, *FOLDERS))
    if path is None:
        _refuse_another_form(local)
        published = datasets.CIFAR10
        path = fetch(published.url, published.tgz_md5, download_dir, local=local, subfolder=PLACES[0])
    elif check_md5 and path.is_file():
        python = path.name == PYTHON
        check_published(path, datasets.CIFAR10.tgz_md5 if python else BINARY_MD5, FOLDERS[not python])
    files, blocks = _SOURCE.files(path), dict[str, Any]()
    for done, split in enumerate(SPLITS):
        read = [_part(path, files, part) for part in _PARTS[split]]
        images, labels = (np.concatenate(parts) for parts in zip(*read, strict=True))
        _check_counts(path, split, labels, examples[split])
        blocks |= {f"{split}_images": images, f"{split}_labels": labels}
        if progress:
            progress("reading CIFAR-10", done + 1, len(SPLITS))
    return RawRecords(**blocks, class_names=CLASSES, versions={})


def read_cifar_10_jpeg(
    local: Path | None, download_dir: Path, progress: Progress | None = None, *, examples: dict[str, int] = EXAMPLES
) -> RawRecords:
    """Read a copy of JPEG pictures, which is in a local folder or nowhere.

    Args:
        local: a folder with `cifar-10-images.zip` or the folder `cifar-10-images`, either with `train/CLASS/*.jpg` and
            `test/CLASS/*.jpg`, in itself or in its subfolder `cifar-10`, `CIFAR10` or `cifar10`; or one of these
            subfolders that has the folders `train` and `test` itself.
        examples: as for `read_cifar_10`.

    Raises:
        BenchError: no copy; or a copy that is damaged or incomplete.
    """
    del download_dir
    path = find_local(local, PLACES, (JPEG, JPEG_FOLDER))
    if path is None and local is not None:
        path = next((local / place for place in PLACES if (local / place / "train").is_dir()), None)
    if path is None:
        raise BenchError(
            f"looked for {JPEG} or the folder {JPEG_FOLDER}, with train/CLASS/*.jpg and test/CLASS/*.jpg, and found "
            f"neither: put it in {place_for(local, PLACES[0])}, or take the data set cifar-10, which is fetched from "
            "where it is published"
        )
    files = _SOURCE.files(path)
    pictures: dict[tuple[str, str], list[str]] = {}
    for name in sorted(files):
        parts = name.split("/")
        if len(parts) >= 3 and parts[-3] in SPLITS and parts[-2] in CLASSES and parts[-1].endswith(".jpg"):
            pictures.setdefault((parts[-3], parts[-2]), []).append(name)
    blocks: dict[str, Any] = {}
    for split in SPLITS:
        labels: np.ndarray = np.repeat(
            np.arange(len(CLASSES), dtype=np.int64), [len(pictures.get((split, name), ())) for name in CLASSES]
        )
        _check_counts(path, split, labels, examples[split])
        images: np.ndarray = np.empty((len(labels), SIZE, SIZE, 3), np.uint8)
        for label, name in enumerate(CLASSES):
            for number, file in enumerate(pictures[split, name]):
                images[label * examples[split] + number] = _SOURCE.picture(path, file, files[file], SIZE, "RGB")
            if progress:
                progress(f"reading {path.name}", SPLITS.index(split) * len(CLASSES) + label + 1, 2 * len(CLASSES))
        blocks |= {f"{split}_images": images, f"{split}_labels": labels}
    return RawRecords(**blocks, class_names=CLASSES, versions={"pillow": PIL.__version__})


def _refuse_another_form(local: Path | None) -> None:
    """Refuse a local copy that is there and is not the release; none at all is no fault, and is fetched."""
    folder = next((local / place for place in PLACES if (local / place).is_dir()), None) if local else None
    content = sorted(file.name for file in folder.iterdir()) if folder else []
    if folder and content:
        hint = f"; {JPEG} is the data set cifar-10-jpeg" if JPEG in content or JPEG_FOLDER in content else ""
        raise BenchError(
            f"looked in {folder} for {PYTHON}, {BINARY}, {FOLDERS[0]} or {FOLDERS[1]} and found "
            f"{', '.join(content[:3])}{hint}: put one of them there, or move the folder away to download one"
        )


def _part(path: Path, files: Files, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Pictures, uint8 [n, 32, 32, 3], and labels, int64 [n], of one file of the release, in either form."""
    named = {name.rpartition("/")[2]: read for name, read in files.items()}
    called = f"{path} (part {part})"
    try:
        if part in named:
            batch = read_pickle(named[part](), called)
            pixels, labels = np.asarray(batch["data"], np.uint8), np.asarray(batch["labels"], np.int64)
        elif f"{part}.bin" in named:
            rows = np.frombuffer(named[f"{part}.bin"](), np.uint8).reshape(-1, 1 + 3 * SIZE**2)
            pixels, labels = rows[:, 1:], rows[:, 0].astype(np.int64)
        else:
            raise _SOURCE.damaged(path, f"it has neither {part} nor {part}.bin")
        return pixels.reshape(len(labels), 3, SIZE, SIZE).transpose(0, 2, 3, 1), labels
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise _SOURCE.damaged(path, f"{part} has not the form of CIFAR-10: {error}") from error


def _check_counts(path: Path, split: str, labels: np.ndarray, examples: int) -> None:
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(CLASSES):
        raise _SOURCE.damaged(path, f"it has the label {labels.max()}")
    for name, count in zip(CLASSES, np.bincount(labels, minlength=len(CLASSES)), strict=True):
        if count != examples:
            raise _SOURCE.damaged(path, f"{split} has {count} pictures of {name}, not {examples}")


ENTRIES = (
    DatasetEntry(
        name="cifar-10",
        holds="records 50000/10000 of 32x32x3",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky 2009",
        read=read_cifar_10,
    ),
    DatasetEntry(
        name="cifar-10-jpeg",
        holds="records 50000/10000 of 32x32x3",
        source="the pictures of https://www.cs.toronto.edu/~kriz/cifar.html, saved as JPEG",
        licence="none stated; cite Krizhevsky 2009",
        read=read_cifar_10_jpeg,
        recorded_sha256="7b0ff7494215d9215f3ffdc2980db3bc3ff231b0967d8059f817b149f349b533",
    ),
)
