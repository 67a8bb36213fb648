"""Tiny-ImageNet as a few-shot data set: ImageNet classes in 64×64 colour (Le and Yang 2015, Stanford's CS231n).

There are two data sets, since results on one do not carry over to the other: `tiny-imagenet` is the release, 200
classes × 550 (500 training and 50 validation images; those of its test part have no labels), and `tiny-imagenet-100` a
published subset of 100 classes × 200. Nobody's few-shot split of either is a standard: 64, 16 and 20 % of the classes
are training, validation and test classes, dealt from the sorted WordNet ids by `images.shuffled_splits`.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

from dpfedbench.data.entry import DatasetEntry
from dpfedbench.data.images import Progress, RawImages, shuffled_splits
from dpfedbench.data.sources import Files, Source, fetch, find_local, listed, place_for
from dpfedbench.errors import BenchError

RELEASE, SUBSET = "tiny-imagenet-200", "tiny-imagenet-100"
URL = f"http://cs231n.stanford.edu/{RELEASE}.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
SIZE = 64
COUNTS = {RELEASE: (200, 550), SUBSET: (100, 200)}
"""Classes, and images a class, of the two data sets."""

_NAMED = 3  # classes that an error names
_SOURCE = Source(name="Tiny-ImageNet", largest=32 << 20, fetched=False)  # the longest file is a list of classes
_TRAIN = re.compile(r"(?:^|/)train/(n\d+)/images/\1_\d+\.JPEG$")
_VALIDATION = re.compile(r"(?:^|/)val/images/(val_\d+\.JPEG)$")
_PLAIN = re.compile(r"(?:^|/)(n\d+)/\1_\d+\.JPEG$")
_ANNOTATIONS = "val/val_annotations.txt"


def read_tiny_imagenet(
    local: Path | None, download_dir: Path, progress: Progress | None = None, *, classes: int = 200, examples: int = 550
) -> RawImages:
    """Read the release: 500 training and then 50 validation images of each class.

    Args:
        local: a folder with `tiny-imagenet-200.zip` or the folder `tiny-imagenet-200` extracted from it, in itself or
            in its subfolder `tiny-imagenet` or `tiny-imagenet-200`; judged by its content.
        classes: how many there must be (tests use tiny archives).
        examples: images a class must have.

    Raises:
        BenchError: no copy and no network; or a copy that is damaged or incomplete.
    """
    path = find_local(local, ("tiny-imagenet", RELEASE), (f"{RELEASE}.zip", RELEASE))
    path = path or fetch(URL, MD5, download_dir, local=local, subfolder="tiny-imagenet")
    files = _SOURCE.files(path)
    images = defaultdict(list)
    for name in sorted(files, key=_number):
        if match := _TRAIN.search(name):
            images[match[1]].append(name)
    listed = next((name for name in files if name.endswith(_ANNOTATIONS)), None)
    if listed is None:
        raise _SOURCE.damaged(path, f"{_ANNOTATIONS} is missing")
    wordnet = dict(line.split("\t")[:2] for line in _text(path, listed, files).splitlines() if "\t" in line)
    for name in sorted(files, key=_number):
        match = _VALIDATION.search(name)
        if match and match[1] in wordnet:
            images[wordnet[match[1]]].append(name)
    return _read(path, files, images, classes, examples, progress)


def read_tiny_imagenet_100(
    local: Path | None,
    download_dir: Path,
    progress: Progress | None = None,
    *,
    size: int = SIZE,
    classes: int = 100,
    examples: int = 200,
) -> RawImages:
    """Read the subset, which is in a local folder or nowhere.

    Args:
        local: a folder with `tiny-imagenet-100.zip` or the folder `tiny-imagenet-100` (one of images a class,
            `WNID/WNID_N.JPEG`), in itself or in its subfolder `tiny-imagenet-100`.
        size: side of an image; another than 64 is resized to, with Lanczos's filter.
        classes: how many there must be (tests use tiny archives).
        examples: images a class must have.

    Raises:
        BenchError: no copy; or a copy that is damaged or incomplete.
    """
    del download_dir
    path = find_local(local, (SUBSET,), (f"{SUBSET}.zip", SUBSET))
    if path is None:
        raise BenchError(
            f"{SUBSET}.zip is missing, and is not fetched: put it in {place_for(local, SUBSET)}, or take the data "
            f"set tiny-imagenet, which is fetched from {URL}"
        )
    files = _SOURCE.files(path)
    images = defaultdict(list)
    for name in sorted(files, key=_number):
        if match := _PLAIN.search(name):
            images[match[1]].append(name)
    return _read(path, files, images, classes, examples, progress, size)


def _number(name: str) -> tuple[str, int]:
    """The order of a class's images: by their numbers, not as text."""
    return name.rpartition("_")[0], int("0" + "".join(re.findall(r"_(\d+)\.JPEG$", name)))


