"""Tiny-ImageNet (Le and Yang 2015, Stanford's CS231n) as a few-shot data set.

It has ImageNet classes in 64×64 colour. There are two data sets, because results on one
do not carry over to the other: `tiny-imagenet` is the release, 200 classes × 550 (500
training and 50 validation images; those of its test part have no labels).
`tiny-imagenet-100` is a published subset of 100 classes × 200. Neither has a standard
few-shot split. 64, 16 and 20 % of the classes are training, validation and test
classes; `images.shuffled_splits` assigns them from the sorted WordNet ids.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import PIL

from dpfedbench.data.images import RawImages, shuffled_splits
from dpfedbench.data.sources import Copy, Source, by_class
from dpfedbench.errors import BenchError

RELEASE = "tiny-imagenet-200"
SUBSET = "tiny-imagenet-100"
URL = f"http://cs231n.stanford.edu/{RELEASE}.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
SIZE = 64
COUNTS = {RELEASE: (200, 550), SUBSET: (100, 200)}
"""Number of classes and of images per class, for the two data sets."""

_ANNOTATIONS = "val/val_annotations.txt"

_RELEASE = Source(
    name="Tiny-ImageNet",
    folders=("tiny-imagenet", RELEASE),
    parts={"the release": (f"{RELEASE}.zip", RELEASE)},
    check="download: published MD5; local copy: 200 classes, 550 images each",
    downloaded=True,
)
_SUBSET = Source(
    name="Tiny-ImageNet",
    folders=(SUBSET,),
    parts={"the subset": (f"{SUBSET}.zip", SUBSET)},
    check="100 classes, 200 images each",
    downloaded=False,
    copy_bytes=42_446_337,
)
PLACES = {
    "tiny-imagenet": _RELEASE,
    "tiny-imagenet-100": _SUBSET,
    "tiny-imagenet-100-32": _SUBSET,
}


def read_tiny_imagenet(
    local: Path | None,
    download_dir: Path,
) -> RawImages:
    """Read the release: 500 training and then 50 validation images of each class.

    Args:
        local: local data folder. It, or its subfolder `tiny-imagenet` or
            `tiny-imagenet-200`, holds `tiny-imagenet-200.zip` or the folder
            `tiny-imagenet-200` extracted from it. A copy is checked by its content.

    Raises:
        BenchError: there is no copy and no network, or the copy is damaged or
            incomplete.
    """
    copy = _RELEASE.find_whole(local) or _RELEASE.fetch(URL, MD5, download_dir)
    names = sorted(copy.files, key=_number)
    annotations = next((name for name in names if name.endswith(_ANNOTATIONS)), None)
    if annotations is None:
        raise copy.damaged(f"{_ANNOTATIONS} is missing")
    lines = copy.read(annotations).decode("utf-8").splitlines()
    class_of = dict(line.split("\t")[:2] for line in lines if "\t" in line)
    classes = by_class(names, r"(?:^|/)train/(n\d+)/images/\1_\d+\.JPEG$")
    for picture, files in by_class(
        names, r"(?:^|/)val/images/(val_\d+\.JPEG)$"
    ).items():
        if picture in class_of:
            classes.setdefault(class_of[picture], []).extend(files)
    return _decoded(copy, classes, RELEASE)


def read_tiny_imagenet_100(
    local: Path | None,
    download_dir: Path,
    *,
    size: int = SIZE,
) -> RawImages:
    """Read the subset from a local folder. It is never downloaded.

    Args:
        local: local data folder. It, or its subfolder `tiny-imagenet-100`, holds
            `tiny-imagenet-100.zip` or the folder `tiny-imagenet-100` (one subfolder per
            class, `WNID/WNID_N.JPEG`).
        size: side of an image. For a size other than 64, images are resized with
            Lanczos's filter.

    Raises:
        BenchError: there is no copy, or the copy is damaged or incomplete.
    """
    copy = _SUBSET.find_whole(local)
    if copy is None:
        raise BenchError(
            f"{SUBSET}.zip is missing, and is not downloaded automatically: put it in"
            f" {_SUBSET.place}, or take the data set tiny-imagenet, which is"
            f" downloaded from {URL}"
        )
    classes = by_class(sorted(copy.files, key=_number), r"(?:^|/)(n\d+)/\1_\d+\.JPEG$")
    return _decoded(copy, classes, SUBSET, size)


def _number(name: str) -> tuple[str, int]:
    """Return the sort key of an image: its number as a number, not as text."""
    match = re.fullmatch(r"(.*)_(\d+)\.JPEG", name)
    return (match[1], int(match[2])) if match else (name, 0)


def _decoded(
    copy: Copy,
    classes: Mapping[str, Sequence[str]],
    name: str,
    size: int = SIZE,
) -> RawImages:
    count, examples = COUNTS[name]
    if len(classes) != count:
        raise copy.damaged(f"it has {len(classes)} classes, not {count}")
    classes = dict(sorted(classes.items()))
    validation = round(0.16 * count)
    test = round(0.2 * count)
    return RawImages(
        # A few pictures are grey; they become RGB.
        images=copy.pictures(
            classes,
            examples=examples,
            mode="RGB",
            size=SIZE,
            side=size,
        ),
        class_names=tuple(classes),
        splits=shuffled_splits(count, (count - validation - test, validation, test)),
        versions={"pillow": PIL.__version__},
    )


READERS = {
    "tiny-imagenet": read_tiny_imagenet,
    "tiny-imagenet-100": read_tiny_imagenet_100,
    "tiny-imagenet-100-32": partial(read_tiny_imagenet_100, size=32),
}
