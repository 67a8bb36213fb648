"""MNIST and Fashion-MNIST from IDX files."""

import dataclasses
import gzip
import struct

import numpy as np
import pytest

from dpfedbench.data import mnist
from dpfedbench.data.mnist import read_fashion_mnist, read_mnist
from dpfedbench.data.registry import prepare

from .conftest import refusal, write_files

COUNTS = {
    "train": (2, 1, 0, 1, 1, 1, 1, 1, 1, 3),
    "test": (1, 0, 0, 0, 0, 0, 0, 0, 0, 2),
}
IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte.gz"


@pytest.fixture
def small(monkeypatch):
    for name in ("_MNIST", "_FASHION_MNIST"):
        facts = dataclasses.replace(getattr(mnist, name), counts=COUNTS)
        monkeypatch.setattr(mnist, name, facts)


def idx(values, kind=8):
    """Encode an IDX file: two zeros, type, number of axes, lengths of axes, values."""
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, kind, values.ndim, *values.shape)
    return head + values.tobytes()


def split_content(split):
    """Return images whose pixels show record and column, and labels."""
    labels = np.repeat(np.arange(10), COUNTS[split])[::-1].astype(np.uint8)
    columns = np.broadcast_to(np.arange(28) % 20, (28, 28))
    images = np.arange(len(labels))[:, None, None] * 20 + columns
    return images.astype(np.uint8), labels


def write_set(folder, packed=True):
    files = {}
    for part, name in mnist.FILES.items():
        split, _, kind = part.partition("_")
        content = idx(split_content(split)[kind == "labels"])
        if packed:
            files[f"{name}.gz"] = gzip.compress(content)
        else:
            files[name] = content
    return write_files(folder, files)


@pytest.mark.parametrize(
    ("read", "folder", "packed"),
    [
        (read_mnist, "mnist", True),
        (read_mnist, "MNIST/raw", False),
        (read_mnist, ".", True),
        (read_fashion_mnist, "FashionMNIST", False),
    ],
)
def test_mnist_is_read_from_its_usual_folders(small, tmp_path, read, folder, packed):
    write_set(tmp_path / "local" / folder, packed)
    raw = read(tmp_path / "local", tmp_path / "download")
    for split, images, labels in raw.blocks():
        expected_images, expected_labels = split_content(split)
        assert np.array_equal(images[..., 0], expected_images)
        assert np.array_equal(labels, expected_labels)
    assert raw.class_names[9] in ("nine", "Ankle boot")
    assert not (tmp_path / "download").exists()


def packed(values, kind=8):
    return gzip.compress(idx(values, kind))


def flip_checksum(content):
    return content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]


TRAIN_IMAGES, TRAIN_LABELS = split_content("train")


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        (IMAGES, flip_checksum),
        (IMAGES, lambda content: gzip.compress(gzip.decompress(content)[:-1])),
        (IMAGES, lambda content: packed(TRAIN_IMAGES.astype(">f4"), kind=13)),
        (IMAGES, lambda content: packed(TRAIN_IMAGES.reshape(12, 14, 56))),
        (LABELS, lambda content: packed(TRAIN_LABELS[1:])),
        (LABELS, lambda content: packed(TRAIN_LABELS // 2)),
    ],
)
def test_mnist_file_that_is_damaged_is_refused_and_nothing_is_written(
    small, tmp_path, file, harm
):
    path = write_set(tmp_path / "mnist") / file
    path.write_bytes(harm(path.read_bytes()))
    message = refusal(prepare, "mnist", tmp_path / "out", tmp_path)
    assert message.startswith(f"{path} is damaged or not MNIST's (")
    assert not (tmp_path / "out").exists()
