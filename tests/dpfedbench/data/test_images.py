"""Prepared data sets of classes: saving, checking and loading."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset, shuffled_splits

from .conftest import make_raw_images, refusal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    raw = make_raw_images(5, 2, 3, 4)
    raw.save(tmp_path / "small", {"name": "small", "licence": "MIT"})
    return tmp_path / "small"


def test_images_are_read_back(folder: Path) -> None:
    raw = make_raw_images(5, 2, 3, 4)
    dataset = load_dataset(folder)
    assert np.array_equal(dataset.images, raw.images)
    assert dataset.class_names == raw.class_names
    assert dataset.image_shape == (4, 4, 1)
    assert dataset.summary["split_classes"] == {"train": 5, "validation": 2, "test": 3}
    for split, classes in dataset.splits.items():
        assert [raw.splits[index] for index in classes] == [split] * len(classes)
    assert not dataset.images.flags.writeable
    files = ["classes.csv", "images.npy", "summary.json"]
    assert sorted(file.name for file in folder.iterdir()) == files


def test_shuffled_splits_are_always_the_same_and_shuffled() -> None:
    """Classes in order would put all of the first 1,150 into training. At random about
    815 are there, and 900 or more with probability below 1e-10.
    """
    splits = shuffled_splits(1623, (1150, 50, 423))
    assert splits == shuffled_splits(1623, (1150, 50, 423))
    names = ("train", "validation", "test")
    assert [splits.count(split) for split in names] == [1150, 50, 423]
    assert splits[:1150].count("train") < 900


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_last_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def replace_text(old: str, new: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(path.read_text().replace(old, new))


def remove_last_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(True)[:-1]))


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("images.npy", flip_last_byte),
        ("images.npy", cut_last_bytes),
        ("images.npy", lambda path: path.write_bytes(b"")),
        ("images.npy", lambda path: path.write_text("not an array")),
        ("classes.csv", lambda path: path.write_text("index,name\n0,a\n")),
        ("classes.csv", replace_text("train", "trian")),
        ("classes.csv", remove_last_line),
    ],
)
def test_images_that_are_damaged_are_refused(
    folder: Path, file: str, harm: Callable[[Path], object]
) -> None:
    harm(folder / file)
    message = refusal(load_dataset, folder)
    assert f"{file} is damaged" in message
    assert f"delete {folder} and run" in message


@pytest.mark.parametrize("file", ["images.npy", "classes.csv", "summary.json"])
def test_images_with_a_missing_file_are_refused(folder: Path, file: str) -> None:
    (folder / file).unlink()
    assert f"{file} is missing: " in refusal(load_dataset, folder)


def test_images_with_the_summary_of_something_else_are_refused(folder: Path) -> None:
    (folder / "summary.json").write_text(json.dumps({"name": "small"}))
    assert "does not describe a data set" in refusal(load_dataset, folder)


def test_images_whose_writing_was_interrupted_are_no_data_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfedbench.data.images.write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        make_raw_images(6, 2, 3, 4).save(folder, {"name": "small"})
    assert "summary.json is missing" in refusal(load_dataset, folder)
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]
