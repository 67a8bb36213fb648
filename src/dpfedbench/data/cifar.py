"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 colour pictures of 32×32 each.

CIFAR-10 has ten classes, CIFAR-100 a hundred. There are three data sets:

- `cifar-10` is the release, in its Python or its binary form.
- `cifar-10-jpeg` is a copy whose pictures were saved as JPEG. This changes their pixels
  a little, so results on one do not carry over to the other.
- `cifar-fs` has CIFAR-100's classes as a few-shot data set (Bertinetto et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import PIL

from dpfedbench.data.images import SPLITS as CLASS_SPLITS
from dpfedbench.data.images import Progress, RawImages, with_progress
from dpfedbench.data.records import SPLITS, RawRecords
from dpfedbench.data.sources import Copy, Source, by_class, read_pickle
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
FEW_SHOT_EXAMPLES = 600
"""Number of pictures per class in CIFAR-100."""

# Archives of a release, and the folder extracted from each.
BINARY, BINARY_MD5 = (
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
)  # as stated on the authors' page
FORMS = {
    "cifar-10-python.tar.gz": "cifar-10-batches-py",
    BINARY: "cifar-10-batches-bin",
}
FORMS_100 = {"cifar-100-python.tar.gz": "cifar-100-python"}
JPEG = "cifar-10-images.zip"
JPEG_FOLDER = "cifar-10-images"

_FILES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
_CIFAR_10 = Source(
    name="CIFAR-10", folders=("cifar-10", "CIFAR10", "cifar10"), largest=64 << 20
)  # 31 million bytes
_CIFAR_100 = Source(
    name="CIFAR-100", folders=("cifar-100", "cifar-fs"), largest=512 << 20
)  # 155 million bytes

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


def read_cifar_10(
    local: Path | None,
    download_dir: Path,
    progress: Progress | None = None,
    *,
    examples: Mapping[str, int] = EXAMPLES,
    check_md5: bool = True,
) -> RawRecords:
    """Read the release of CIFAR-10.

    Args:
        local: local data folder. It, or its subfolder `cifar-10`, `CIFAR10` or
            `cifar10`, holds an archive of the release (`cifar-10-python.tar.gz` or
            `cifar-10-binary.tar.gz`) or the folder extracted from it
            (`cifar-10-batches-py`, `cifar-10-batches-bin`).
        examples: required number of pictures per class in each split (tests use tiny
            archives).
        check_md5: whether a local archive must be the published one, byte for byte. A
            folder is checked by its content.

    Raises:
        BenchError: there is no copy and no network; or a local copy is in neither form,
            damaged or incomplete.
    """
    _refuse_another_form(local)
    copy = _find(_CIFAR_10, FORMS, local, download_dir, check_md5)
    blocks = dict[str, Any]()
    for split in with_progress(SPLITS, progress, "reading CIFAR-10"):
        images, labels = _joined(copy, _FILES[split], "labels")
        _check_labels(
            copy, labels, [f"{split}/{name}" for name in CLASSES], examples[split]
        )
        blocks |= {f"{split}_images": images, f"{split}_labels": labels}
    return RawRecords(**blocks, class_names=CLASSES, versions={})


def read_cifar_fs(
    local: Path | None,
    download_dir: Path,
    progress: Progress | None = None,
    *,
    examples: int = FEW_SHOT_EXAMPLES,
    check_md5: bool = True,
) -> RawImages:
    """Read CIFAR-100 with CIFAR-FS's split.

    Args:
        local: local data folder. It, or its subfolder `cifar-100` or `cifar-fs`, holds
            `cifar-100-python.tar.gz` or the folder `cifar-100-python` extracted from
            it.
        examples: required number of images per class, 600 from the training and test
            parts together (tests use tiny archives).
        check_md5: as for `read_cifar_10`.

    Raises:
        BenchError: there is no copy and no network, or the copy is damaged or
            incomplete.
    """
    copy = _find(_CIFAR_100, FORMS_100, local, download_dir, check_md5)
    with copy.judged("meta"):
        names = [str(name) for name in _batch(copy, "meta")["fine_label_names"]]
    split_of = {name: split for split in CLASS_SPLITS for name in SPLIT_CLASSES[split]}
    if sorted(names) != sorted(split_of):
        raise copy.damaged("its classes are not CIFAR-100's")
    pixels, labels = _joined(
        copy, with_progress(SPLITS, progress, "reading CIFAR-100"), "fine_labels"
    )
    _check_labels(copy, labels, names, examples)
    order = np.argsort(labels, kind="stable").reshape(len(names), examples)
    return RawImages(
        images=np.ascontiguousarray(pixels[order]),
        class_names=tuple(names),
        splits=tuple(split_of[name] for name in names),
        versions={},
    )


