"""CIFAR-FS: the 100 classes of CIFAR-100 as a few-shot data set (Bertinetto et al. 2019), 32×32 colour."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedbench.data.entry import DatasetEntry
from dpfedbench.data.images import SPLITS, Progress, RawImages
from dpfedbench.data.sources import Source, check_published, fetch, find_local, read_pickle

if TYPE_CHECKING:
    from torchvision import datasets
else:
    from dpsum.lazy import Lazy

    datasets = Lazy("torchvision.datasets")  # slow to import, and not needed with a local copy

FOLDER, ARCHIVE = "cifar-100-python", "cifar-100-python.tar.gz"
EXAMPLES = 600
SIZE = 32
_SOURCE = Source(name="CIFAR-100", largest=512 << 20)  # the training part has 155 million bytes

_SPLIT_TEXT = {
    "train": """
        apple aquarium_fish bear bee bottle bowl boy bridge bus can castle caterpillar chair clock cloud
        cockroach couch cup dinosaur dolphin elephant forest girl hamster house kangaroo keyboard
        lawn_mower lion lizard lobster mountain mouse mushroom oak_tree orange orchid palm_tree pear
        pine_tree plate porcupine possum rabbit raccoon ray road seal shrew skunk skyscraper snake
        spider squirrel streetcar sunflower tank tiger train trout tulip turtle willow_tree wolf
    """,
    "validation": """
        beaver beetle butterfly camel cattle crab crocodile flatfish lamp maple_tree motorcycle otter
        sea shark television tractor
    """,
    "test": """
        baby bed bicycle chimpanzee fox leopard man pickup_truck plain poppy rocket rose snail
        sweet_pepper table telephone wardrobe whale woman worm
    """,
}
SPLIT_CLASSES = {split: text.split() for split, text in _SPLIT_TEXT.items()}
"""Bertinetto et al.'s split into 64, 16 and 20 classes."""


def read_cifar_fs(
    local: Path | None,
    download_dir: Path,
    progress: Progress | None = None,
    *,
    examples: int = EXAMPLES,
    check_md5: bool = True,
) -> RawImages:
    """Read CIFAR-100 (train and test parts together, 600 images a class) under CIFAR-FS's split.

    Args:
        local: a folder with `cifar-100-python.tar.gz` or the folder `cifar-100-python` extracted from it, in
            itself or in its subfolder `cifar-100` or `cifar-fs`.
        examples: images a class must have (tests use tiny archives).
        check_md5: whether a local archive must be the published one, byte for byte. A folder is judged by its content.

    Raises:
        BenchError: no copy and no network; or a copy that is damaged or incomplete.
    """
    published = datasets.CIFAR100
    path = find_local(local, ("cifar-100", "cifar-fs"), (ARCHIVE, FOLDER))
    path = path or fetch(published.url, published.tgz_md5, download_dir, local=local, subfolder="cifar-100")
    if check_md5 and path.is_file():
        check_published(path, published.tgz_md5, FOLDER)
    parts = _read_parts(path, progress)
    try:
        names = [str(name) for name in parts["meta"]["fine_label_names"]]
        pixels = np.concatenate([np.asarray(parts[part]["data"], dtype=np.uint8) for part in ("train", "test")])
        labels = np.concatenate([np.asarray(parts[part]["fine_labels"]) for part in ("train", "test")])
        pixels = pixels.reshape(len(labels), 3, SIZE, SIZE).transpose(0, 2, 3, 1)
    except (KeyError, TypeError, ValueError) as error:
        raise _SOURCE.damaged(path, f"it has not the parts of CIFAR-100: {error}") from error
    split_of = {name: split for split in SPLITS for name in SPLIT_CLASSES[split]}
    if sorted(names) != sorted(split_of):
        raise _SOURCE.damaged(path, "its classes are not CIFAR-100's")
    counts = np.bincount(labels, minlength=len(names))
    if len(counts) != len(names) or (counts != examples).any():
        raise _SOURCE.damaged(path, f"not every class has {examples} images")
    order = np.argsort(labels, kind="stable").reshape(len(names), examples)
    return RawImages(
        images=np.ascontiguousarray(pixels[order]),
        class_names=tuple(names),
        splits=tuple(split_of[name] for name in names),
        versions={},
    )


def _read_parts(path: Path, progress: Progress | None) -> dict[str, Any]:
    parts, wanted = {}, ("meta", "train", "test")
    files, prefix = _SOURCE.files(path), "" if path.is_dir() else f"{FOLDER}/"
    try:
        for done, part in enumerate(wanted, start=1):
            parts[part] = read_pickle(files[prefix + part](), f"{path} (part {part})")
            if progress:
                progress("reading CIFAR-100", done, len(wanted))
    except (KeyError, OSError, ValueError) as error:
        raise _SOURCE.damaged(path, str(error)) from error
    return parts


ENTRIES = (
    DatasetEntry(
        name="cifar-fs",
        holds="classes 64/16/20 x 600 of 32x32x3",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky 2009 and Bertinetto et al. 2019",
        read=read_cifar_fs,
    ),
)
