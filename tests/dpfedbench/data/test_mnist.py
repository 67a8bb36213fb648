"""MNIST and Fashion-MNIST from IDX files; damaged copies refused; the real set where it
is at hand.
"""

import dataclasses
import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from dpfedbench.data import mnist
from dpfedbench.data.mnist import read_fashion_mnist, read_mnist
from dpfedbench.data.records import load_records
from dpfedbench.data.registry import DATASETS, prepare
from dpfedbench.data.sources import Copy, Source
from dpfedbench.errors import BenchError

COUNTS = {
    "train": (2, 1, 0, 1, 1, 1, 1, 1, 1, 3),
    "test": (1, 0, 0, 0, 0, 0, 0, 0, 0, 2),
}


@pytest.fixture(autouse=True)
def _small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.node.name:
        for name in ("_MNIST", "_FASHION_MNIST"):
            monkeypatch.setattr(
                mnist, name, dataclasses.replace(getattr(mnist, name), counts=COUNTS)
            )


def _idx(values: np.ndarray, kind: int = 8) -> bytes:
    """As in the release: two zeros, the type, the number of axes, their lengths, the
    values.
    """
    return (
        struct.pack(f">BBBB{values.ndim}I", 0, 0, kind, values.ndim, *values.shape)
        + values.tobytes()
    )


def _content(split: str) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(np.arange(10), COUNTS[split])[::-1].astype(np.uint8)
    # Each pixel says which record it is, and its column.
    images = np.arange(len(labels))[:, None, None] * 20 + np.broadcast_to(
        np.arange(28) % 20, (28, 28)
    )
    return images.astype(np.uint8), labels


def _write(folder: Path, packed: bool = True) -> Path:
    folder.mkdir(parents=True)
    for part, name in mnist.FILES.items():
        split, _, what = part.partition("_")
        values = _content(split)[what == "labels"]
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(_idx(values)))
        else:
            (folder / name).write_bytes(_idx(values))
    return folder


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("read", "place"),
    [
        (read_mnist, "mnist"),
        (read_mnist, "MNIST/raw"),
        (read_mnist, "."),
        (read_fashion_mnist, "fashion-mnist"),
        (read_fashion_mnist, "FashionMNIST"),
        (read_fashion_mnist, "FashionMNIST/raw"),
    ],
)
def test_what_is_written_is_what_is_read(
    read: Callable[..., object], place: str, packed: bool, tmp_path: Path
) -> None:
    _write(tmp_path / "local" / place, packed)
    told: list[tuple[int, int]] = []
    raw = read(
        tmp_path / "local",
        tmp_path / "download",
        lambda _, done, total: told.append((done, total)),
    )
    assert isinstance(raw, mnist.RawRecords)
    for split, images, labels in raw.blocks():
        wanted_images, wanted_labels = _content(split)
        assert np.array_equal(images[..., 0], wanted_images) and np.array_equal(
            labels, wanted_labels
        )
    assert raw.train_labels.dtype == np.int64 and raw.train_images.shape == (
        12,
        28,
        28,
        1,
    )
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert not (tmp_path / "download").exists()


def test_the_two_sets_have_their_own_names() -> None:
    assert mnist._MNIST.class_names[:2] == ("zero", "one")
    from torchvision.datasets import FashionMNIST

    assert mnist._FASHION_MNIST.class_names == tuple(FashionMNIST.classes)


def test_the_real_counts_add_up() -> None:
    for which in (mnist._MNIST, mnist._FASHION_MNIST):
        assert {split: sum(counts) for split, counts in which.counts.items()} == {
            "train": 60_000,
            "test": 10_000,
        }
        assert {len(counts) for counts in which.counts.values()} == {10}


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def _labels(change: Callable[[np.ndarray], np.ndarray]) -> bytes:
    return gzip.compress(_idx(change(_content("train")[1].copy())))


def _with(index: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(labels: np.ndarray) -> np.ndarray:
        labels[index] = value
        return labels

    return change


def _bad_crc(content: bytes) -> bytes:
    return content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]


