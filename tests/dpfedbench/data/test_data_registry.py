"""The table of data sets, and preparing one by name."""

import importlib
import os
import pkgutil

import PIL
import pytest

from dpfedbench import data
from dpfedbench.data import registry
from dpfedbench.data.images import load_dataset
from dpfedbench.data.records import load_records
from dpfedbench.data.sources import ENVIRONMENT

from .conftest import make_raw_images


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
        ("fashion-mnist", load_records, {"train": 60_000, "test": 10_000}),
        ("omniglot", load_dataset, {"train": 1150, "validation": 50, "test": 423}),
    ],
)
def test_real_data_set_has_its_recorded_checksum(tmp_path, name, load, sizes):
    registry.prepare(name, tmp_path)
    dataset = load(tmp_path)
    assert {split: len(members) for split, members in dataset.splits.items()} == sizes
    assert dataset.summary["stand_in"] is False
    recorded = registry.DATASETS[name].recorded_sha256
    if PIL.__version__ == "13.0.0":  # omniglot's pixels depend on Pillow's version
        assert dataset.summary["sha256"] == recorded


def test_prepare_passes_folders_to_the_reader_and_records_the_facts(
    tmp_path, monkeypatch
):
    calls = []

    def read(*arguments):
        calls.append(arguments)
        return make_raw_images(5, 2, 3, 4)

    facts = {"name": "toy", "version": "3", "source": "here", "licence": "MIT"}
    entry = registry.DatasetEntry(
        **facts, read=read, stands_in_for="omniglot", recorded_sha256="0" * 64
    )
    monkeypatch.setitem(registry.DATASETS, "toy", entry)
    (tmp_path / "local").mkdir()
    monkeypatch.setenv("DPFEDBENCH_DATA", str(tmp_path / "local"))
    registry.prepare("toy", tmp_path / "out")
    assert calls == [(tmp_path / "local", tmp_path / "out" / "download", None)]
    summary = load_dataset(tmp_path / "out").summary
    stand_in = {"stand_in": True, "stands_in_for": "omniglot"}
    expected = facts | stand_in | {"matches_record": False}
    assert expected.items() <= summary.items()
