"""CIFAR-10 and CIFAR-FS: tiny copies in each form, and bad copies."""

import hashlib
import pickle

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

from dpfedbench.data import cifar
from dpfedbench.data.cifar import (
    CLASSES,
    SPLIT_CLASSES,
    read_cifar_10,
    read_cifar_10_jpeg,
    read_cifar_fs,
)

from .conftest import refusal, split_counts, write_files, write_tar

EXAMPLES = {"train": 5, "test": 2}


@pytest.fixture(autouse=True)
def few_examples(monkeypatch):
    monkeypatch.setattr(cifar, "EXAMPLES", EXAMPLES)


# CIFAR-100's fine labels are in the order of their names (Krizhevsky 2009).
NAMES = sorted(name for names in SPLIT_CLASSES.values() for name in names)


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def publish(monkeypatch):
    """Return a function that writes a release, whose checksums torchvision expects.

    It returns the archive, or with `unpacked` the folder.
    """

    def write(folder, kind, contents, unpacked):
        files = {
            name: pickle.dumps(content, protocol=2)
            for name, content in contents.items()
        }
        for listed in ("train_list", "test_list"):
            pairs = [[name, md5(files[name])] for name, _ in getattr(kind, listed)]
            monkeypatch.setattr(kind, listed, pairs)
        meta = {**kind.meta, "md5": md5(files[kind.meta["filename"]])}
        monkeypatch.setattr(kind, "meta", meta)
        if unpacked:
            return write_files(folder / kind.base_folder, files)
        members = {f"{kind.base_folder}/{name}": files[name] for name in files}
        path = write_tar(folder / kind.filename, members)
        monkeypatch.setattr(kind, "tgz_md5", md5(path.read_bytes()))
        return path

    return write


def coloured(labels, green):
    """Return images [n, 3 x 32 x 32]: red is the label, blue the row."""
    images = np.zeros((len(labels), 3, 32, 32), np.uint8)
    images[:, 0] = np.reshape(labels, (-1, 1, 1))
    images[:, 1] = np.reshape(green, (-1, 1, 1))
    images[:, 2] = np.arange(32)[:, None]
    return images.reshape(len(labels), -1)


def batches():
    """Return the content of CIFAR-10's files. Green is the number of the file."""
    files = {"batches.meta": {"label_names": list(CLASSES)}}
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    for number, name in enumerate(names):
        labels = np.repeat(np.arange(9, -1, -1), 2 if name == "test_batch" else 1)
        files[name] = {"data": coloured(labels, number), "labels": labels.tolist()}
    return files


@pytest.mark.parametrize("unpacked", [False, True], ids=["archive", "folder"])
def test_cifar_10_is_read_from_archive_and_folder(tmp_path, publish, unpacked):
    publish(tmp_path / "cifar-10", CIFAR10, batches(), unpacked)
    raw = read_cifar_10(tmp_path, tmp_path / "download")
    assert raw.class_names == CLASSES
    assert raw.train_images.shape == (50, 32, 32, 3)
    assert (raw.train_images[..., 0] == raw.train_labels[:, None, None]).all()
    assert (raw.train_images[:, 0, 0, 1] == np.repeat(np.arange(5), 10)).all()
    assert (raw.test_images[..., 2] == np.arange(32)[:, None]).all()
    assert (raw.test_labels == np.repeat(np.arange(9, -1, -1), 2)).all()
    assert not (tmp_path / "download").exists()


def fine_labels():
    """Return CIFAR-100's files with two training images and one test image a class.

    Green is 100 + example.
    """
    files = {"meta": {"fine_label_names": NAMES}}
    for part, examples in (("train", (0, 1)), ("test", (2,))):
        labels = np.tile(np.arange(99, -1, -1), len(examples))
        data = coloured(labels, 100 + np.repeat(examples, 100))
        files[part] = {"data": data, "fine_labels": labels.tolist()}
    return files


def test_cifar_fs_split_has_all_hundred_classes_once():
    sizes = {split: len(names) for split, names in SPLIT_CLASSES.items()}
    assert sizes == {"train": 64, "validation": 16, "test": 20}
    assert len(set(NAMES)) == 100


@pytest.mark.parametrize("unpacked", [False, True], ids=["archive", "folder"])
def test_cifar_fs_images_go_to_their_class_in_order(tmp_path, publish, unpacked):
    publish(tmp_path / "cifar-100", CIFAR100, fine_labels(), unpacked)
    raw = read_cifar_fs(tmp_path, tmp_path / "download")
    assert raw.images.shape == (100, 3, 32, 32, 3)
    assert raw.class_names == tuple(NAMES)
    assert (raw.images[..., 0] == np.arange(100)[:, None, None, None]).all()
    assert (raw.images[..., 1] == 100 + np.arange(3)[:, None, None]).all()
    assert (raw.images[..., 2] == np.arange(32)[:, None]).all()
    assert split_counts(raw) == [64, 16, 20]
    assert raw.splits[NAMES.index("worm")] == "test"


def test_cifar_file_or_archive_with_another_checksum_is_refused(tmp_path, publish):
    path = publish(tmp_path, CIFAR10, batches(), unpacked=False)
    path.write_bytes(path.read_bytes()[:-1])
    message = refusal(read_cifar_10, tmp_path, tmp_path)
    assert "its checksum is not the published one" in message
    folder = publish(tmp_path, CIFAR100, fine_labels(), unpacked=True)
    (folder / "test").write_bytes(b"another")
    message = refusal(read_cifar_fs, tmp_path, tmp_path)
    assert message.startswith(f"{folder} is damaged or not CIFAR")


def draw_pictures(folder):
    """Draw `train/CLASS/N.jpg` and `test/CLASS/N.jpg` in grey of value 20 x label."""
    for split, count in EXAMPLES.items():
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            picture = Image.new("RGB", (32, 32), (20 * label,) * 3)
            for number in range(count):
                picture.save(folder / split / name / f"{number:04}.jpg")
    return folder


def test_cifar_10_pictures_are_read(tmp_path):
    draw_pictures(tmp_path / "cifar-10" / "cifar-10-images")
    raw = read_cifar_10_jpeg(tmp_path, tmp_path / "download")
    assert raw.train_images.shape == (50, 32, 32, 3)
    assert raw.test_images.shape == (20, 32, 32, 3)
    expected = 20.0 * raw.train_labels[:, None, None, None]
    assert np.abs(raw.train_images - expected).max() <= 2
