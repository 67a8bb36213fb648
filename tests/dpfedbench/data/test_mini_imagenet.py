"""mini-ImageNet from pickles or folders of images, on tiny synthetic copies."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfedbench.data import mini_imagenet
from dpfedbench.data.mini_imagenet import SPLIT_CLASSES

from .conftest import refusal

CLASSES = {
    "train": ("n00", "n01", "n02"),
    "validation": ("n03",),
    "test": ("n04", "n05"),
}
EXPECTED = np.arange(6)[:, None] * 10 + np.arange(4)
"""Value of each image, by class and example."""


def write_pickles(folder, validation="val"):
    """Write four images a class, in another order than that of the classes."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"train": "train", "validation": validation, "test": "test"}
    for split, names in CLASSES.items():
        images = np.zeros((len(names) * 4, 84, 84, 3), dtype=np.uint8)
        rows = {}
        for index, name in enumerate(names):
            rows[name] = [example * len(names) + index for example in range(4)]
            images[rows[name]] = EXPECTED[int(name[1:]), :, None, None, None]
        content = {"image_data": images, "class_dict": dict(reversed(rows.items()))}
        path = folder / f"mini-imagenet-cache-{files[split]}.pkl"
        path.write_bytes(pickle.dumps(content))


def write_folders(folder, *splits):
    for name in (name for split in splits for name in CLASSES[split]):
        (folder / name).mkdir(parents=True)
        for example in range(4):
            value = int(EXPECTED[int(name[1:]), example])
            picture = Image.new("RGB", (100, 90), (value, value, value))
            picture.save(folder / name / f"{example}.png")


@pytest.fixture
def read(monkeypatch):
    """Return a function that reads a copy of a few classes with four images each."""
    monkeypatch.setattr(mini_imagenet, "SPLIT_CLASSES", CLASSES)
    monkeypatch.setattr(mini_imagenet, "EXAMPLES", 4)
    return lambda local: mini_imagenet.read_mini_imagenet(local, Path("unused"))


def check_images(raw):
    assert raw.images.shape == (6, 4, 84, 84, 3)
    assert (raw.images == EXPECTED[..., None, None, None]).all()
    assert raw.class_names == ("n00", "n01", "n02", "n03", "n04", "n05")
    assert raw.splits == ("train", "train", "train", "validation", "test", "test")


def test_mini_imagenet_split_is_of_64_16_and_20_classes_that_differ():
    """The house finch is the first of Ravi and Larochelle's training classes, the goose
    one for validation and the golden retriever one for testing.
    """
    sizes = {split: len(names) for split, names in SPLIT_CLASSES.items()}
    assert sizes == {"train": 64, "validation": 16, "test": 20}
    assert len({name for names in SPLIT_CLASSES.values() for name in names}) == 100
    assert "n01532829" in SPLIT_CLASSES["train"]
    assert "n01855672" in SPLIT_CLASSES["validation"]
    assert "n02099601" in SPLIT_CLASSES["test"]


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_mini_imagenet_is_read_from_pickles(tmp_path, read, validation):
    write_pickles(tmp_path / "mini-imagenet", validation)
    check_images(read(tmp_path))


def test_mini_imagenet_is_read_from_one_folder_of_classes(tmp_path, read):
    write_folders(tmp_path / "mini-imagenet", *CLASSES)
    check_images(read(tmp_path))


def test_mini_imagenet_is_read_from_folders_of_splits(tmp_path, read):
    for split in CLASSES:
        write_folders(tmp_path / split, split)
    check_images(read(tmp_path))
    (tmp_path / "test" / "n05" / "3.png").unlink()
    assert "not every class has 4 images: n05 has 3" in refusal(read, tmp_path)
