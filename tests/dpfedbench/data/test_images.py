"""Prepared data sets of classes and of records: saving, checking and loading."""

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset, shuffled_splits
from dpfedbench.data.records import RawRecords, load_records

from .conftest import make_raw_images, refusal

CLASSES = make_raw_images(5, 2, 3, 4)
PIXELS = np.broadcast_to(np.arange(10, 19, dtype=np.uint8), (1, 5, 4, 9)).T
RECORDS = RawRecords(
    train_images=PIXELS[:6],
    train_labels=np.array([2, 0, 1, 0, 2, 2]),
    test_images=PIXELS[6:],
    test_labels=np.array([1, 1, 0]),
    class_names=("cat", "dog", "owl"),
    versions={"maker": "1"},
)
"""Records with pixel values 10, 11, ..., 18."""


@pytest.fixture
def classes(tmp_path):
    CLASSES.save(tmp_path / "small", {"name": "small"})
    return tmp_path / "small"


@pytest.fixture
def records(tmp_path):
    RECORDS.save(tmp_path / "pets", {"name": "pets", "licence": "MIT"})
    return tmp_path / "pets"


def test_images_are_read_back(classes):
    dataset = load_dataset(classes)
    assert np.array_equal(dataset.images, CLASSES.images)
    assert dataset.class_names == CLASSES.class_names
    assert dataset.image_shape == (4, 4, 1)
    assert dataset.summary["split_classes"] == {"train": 5, "validation": 2, "test": 3}
    for split, indices in dataset.splits.items():
        assert [CLASSES.splits[index] for index in indices] == [split] * len(indices)
    assert not dataset.images.flags.writeable


def test_shuffled_splits_are_always_the_same_and_shuffled():
    """Classes in order would put all of the first 1,150 into training. At random about
    815 are there, and 900 or more with probability below 1e-10.
    """
    splits = shuffled_splits(1623, (1150, 50, 423))
    assert splits == shuffled_splits(1623, (1150, 50, 423))
    names = ("train", "validation", "test")
    assert [splits.count(split) for split in names] == [1150, 50, 423]
    assert splits[:1150].count("train") < 900


def test_records_are_ordered_by_split_and_label_and_else_stay_in_order(records):
    dataset = load_records(records)
    assert dataset.images[:, 0, 0, 0].tolist() == [11, 13, 12, 10, 14, 15, 18, 16, 17]
    assert dataset.labels.tolist() == [0, 0, 1, 2, 2, 2, 0, 1, 1]
    assert dataset.labels.dtype == np.int64
    assert dataset.splits["train"].tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.splits["test"].tolist() == [6, 7, 8]
    assert dataset.class_names == ("cat", "dog", "owl")
    assert not dataset.images.flags.writeable


def test_data_set_that_is_damaged_is_refused(classes, records):
    """One bit of the last pixel is flipped, then the summary is deleted."""
    for folder, load in ((classes, load_dataset), (records, load_records)):
        images = np.load(folder / "images.npy")
        images.flat[-1] ^= 1
        np.save(folder / "images.npy", images)
        assert "images.npy" in refusal(load, folder)
        (folder / "summary.json").unlink()
        assert "summary.json" in refusal(load, folder)


def test_images_whose_writing_was_interrupted_are_no_data_set(classes, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfedbench.data.images.write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        make_raw_images(6, 2, 3, 4).save(classes, {"name": "small"})
    assert "summary.json is missing" in refusal(load_dataset, classes)
    assert not list(classes.glob(".*"))


def test_records_and_classes_are_not_taken_for_each_other(classes, records):
    assert "holds classes of images" in refusal(load_records, classes)
    assert "holds labelled records" in refusal(load_dataset, records)
