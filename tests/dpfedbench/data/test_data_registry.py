"""The table of data sets, and preparing one by name."""

import importlib
import pkgutil
import re

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
        assert entry.source
        assert entry.licence
        digest = entry.recorded_sha256
        assert digest is None or re.fullmatch("[0-9a-f]{64}", digest)
        # A stand-in never has the name of the data that it replaces.
        assert entry.stands_in_for not in (entry.name, "-")
        assert entry.stand_in == (entry.stands_in_for is not None)
    assert registry.lookup("glyphs").stands_in_for == "omniglot"


def test_prepare_passes_folders_to_the_reader_and_records_the_facts(
    tmp_path, monkeypatch
):
    calls = []

    def read(*arguments):
        calls.append(arguments)
        return make_raw_images(5, 2, 3, 4)

    entry = registry.DatasetEntry(
        name="toy",
        version="3",
        source="here",
        licence="MIT",
        read=read,
        stands_in_for="omniglot",
        recorded_sha256="0" * 64,
    )
    monkeypatch.setitem(registry.DATASETS, "toy", entry)
    (tmp_path / "local").mkdir()
    monkeypatch.setenv("DPFEDBENCH_DATA", str(tmp_path / "local"))
    registry.prepare("toy", tmp_path / "out")
    assert calls == [(tmp_path / "local", tmp_path / "out" / "download", None)]
    summary = load_dataset(tmp_path / "out").summary
    expected = {
        "name": "toy",
        "version": "3",
        "licence": "MIT",
        "stand_in": True,
        "stands_in_for": "omniglot",
        "matches_record": False,
    }
    assert expected.items() <= summary.items()
