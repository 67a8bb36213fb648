"""The table of data sets, and preparing one by name."""

import importlib
import pkgutil

from dpfedbench import data
from dpfedbench.data import registry
from dpfedbench.data.images import load_dataset

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
