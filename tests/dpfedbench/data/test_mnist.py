"""MNIST and Fashion-MNIST from IDX files, and the real set if it is available."""

import dataclasses
import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import FashionMNIST

from dpfedbench.data import mnist
from dpfedbench.data.mnist import read_fashion_mnist, read_mnist
from dpfedbench.data.records import load_records
from dpfedbench.data.registry import DATASETS, prepare
from dpfedbench.data.sources import Copy, Source

from .conftest import refusal, write_files

COUNTS = {
    "train": (2, 1, 0, 1, 1, 1, 1, 1, 1, 3),
    "test": (1, 0, 0, 0, 0, 0, 0, 0, 0, 2),
}
IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte.gz"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MNIST", "_FASHION_MNIST"):
        facts = dataclasses.replace(getattr(mnist, name), counts=COUNTS)
        monkeypatch.setattr(mnist, name, facts)


def idx(values: np.ndarray, kind: int = 8) -> bytes:
    """Encode an IDX file: two zeros, type, number of axes, lengths of axes, values."""
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, kind, values.ndim, *values.shape)
    return head + values.tobytes()


def split_content(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images whose pixels show record and column, and labels."""
    labels = np.repeat(np.arange(10), COUNTS[split])[::-1].astype(np.uint8)
    columns = np.broadcast_to(np.arange(28) % 20, (28, 28))
    images = np.arange(len(labels))[:, None, None] * 20 + columns
    return images.astype(np.uint8), labels


def write_set(folder: Path, packed: bool = True) -> Path:
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
        (read_fashion_mnist, "fashion-mnist", True),
        (read_fashion_mnist, "FashionMNIST", False),
        (read_fashion_mnist, "FashionMNIST/raw", True),
    ],
)
def test_mnist_is_read_from_its_usual_folders(
    small: None,
    read: Callable[..., object],
    folder: str,
    packed: bool,
    tmp_path: Path,
) -> None:
    write_set(tmp_path / "local" / folder, packed)
    raw = read(tmp_path / "local", tmp_path / "download")
    assert isinstance(raw, mnist.RawRecords)
    for split, images, labels in raw.blocks():
        expected_images, expected_labels = split_content(split)
        assert np.array_equal(images[..., 0], expected_images)
        assert np.array_equal(labels, expected_labels)
    assert raw.train_labels.dtype == np.int64
    assert raw.train_images.shape == (12, 28, 28, 1)
    assert not (tmp_path / "download").exists()


def test_mnist_and_fashion_mnist_have_their_names_and_counts() -> None:
    assert mnist._MNIST.class_names[:2] == ("zero", "one")
    assert mnist._FASHION_MNIST.class_names == tuple(FashionMNIST.classes)
    for facts in (mnist._MNIST, mnist._FASHION_MNIST):
        totals = {split: sum(counts) for split, counts in facts.counts.items()}
        assert totals == {"train": 60_000, "test": 10_000}
        assert {len(counts) for counts in facts.counts.values()} == {10}


def packed_labels(index: int, label: int) -> bytes:
    labels = split_content("train")[1].copy()
    labels[index] = label
    return gzip.compress(idx(labels))


def flip_checksum(content: bytes) -> bytes:
    return content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]


TRAIN_IMAGES, TRAIN_LABELS = split_content("train")


@pytest.mark.parametrize(
    ("file", "harm", "message"),
    [
        (IMAGES, lambda content: content[:-20], "end-of-stream"),
        (IMAGES, lambda content: b"", "not an IDX file"),
        (IMAGES, lambda content: b"<html>not found</html>", "not an IDX file"),
        (IMAGES, flip_checksum, "CRC check failed"),
        (IMAGES, lambda content: content[:30] + bytes(30) + content[60:], "damaged"),
        (
            IMAGES,
            lambda content: gzip.decompress(content)[:-1],
            "9407 bytes of values, not 9408",
        ),
        (
            IMAGES,
            lambda content: gzip.decompress(content)[:9],
            "ends within its header",
        ),
        (
            IMAGES,
            lambda content: idx(TRAIN_IMAGES, kind=13),
            "it holds floats, not unsigned bytes",
        ),
        (
            IMAGES,
            lambda content: idx(TRAIN_IMAGES[:3]),
            "it holds 3×28×28 values, not 12×28×28",
        ),
        (
            IMAGES,
            lambda content: idx(TRAIN_IMAGES.reshape(12, 14, 56)),
            "it holds 12×14×56 values",
        ),
        (
            LABELS,
            lambda content: idx(TRAIN_LABELS[1:]),
            "it holds 11 values, not 12",
        ),
        (LABELS, lambda content: packed_labels(3, 10), "it has the label 10"),
        (
            LABELS,
            lambda content: packed_labels(-1, 2),
            "label 0 occurs 1 times, not 2",
        ),
    ],
)
def test_mnist_file_that_is_damaged_is_refused_and_nothing_is_written(
    small: None,
    tmp_path: Path,
    file: str,
    harm: Callable[[bytes], bytes],
    message: str,
) -> None:
    path = write_set(tmp_path / "mnist") / file
    path.write_bytes(harm(path.read_bytes()))
    text = refusal(prepare, "mnist", tmp_path / "out", tmp_path)
    assert text.startswith(f"{path} is damaged or not MNIST's (")
    assert message in text
    assert "delete it" in text
    assert not (tmp_path / "out").exists()


def test_mnist_file_that_is_missing_is_fetched_from_its_source(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = write_set(tmp_path / "local" / "mnist")
    remote = write_set(tmp_path / "remote")
    (local / IMAGES).unlink()
    calls: list[tuple[str, str, str]] = []

    def fetch(
        source: Source, url: str, md5: str, download_dir: Path, local: Path
    ) -> Copy:
        calls.append((url, md5, source.folders[0]))
        return Copy(source, remote / url.rsplit("/", 1)[1])

    monkeypatch.setattr(Source, "fetch", fetch)
    assert len(read_mnist(local.parent, tmp_path / "download").train_images) == 12
    url = f"https://ossci-datasets.s3.amazonaws.com/mnist/{IMAGES}"
    assert calls == [(url, "f68b3c2dcbeaaa9fbdd348bbdeb94873", "mnist")]
    calls.clear()
    read_fashion_mnist(None, tmp_path / "download")
    assert len(calls) == 4
    assert calls[0][2] == "fashion-mnist"
    assert calls[0][0].startswith("http://fashion-mnist.s3-website")


@pytest.mark.skipif(
    not os.environ.get("DPFEDBENCH_DATA"),
    reason="real Fashion-MNIST is not available: set DPFEDBENCH_DATA to test it",
)
def test_real_fashion_mnist(tmp_path: Path) -> None:
    """A wide garment fills more of the picture than a sandal, which has much ground."""
    prepare("fashion-mnist", tmp_path)
    dataset = load_records(tmp_path)
    assert dataset.images.shape == (70_000, 28, 28, 1)
    sizes = {split: len(records) for split, records in dataset.splits.items()}
    assert sizes == {"train": 60_000, "test": 10_000}
    assert (np.bincount(dataset.labels[dataset.splits["train"]]) == 6000).all()
    assert dataset.summary["stand_in"] is False
    assert dataset.summary["sha256"] == DATASETS["fashion-mnist"].recorded_sha256
    bright = {
        name: (dataset.images[dataset.labels == label] > 50).mean()
        for label, name in enumerate(dataset.class_names)
    }
    assert bright["Pullover"] > 1.5 * bright["Sandal"]