@pytest.mark.parametrize(
    ("file", "harm", "what"),
    [
        (IMAGES, lambda content: content[:-20], "end-of-stream"),
        (IMAGES, lambda content: b"", "no IDX file"),
        (IMAGES, lambda content: b"<html>not found</html>", "no IDX file"),
        (IMAGES, _bad_crc, "CRC check failed"),
        (IMAGES, lambda content: content[:30] + bytes(30) + content[60:], "damaged"),
        (
            IMAGES,
            lambda content: gzip.decompress(content)[:-1],
            "9407 bytes of values, not 9408",
        ),
        (IMAGES, lambda content: gzip.decompress(content)[:9], "ends in its head"),
        (
            IMAGES,
            lambda content: _idx(_content("train")[0], kind=13),
            "it holds floats, not unsigned bytes",
        ),
        (
            IMAGES,
            lambda content: _idx(_content("test")[0]),
            "it holds 3×28×28 values, not 12×28×28",
        ),
        (
            IMAGES,
            lambda content: _idx(_content("train")[1]),
            "it holds 12 values, not 12×28×28",
        ),
        (
            IMAGES,
            lambda content: _idx(_content("train")[0][:, :20, :20]),
            "it holds 12×20×20 values",
        ),
        (
            LABELS,
            lambda content: _labels(lambda labels: labels[1:]),
            "it holds 11 values, not 12",
        ),
        (LABELS, lambda content: _labels(_with(3, 10)), "it has the label 10"),
        (
            LABELS,
            lambda content: _labels(_with(-1, 2)),
            "label 0 occurs 1 times, not 2",
        ),
    ],
)
def test_a_damaged_or_wrong_file_is_named_with_what_to_do(
    tmp_path: Path, file: str, harm: Callable[[bytes], bytes], what: str
) -> None:
    path = _write(tmp_path / "mnist") / file
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(BenchError) as caught:
        prepare("mnist", tmp_path / "out", tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path} is damaged or not MNIST's (")
    assert what in message and "delete it" in message and "\n" not in message
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_fetched_from_where_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, other = _write(tmp_path / "local" / "mnist"), _write(tmp_path / "other")
    (local / IMAGES).unlink()
    asked: list[tuple[str, str, str]] = []

    def fetch(
        source: Source, url: str, md5: str, download_dir: Path, local: Path
    ) -> Copy:
        asked.append((url, md5, source.folders[0]))
        return Copy(source, other / url.rsplit("/", 1)[1])

    monkeypatch.setattr(Source, "fetch", fetch)
    assert len(read_mnist(local.parent, tmp_path / "download").train_images) == 12
    assert asked == [
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/" + IMAGES,
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "mnist",
        )
    ]
    read_fashion_mnist(None, tmp_path / "download")
    assert (
        len(asked) == 5
        and asked[1][0].startswith("http://fashion-mnist.s3-website")
        and asked[1][2] == "fashion-mnist"
    )


def test_no_copy_and_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(
        BenchError,
        match=(
            r"cannot download train-images.* get it from http.* put it in"
            r" .*fashion-mnist"
        ),
    ):
        read_fashion_mnist(tmp_path, tmp_path / "download")


@pytest.mark.skipif(
    not os.environ.get("DPFEDBENCH_DATA"),
    reason="real Fashion-MNIST is not at hand: set DPFEDBENCH_DATA to test it",
)
def test_the_real_set(tmp_path: Path) -> None:
    prepare("fashion-mnist", tmp_path)
    dataset = load_records(tmp_path)
    assert dataset.images.shape == (70_000, 28, 28, 1)
    assert {split: len(members) for split, members in dataset.splits.items()} == {
        "train": 60_000,
        "test": 10_000,
    }
    assert (np.bincount(dataset.labels[dataset.splits["train"]]) == 6000).all()
    assert dataset.summary["stand_in"] is False
    assert dataset.summary["sha256"] == DATASETS["fashion-mnist"].recorded_sha256
    # A wide garment fills more of the picture than a sandal, which is mostly ground.
    bright = {
        name: (dataset.images[dataset.labels == label] > 50).mean()
        for label, name in enumerate(dataset.class_names)
    }
    assert bright["Pullover"] > 1.5 * bright["Sandal"]
