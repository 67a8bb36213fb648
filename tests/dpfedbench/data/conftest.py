"""Small data sets and checks for the tests of this folder."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data.images import ImageDataset, RawImages, load_dataset
from dpfedbench.errors import BenchError


def make_raw_images(train: int, validation: int, test: int, examples: int) -> RawImages:
    """Return 4 x 4 images whose pixel value is (class * 7 + example) % 256."""
    classes = train + validation + test
    value = (np.arange(classes)[:, None] * 7 + np.arange(examples)) % 256
    images = np.empty((classes, examples, 4, 4, 1), np.uint8)
    images[:] = value[:, :, None, None, None]
    # Splits interleave, so that a class index is never a position within a split.
    splits = np.repeat(["train", "validation", "test"], [train, validation, test])
    return RawImages(
        images=images,
        class_names=tuple(f"class {index}" for index in range(classes)),
        splits=tuple(np.random.default_rng(0).permutation(splits).tolist()),
        versions={},
    )


def refusal(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Call a function that is refused, and return its one-line message."""
    with pytest.raises(BenchError) as caught:
        function(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def split_counts(raw: Any) -> list[int]:
    return [raw.splits.count(split) for split in ("train", "validation", "test")]


def flat_picture(value: int, size: int, mode: str = "RGB", kind: str = "png") -> bytes:
    """Return the file of a picture of one brightness."""
    file = io.BytesIO()
    picture = Image.new("L", (size, size), int(value)).convert(mode)
    picture.save(file, kind, quality=95)
    return file.getvalue()


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def small(tmp_path: Path) -> ImageDataset:
    """Make 24 training, 6 validation and 10 test classes of 12 images."""
    make_raw_images(24, 6, 10, 12).save(tmp_path / "small", {"name": "small"})
    return load_dataset(tmp_path / "small")
