"""Saving, checking and loading of prepared data sets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset, shuffled_splits
from dpfedbench.errors import BenchError


@pytest.fixture
def folder(tmp_path: Path, raw_images: Any) -> Path:
    raw_images(5, 2, 3, 4).save(tmp_path / "small", {"name": "small", "licence": "MIT"})
    return tmp_path / "small"


def test_what_is_saved_is_what_is_loaded(folder: Path, raw_images: Any) -> None:
    raw = raw_images(5, 2, 3, 4)
    dataset = load_dataset(folder)
    assert np.array_equal(dataset.images, raw.images)
    assert dataset.class_names == raw.class_names
    assert dataset.image_shape == (4, 4, 1)
    assert dataset.summary["split_classes"] == {"train": 5, "validation": 2, "test": 3}
    for split, members in dataset.splits.items():
        assert [raw.splits[index] for index in members] == [split] * len(members)
    assert not dataset.images.flags.writeable


def test_nothing_but_the_three_files_is_left(folder: Path) -> None:
    assert sorted(file.name for file in folder.iterdir()) == [
        "classes.csv",
        "images.npy",
        "summary.json",
    ]


def test_splits_are_disjoint_whole_and_always_the_same() -> None:
    first, second = (
        shuffled_splits(1623, (1150, 50, 423)),
        shuffled_splits(1623, (1150, 50, 423)),
    )
    assert first == second
    assert [first.count(split) for split in ("train", "validation", "test")] == [
        1150,
        50,
        423,
    ]
    # Were classes dealt in order, the first 1,150 would be the training ones; at random
    # about 815 of them are, and 900 or more with odds below 1e-10.
    assert first[:1150].count("train") < 900


@pytest.mark.parametrize("missing", ["images.npy", "classes.csv", "summary.json"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(
        BenchError, match=rf"{missing} is missing: .*run the workflow again"
    ):
        load_dataset(folder)


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("images.npy", _flip_last_byte),
        ("images.npy", lambda path: path.write_bytes(path.read_bytes()[:-20])),
        ("images.npy", lambda path: path.write_bytes(b"")),
        ("images.npy", lambda path: path.write_text("no array")),
        ("classes.csv", lambda path: path.write_text("index,name\n0,a\n")),
        (
            "classes.csv",
            lambda path: path.write_text(path.read_text().replace("train", "trian")),
        ),
        (
            "classes.csv",
            lambda path: path.write_text(
                "".join(path.read_text().splitlines(True)[:-1])
            ),
        ),
    ],
)
def test_a_damaged_file_is_named_and_to_be_deleted(
    folder: Path, file: str, harm: Any
) -> None:
    harm(folder / file)
    with pytest.raises(
        BenchError, match=rf"{file} is damaged .*delete {folder} and run"
    ) as caught:
        load_dataset(folder)
    assert "\n" not in str(caught.value)


def test_a_foreign_summary_is_refused(folder: Path) -> None:
    (folder / "summary.json").write_text(json.dumps({"name": "small"}))
    with pytest.raises(BenchError, match="does not describe a data set"):
        load_dataset(folder)


def test_writing_cut_short_leaves_no_data_set(
    folder: Path, raw_images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfedbench.data.images.write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        raw_images(6, 2, 3, 4).save(folder, {"name": "small"})
    with pytest.raises(BenchError, match=r"summary\.json is missing"):
        load_dataset(folder)
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, raw_images: Any
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        BenchError,
        match=r"cannot write .*summary.json: a file lies where a folder belongs",
    ):
        raw_images(5, 2, 3, 4).save(tmp_path / "file" / "small", {"name": "small"})
