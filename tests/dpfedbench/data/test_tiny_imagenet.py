"""Tiny-ImageNet: the release's and the subset's layout, on tiny copies of flat colours."""

import io

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data import tiny_imagenet
from dpfedbench.data.tiny_imagenet import read_tiny_imagenet, read_tiny_imagenet_100

from .conftest import split_counts, write_files, write_zip

NAMES = ("n01", "n02", "n03", "n04", "n05")
EXPECTED = 20 + 40 * np.arange(5)[:, None] + 2 * np.arange(12)
"""Value of each image, by class and example."""


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    counts = dict.fromkeys(tiny_imagenet.COUNTS, (5, 12))
    monkeypatch.setattr(tiny_imagenet, "COUNTS", counts)


def jpeg(value, mode="RGB", size=64):
    buffer = io.BytesIO()
    colour = int(value) if mode == "L" else (int(value),) * 3
    Image.new(mode, (size, size), colour).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def release():
    """Return eleven training images a class and one validation image.

    With eleven, the order of texts is not the order of numbers.
    """
    files = {"test/images/test_0.JPEG": jpeg(0), "wnids.txt": b"n01"}
    lines = []
    for index, name in enumerate(NAMES):
        for example in range(11):
            path = f"train/{name}/images/{name}_{example}.JPEG"
            files[path] = jpeg(EXPECTED[index, example])
        number = len(NAMES) - 1 - index
        mode = "L" if index == 0 else "RGB"
        files[f"val/images/val_{number}.JPEG"] = jpeg(EXPECTED[index, 11], mode)
        lines.append(f"val_{number}.JPEG\t{name}\t0\t32\t44\t62")
    files["val/val_annotations.txt"] = "\n".join(lines).encode()
    return files


def subset():
    return {
        f"{name}/{name}_{example}.JPEG": jpeg(EXPECTED[index, example])
        for index, name in enumerate(NAMES)
        for example in range(12)
    }


def check_images(raw, size=64):
    """Check values to within a rounding of JPEG's colour transform."""
    assert raw.images.shape == (5, 12, size, size, 3)
    assert np.abs(raw.images.astype(int) - EXPECTED[..., None, None, None]).max() <= 1
    assert raw.class_names == NAMES
    assert split_counts(raw) == [3, 1, 1]


def test_tiny_imagenet_has_its_validation_images_last(tmp_path):
    members = {f"tiny-imagenet-200/{name}": file for name, file in release().items()}
    write_zip(tmp_path / "tiny-imagenet/tiny-imagenet-200.zip", members)
    check_images(read_tiny_imagenet(tmp_path, tmp_path / "download"))


@pytest.mark.parametrize("size", [64, 32])
def test_tiny_imagenet_subset_is_read(tmp_path, size):
    write_files(tmp_path / "tiny-imagenet-100", subset())
    check_images(read_tiny_imagenet_100(tmp_path, tmp_path, size=size), size)
