"""The table of data sets, and preparing one by name."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from dpfedbench import data
from dpfedbench.data import registry
from dpfedbench.data.images import RawImages, load_dataset
from dpfedbench.errors import BenchError


def test_each_row_of_the_table_is_made_by_a_reader_and_each_reader_has_a_row() -> None:
    readers = [
        name
        for info in pkgutil.iter_modules(data.__path__, "dpfedbench.data.")
        for name in getattr(importlib.import_module(info.name), "READERS", ())
    ]
    assert list(registry.DATASETS) == sorted(readers) and len(readers) == 18
    for entry in registry.DATASETS.values():
        assert (
            entry.source
            and entry.licence
            and "-" not in (entry.recorded_sha256, entry.stands_in_for)
        )
        assert entry.recorded_sha256 is None or re.fullmatch(
            "[0-9a-f]{64}", entry.recorded_sha256
        )


def test_a_stand_in_never_bears_the_name_of_what_it_stands_in_for() -> None:
    for entry in registry.DATASETS.values():
        assert entry.stands_in_for != entry.name
        assert entry.stand_in == (entry.stands_in_for is not None)
    assert registry.lookup("glyphs").stands_in_for == "omniglot"


@pytest.mark.parametrize(
    ("name", "near"),
    [("omnigloth", "omniglot"), ("glyph", "glyphs"), ("cifarfs", "cifar-fs")],
)
def test_an_unknown_name_gets_the_nearest(name: str, near: str, tmp_path: Path) -> None:
    with pytest.raises(
        BenchError,
        match=rf"no data set '{name}': did you mean {near}\? choose one of cifar-10, ",
    ):
        registry.prepare(name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_name_near_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no data set 'xyz': choose one of"):
        registry.prepare("xyz", tmp_path)


def test_preparing_hands_on_folders_and_records_the_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw_images
) -> None:
    got: list[object] = []

    def read(local: Path | None, download: Path, progress: object) -> RawImages:
        got.extend([local, download, progress])
        return raw_images(5, 2, 3, 4)

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
    assert got == [tmp_path / "local", tmp_path / "out" / "download", None]
    summary = load_dataset(tmp_path / "out").summary
    assert summary["stand_in"] is True and summary["stands_in_for"] == "omniglot"
    assert (summary["name"], summary["version"], summary["licence"]) == (
        "toy",
        "3",
        "MIT",
    )
    assert summary["matches_record"] is False
