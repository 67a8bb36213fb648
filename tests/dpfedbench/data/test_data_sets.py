"""Prepared data sets: saving, checking and loading; their table, and the drawn ones."""

import importlib
import os
import pkgutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import PIL
import pytest

from dpfedbench import data
from dpfedbench.data import drawn, registry
from dpfedbench.data.images import load_dataset, shuffled_splits
from dpfedbench.data.records import RawRecords, load_records
from dpfedbench.data.sources import ENVIRONMENT
from drawnsets.digits import draw_digit

from .conftest import make_raw_images, refusal, split_counts

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
    splits = {split: indices.tolist() for split, indices in dataset.splits.items()}
    assert splits == {"train": [0, 1, 2, 3, 4, 5], "test": [6, 7, 8]}
    assert dataset.class_names == ("cat", "dog", "owl")
    assert not dataset.images.flags.writeable


def test_data_set_that_is_damaged_or_of_another_kind_is_refused(classes, records):
    """One bit of the last pixel is flipped, then the summary is deleted."""
    assert "holds classes of images" in refusal(load_records, classes)
    assert "holds labelled records" in refusal(load_dataset, records)
    for folder, load in ((classes, load_dataset), (records, load_records)):
        images = np.load(folder / "images.npy")
        images.flat[-1] ^= 1
        np.save(folder / "images.npy", images)
        assert "images.npy" in refusal(load, folder)
        (folder / "summary.json").unlink()
        assert "summary.json" in refusal(load, folder)


def test_images_whose_writing_was_interrupted_are_no_data_set(classes, monkeypatch):
    stop = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("dpfedbench.data.images.write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        make_raw_images(6, 2, 3, 4).save(classes, {"name": "small"})
    assert "summary.json is missing" in refusal(load_dataset, classes)
    assert not list(classes.glob(".*"))


# The table, and drawn sets


def test_registry_has_a_row_for_each_reader():
    readers = [
        name
        for info in pkgutil.iter_modules(data.__path__, "dpfedbench.data.")
        for name in getattr(importlib.import_module(info.name), "READERS", ())
    ]
    assert list(registry.DATASETS) == sorted(readers)
    for entry in registry.DATASETS.values():
        assert entry.licence
        assert entry.stands_in_for != entry.name
    assert registry.DATASETS["glyphs"].stands_in_for == "omniglot"


@pytest.mark.skipif(
    not os.environ.get(ENVIRONMENT), reason="real data sets: set DPFEDBENCH_DATA"
)
# Reading 32,460 pictures takes long. Faster: test_published_sets.py, of small archives
# in the published format.
@pytest.mark.parametrize(
    "name", ["fashion-mnist", pytest.param("omniglot", marks=pytest.mark.slow)]
)
def test_real_data_set_has_its_recorded_checksum(tmp_path, name):
    registry.prepare(name, tmp_path)
    load = load_dataset if name == "omniglot" else load_records
    summary = load(tmp_path).summary
    assert summary["stand_in"] is False
    # The pixels of omniglot depend on Pillow's version.
    if name != "omniglot" or PIL.__version__ == "13.0.0":
        assert summary["sha256"] == registry.DATASETS[name].recorded_sha256


def test_prepare_passes_folders_to_the_reader_and_records_the_facts(
    tmp_path, monkeypatch
):
    read = Mock(return_value=make_raw_images(5, 2, 3, 4))
    facts = {"name": "toy", "version": "3", "source": "here", "licence": "MIT"}
    facts["stands_in_for"] = "omniglot"
    entry = registry.DatasetEntry(**facts, read=read, recorded_sha256="0" * 64)
    monkeypatch.setitem(registry.DATASETS, "toy", entry)
    (tmp_path / "local").mkdir()
    monkeypatch.setenv("DPFEDBENCH_DATA", str(tmp_path / "local"))
    registry.prepare("toy", tmp_path / "out")
    read.assert_called_once_with(tmp_path / "local", tmp_path / "out" / "download")
    expected = facts | {"stand_in": True, "matches_record": False}
    assert expected.items() <= load_dataset(tmp_path / "out").summary.items()


def test_glyphs_of_a_class_are_those_of_its_letter(monkeypatch):
    """The drawings here are the letter's code."""

    def draw_code(letter):
        return np.full((20, 1, 3), list(ord(letter).to_bytes(3, "big")), np.uint8)

    monkeypatch.setattr(drawn, "draw_letter", draw_code)
    raw = drawn.READERS["glyphs"](None, Path())
    codes = raw.images[:, :, 0, :, 0].astype(int) @ [1 << 16, 1 << 8, 1]
    assert (codes == codes[:, :1]).all()
    assert codes.shape == (1623, 20)
    names = [name.split()[0] for name in raw.class_names]
    assert names == [f"U+{code:04X}" for code in codes[:, 0]]
    assert len(set(names)) == 1623
    assert split_counts(raw) == [1150, 50, 423]
    scenes = drawn.READERS["glyph-scenes-32"]
    assert scenes.characters == "scene_letters"
    assert scenes.split_counts == (64, 16, 20)


def test_digits_are_balanced_and_have_the_shape_of_fashion_mnist(monkeypatch):
    assert drawn.DIGIT_COUNTS == {"train": 6000, "test": 1000}
    monkeypatch.setattr(drawn, "DIGIT_COUNTS", {"train": 6, "test": 2})
    raw = drawn.read_digits(None, Path("unused"))
    for split, images, labels in raw.blocks():
        count = drawn.DIGIT_COUNTS[split]
        assert images.shape == (10 * count, 28, 28, 1)
        assert np.bincount(labels).tolist() == [count] * 10
        for digit in (0, 9):
            pixels = images[labels == digit, ..., 0]
            assert np.array_equal(pixels, draw_digit(digit, split, count))
