"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 colour pictures of 32×32 each.

CIFAR-10 has ten classes, CIFAR-100 a hundred. There are three data sets:

- `cifar-10` is the release, in its Python form.
- `cifar-10-jpeg` is a copy whose pictures were saved as JPEG. This changes their pixels
  a little, so results on one do not carry over to the other.
- `cifar-fs` has CIFAR-100's classes as a few-shot data set (Bertinetto et al. 2019).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from dpfedbench.data.images import RawImages
from dpfedbench.data.records import RawRecords
from dpfedbench.data.sources import Source, by_class, utils
from dpfedbench.errors import BenchError

SIZE = 32
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
"""Class names of CIFAR-10."""
EXAMPLES = {"train": 5000, "test": 1000}
"""Number of pictures per class in each split of CIFAR-10."""
JPEG = "cifar-10-images.zip"
JPEG_FOLDER = "cifar-10-images"

_RELEASED = "published MD5 of the archive, or of each extracted file"
_CIFAR_10_FOLDERS = ("cifar-10", "CIFAR10", "cifar10")
PLACES = {
    "cifar-10": Source(
        name="CIFAR-10",
        folders=_CIFAR_10_FOLDERS,
        parts={"the release": ("cifar-10-python.tar.gz", "cifar-10-batches-py")},
        check=_RELEASED,
        downloaded=True,
    ),
    "cifar-10-jpeg": Source(
        name="CIFAR-10",
        folders=_CIFAR_10_FOLDERS,
        parts={"the pictures": (JPEG, JPEG_FOLDER)},
        check="6,000 pictures of 32x32 in each class, by train and test",
        downloaded=False,
        copy_bytes=63_273_525,
    ),
    "cifar-fs": Source(
        name="CIFAR-100",
        folders=("cifar-100", "cifar-fs"),
        parts={"CIFAR-100": ("cifar-100-python.tar.gz", "cifar-100-python")},
        check=_RELEASED,
        downloaded=True,
    ),
}

_SPLIT_TEXT = {
    "train": (
        """
        apple aquarium_fish bear bee bottle bowl boy bridge bus can castle caterpillar chair clock cloud
        cockroach couch cup dinosaur dolphin elephant forest girl hamster house kangaroo keyboard
        lawn_mower lion lizard lobster mountain mouse mushroom oak_tree orange orchid palm_tree pear
        pine_tree plate porcupine possum rabbit raccoon ray road seal shrew skunk skyscraper snake
        spider squirrel streetcar sunflower tank tiger train trout tulip turtle willow_tree wolf
    """
    ),
    "validation": (
        """
        beaver beetle butterfly camel cattle crab crocodile flatfish lamp maple_tree motorcycle otter
        sea shark television tractor
    """
    ),
    "test": (
        """
        baby bed bicycle chimpanzee fox leopard man pickup_truck plain poppy rocket rose snail
        sweet_pepper table telephone wardrobe whale woman worm
    """
    ),
}
SPLIT_CLASSES = {split: text.split() for split, text in _SPLIT_TEXT.items()}
"""Bertinetto et al.'s split of CIFAR-100 into 64, 16 and 20 classes."""


def read_cifar_10(local: Path | None, download_dir: Path) -> RawRecords:
    """Read the release of CIFAR-10.

    Args:
        local: local data folder. It, or its subfolder `cifar-10`, `CIFAR10` or
            `cifar10`, holds `cifar-10-python.tar.gz` or the folder
            `cifar-10-batches-py` extracted from it.

    Raises:
        BenchError: there is no copy and no network, or the copy is not the published
            one.
    """
    train, test = _read_release(PLACES["cifar-10"], local, download_dir)
    return RawRecords(
        train_images=train.data,
        train_labels=np.array(train.targets, np.int64),
        test_images=test.data,
        test_labels=np.array(test.targets, np.int64),
        class_names=tuple(train.classes),
        versions={},
    )


def read_cifar_fs(local: Path | None, download_dir: Path) -> RawImages:
    """Read CIFAR-100 with CIFAR-FS's split.

    Args:
        local: local data folder. It, or its subfolder `cifar-100` or `cifar-fs`, holds
            `cifar-100-python.tar.gz` or the folder `cifar-100-python` extracted from
            it.

    Raises:
        BenchError: there is no copy and no network, or the copy is not the published
            one.
    """
    train, test = _read_release(PLACES["cifar-fs"], local, download_dir)
    images = np.concatenate([train.data, test.data])
    labels = np.array(train.targets + test.targets)
    order = np.argsort(labels, kind="stable").reshape(len(train.classes), -1)
    split_of = {name: split for split, names in SPLIT_CLASSES.items() for name in names}
    return RawImages(
        images=np.ascontiguousarray(images[order]),
        class_names=tuple(train.classes),
        splits=tuple(split_of[name] for name in train.classes),
        versions={},
    )


def read_cifar_10_jpeg(
    local: Path | None,
    download_dir: Path,
) -> RawRecords:
    """Read the JPEG copy of CIFAR-10 from a local folder. It is never downloaded.

    Args:
        local: local data folder. It, or its subfolder `cifar-10`, `CIFAR10` or
            `cifar10`, holds `cifar-10-images.zip` or the folder `cifar-10-images`,
            either with `train/CLASS/*.jpg` and `test/CLASS/*.jpg`.

    Raises:
        BenchError: there is no copy, or the copy is damaged or incomplete.
    """
    source = PLACES["cifar-10-jpeg"]
    copy = source.find_whole(local)
    if copy is None:
        raise BenchError(
            f"looked for {JPEG} or the folder {JPEG_FOLDER}, with train/CLASS/*.jpg"
            " and test/CLASS/*.jpg, and found neither: put one of them in"
            f" {source.place}, or take the data set cifar-10, which is"
            " downloaded from its publisher"
        )
    files = by_class(
        sorted(copy.files),
        rf"(?:^|/)((?:train|test)/(?:{'|'.join(CLASSES)}))/[^/]+\.jpg$",
    )
    blocks: dict[str, Any] = {}
    for split, examples in EXAMPLES.items():
        classes = {
            f"{split}/{name}": files.get(f"{split}/{name}", []) for name in CLASSES
        }
        pixels = copy.pictures(
            classes,
            examples=examples,
            mode="RGB",
            size=SIZE,
            side=SIZE,
        )
        blocks[f"{split}_images"] = pixels.reshape(-1, SIZE, SIZE, 3)
        blocks[f"{split}_labels"] = np.repeat(np.arange(len(CLASSES)), examples)
    return RawRecords(
        **blocks, class_names=CLASSES, versions={"pillow": PIL.__version__}
    )


def _read_release(
    source: Source, local: Path | None, download_dir: Path
) -> tuple[Any, Any]:
    """Return torchvision's training and test part of a release.

    torchvision compares the checksum of each file with the published one.
    """
    published = source.published
    copy = source.find_whole(local)
    if copy is None:
        copy = source.fetch(published.url, published.tgz_md5, download_dir)
    with tempfile.TemporaryDirectory() as unpacked, copy.judged():
        folder = copy.path.parent
        if copy.path.is_file():
            if not utils.check_integrity(copy.path, published.tgz_md5):
                raise copy.damaged("its checksum is not the published one")
            utils.extract_archive(copy.path, unpacked)
            folder = Path(unpacked)
        return published(folder, train=True), published(folder, train=False)


READERS = {
    "cifar-10": read_cifar_10,
    "cifar-10-jpeg": read_cifar_10_jpeg,
    "cifar-fs": read_cifar_fs,
}
