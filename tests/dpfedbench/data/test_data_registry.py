"""The table of data sets, preparing one by name, and the readers of the drawn ones."""

import dataclasses
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
from dpfedbench.data.images import load_dataset
from dpfedbench.data.records import load_records
from dpfedbench.data.sources import ENVIRONMENT
from drawnsets.digits import draw_digit
from drawnsets.scenes import draw_scenes

from .conftest import make_raw_images, split_counts


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
    assert registry.lookup("glyphs").stands_in_for == "omniglot"


@pytest.mark.skipif(
    not os.environ.get(ENVIRONMENT), reason="real data sets: set DPFEDBENCH_DATA"
)
@pytest.mark.parametrize(
    ("name", "load", "sizes"),
    [
        ("fashion-mnist", load_records, [60_000, 10_000]),
        ("omniglot", load_dataset, [1150, 50, 423]),
    ],
)
def test_real_data_set_has_its_recorded_checksum(tmp_path, name, load, sizes):
    registry.prepare(name, tmp_path)
    dataset = load(tmp_path)
    assert [len(members) for members in dataset.splits.values()] == sizes
    assert dataset.summary["stand_in"] is False
    recorded = registry.DATASETS[name].recorded_sha256
    if PIL.__version__ == "13.0.0":  # omniglot's pixels depend on Pillow's version
        assert dataset.summary["sha256"] == recorded


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
    read.assert_called_once_with(
        tmp_path / "local", tmp_path / "out" / "download", None
    )
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


def test_scenes_are_read_with_their_split():
    reader = dataclasses.replace(
        drawn.READERS["glyph-scenes-32"], draw=lambda letter: draw_scenes(letter, 32, 2)
    )
    raw = reader(None, Path())
    assert raw.images.shape == (100, 2, 32, 32, 3)
    assert split_counts(raw) == [64, 16, 20]
    assert raw.class_names[0] == "U+0041 LATIN CAPITAL LETTER A"
    assert np.array_equal(raw.images[0], draw_scenes("A", 32, 2))


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
