"""The table of data sets, and preparing one by name."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from dpfedbench import data
from dpfedbench.data import registry
from dpfedbench.data.images import load_dataset

from .conftest import make_raw_images, refusal


def test_registry_has_a_row_for_each_reader() -> None:
    readers = [
        name
        for info in pkgutil.iter_modules(data.__path__, "dpfedbench.data.")
        for name in getattr(importlib.import_module(info.name), "READERS", ())
    ]
    assert list(registry.DATASETS) == sorted(readers)
    assert len(readers) == 18
    for entry in registry.DATASETS.values():
        assert entry.source
        assert entry.licence
        digest = entry.recorded_sha256
        assert digest is None or re.fullmatch("[0-9a-f]{64}", digest)


def test_stand_in_never_has_the_name_of_the_data_that_it_replaces() -> None:
    for entry in registry.DATASETS.values():
        assert entry.stands_in_for not in (entry.name, "-")
        assert entry.stand_in == (entry.stands_in_for is not None)
    assert registry.lookup("glyphs").stands_in_for == "omniglot"


def test_unknown_data_set_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    message = refusal(registry.prepare, "omnigloth", tmp_path / "out")
    assert "did you mean omniglot? choose one of cifar-10, " in message
    assert "did you mean" not in refusal(registry.prepare, "xyz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_prepare_passes_folders_to_the_reader_and_records_the_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def read(*arguments: object) -> object:
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