def read_cifar_10_jpeg(
    local: Path | None,
    download_dir: Path,
    progress: Progress | None = None,
    *,
    examples: Mapping[str, int] = EXAMPLES,
) -> RawRecords:
    """Read the JPEG copy of CIFAR-10 from a local folder. It is never downloaded.

    Args:
        local: local data folder. It, or its subfolder `cifar-10`, `CIFAR10` or
            `cifar10`, holds `cifar-10-images.zip` or the folder `cifar-10-images`,
            either with `train/CLASS/*.jpg` and `test/CLASS/*.jpg`. One of these
            subfolders may also hold the folders `train` and `test` directly.
        examples: as for `read_cifar_10`.

    Raises:
        BenchError: there is no copy, or the copy is damaged or incomplete.
    """
    copy = _CIFAR_10.find(local, JPEG, JPEG_FOLDER)
    if copy is None and local is not None:
        bare = (local / name for name in _CIFAR_10.folders)
        copy = next(
            (Copy(_CIFAR_10, path) for path in bare if (path / "train").is_dir()), None
        )
    if copy is None:
        raise BenchError(
            f"looked for {JPEG} or the folder {JPEG_FOLDER}, with train/CLASS/*.jpg"
            " and test/CLASS/*.jpg, and found neither: put one of them in"
            f" {_CIFAR_10.place(local)}, or take the data set cifar-10, which is"
            " downloaded from its publisher"
        )
    files = by_class(
        sorted(copy.files),
        rf"(?:^|/)((?:train|test)/(?:{'|'.join(CLASSES)}))/[^/]+\.jpg$",
    )
    blocks: dict[str, Any] = {}
    for split in SPLITS:
        classes = {
            f"{split}/{name}": files.get(f"{split}/{name}", []) for name in CLASSES
        }
        pixels = copy.pictures(
            classes,
            examples=examples[split],
            mode="RGB",
            size=SIZE,
            side=SIZE,
            progress=progress,
        )
        labels = np.repeat(np.arange(len(CLASSES), dtype=np.int64), examples[split])
        blocks |= {
            f"{split}_images": pixels.reshape(-1, SIZE, SIZE, 3),
            f"{split}_labels": labels,
        }
    return RawRecords(
        **blocks, class_names=CLASSES, versions={"pillow": PIL.__version__}
    )


def _find(
    source: Source,
    forms: Mapping[str, str],
    local: Path | None,
    download_dir: Path,
    check_md5: bool,
) -> Copy:
    """Return a local copy of a release, or else download its archive.

    The local copy may be an archive or an extracted folder.
    """
    copy = source.find(local, *forms, *forms.values())
    if copy is None:
        return source.fetch(
            source.published.url, source.published.tgz_md5, download_dir, local
        )
    if check_md5 and copy.path.is_file():
        name = copy.path.name
        copy.check_published(
            BINARY_MD5 if name == BINARY else source.published.tgz_md5, forms[name]
        )
    return copy


def _refuse_another_form(local: Path | None) -> None:
    """Refuse a local copy of CIFAR-10 that has no form of the release.

    If there is no copy at all, nothing is refused: the release is downloaded.
    """
    if local is None or _CIFAR_10.find(local, *FORMS, *FORMS.values()):
        return
    folder = next(
        (local / name for name in _CIFAR_10.folders if (local / name).is_dir()), None
    )
    content = sorted(file.name for file in folder.iterdir()) if folder else []
    if content:
        hint = (
            f"; {JPEG} is the data set cifar-10-jpeg"
            if JPEG in content or JPEG_FOLDER in content
            else ""
        )
        raise BenchError(
            f"looked in {folder} for {', '.join(FORMS)},"
            f" {' or '.join(FORMS.values())} and found"
            f" {', '.join(content[:3])}{hint}: put one of the expected files there,"
            " or move the folder away to download one"
        )


def _joined(
    copy: Copy, names: Iterable[str], labelled: str
) -> tuple[np.ndarray, np.ndarray]:
    """Read pictures and labels from files of a release, in either form.

    Returns:
        Pictures, uint8 [n, 32, 32, 3], and labels, int64 [n].
    """
    images = list[np.ndarray]()
    labels = list[np.ndarray]()
    for name in names:
        with copy.judged(name, f"it has not the form of {copy.source.name}"):
            batch = _batch(copy, name)
            if isinstance(batch, bytes):
                rows = np.frombuffer(batch, np.uint8).reshape(-1, 1 + 3 * SIZE**2)
                batch = {"data": rows[:, 1:], labelled: rows[:, 0]}
            labels.append(np.asarray(batch[labelled], np.int64))
            planes = np.asarray(batch["data"], np.uint8).reshape(
                len(labels[-1]), 3, SIZE, SIZE
            )
            images.append(planes.transpose(0, 2, 3, 1))
    return np.concatenate(images), np.concatenate(labels)


def _batch(copy: Copy, name: str) -> Any:
    """Read one file of a release: unpickled, or the bytes of the binary form."""
    for file, read in copy.files.items():
        if PurePosixPath(file).name == name:
            return read_pickle(read(), f"{copy.path} (file {name})")
        if PurePosixPath(file).name == f"{name}.bin":
            return read()
    raise copy.damaged(f"it has no {name}")


def _check_labels(
    copy: Copy, labels: np.ndarray, names: list[str], examples: int
) -> None:
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
        raise copy.damaged(f"it has the label {labels.max()}")
    counts = np.bincount(labels, minlength=len(names)).tolist()
    copy.check_counts(dict(zip(names, counts, strict=True)), examples)


READERS = {
    "cifar-10": read_cifar_10,
    "cifar-10-jpeg": read_cifar_10_jpeg,
    "cifar-fs": read_cifar_fs,
}