def _text(path: Path, name: str, files: Files) -> str:
    try:
        return files[name]().decode("utf-8")
    except (OSError, ValueError) as error:
        raise _SOURCE.damaged(path, f"{name}: {error}") from error


def _read(
    path: Path,
    files: Files,
    images: dict[str, list[str]],
    classes: int,
    examples: int,
    progress: Progress | None,
    size: int = SIZE,
) -> RawImages:
    """Decode the named images of each class, uint8 [classes, examples, size, size, 3]."""
    if len(images) != classes:
        raise _SOURCE.damaged(path, f"it has {len(images)} classes, not {classes}")
    short = [f"{name} has {len(listed)}" for name, listed in sorted(images.items()) if len(listed) != examples]
    if short:
        raise _SOURCE.damaged(path, f"not every class has {examples} images: {listed(short, _NAMED)}")
    pixels: np.ndarray = np.empty((classes, examples, size, size, 3), np.uint8)
    for index, name in enumerate(sorted(images)):
        for place, file in enumerate(images[name]):
            pixels[index, place] = _decode(path, file, files[file], size)
        if progress:
            progress(f"reading {path.name}, class", index + 1, classes)
    # 64, 16 and 20 %; what rounding leaves over is for training.
    counts = (classes - round(0.16 * classes) - round(0.2 * classes), round(0.16 * classes), round(0.2 * classes))
    return RawImages(
        images=pixels,
        class_names=tuple(sorted(images)),
        splits=shuffled_splits(classes, counts),
        versions={"pillow": PIL.__version__},
    )


def _decode(path: Path, name: str, read: Callable[[], bytes], size: int) -> np.ndarray:
    colour = _SOURCE.picture(path, name, read, SIZE, "RGB")  # a few are grey
    return np.asarray(colour if size == SIZE else colour.resize((size, size), Image.Resampling.LANCZOS))


ENTRIES = (
    DatasetEntry(
        name="tiny-imagenet",
        holds="classes 128/32/40 x 550 of 64x64x3",
        source="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        licence="ImageNet terms of access: non-commercial research",
        read=read_tiny_imagenet,
    ),
    DatasetEntry(
        name="tiny-imagenet-100",
        holds="classes 64/16/20 x 200 of 64x64x3",
        source="100 classes x 200 training images of http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        licence="ImageNet terms of access: non-commercial research",
        read=read_tiny_imagenet_100,
        recorded_sha256="fe6fe7ae62013ff4f5e72ab71c0267190a5d06ffd316a141c1c5d7c015dec7dd",
    ),
    DatasetEntry(
        name="tiny-imagenet-100-32",
        holds="classes 64/16/20 x 200 of 32x32x3",
        source="tiny-imagenet-100, resized to 32x32",
        licence="ImageNet terms of access: non-commercial research",
        read=partial(read_tiny_imagenet_100, size=32),
        recorded_sha256="fcd1cafceaab62678b8016354c59d83ca4fc2ac55d40631f57cc059d6ecf1d6b",
    ),
)
