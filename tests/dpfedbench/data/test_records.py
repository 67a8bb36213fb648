"""Prepared data sets of records: saving, checking and loading."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset
from dpfedbench.data.records import RawRecords, load_records

from .conftest import make_raw_images, refusal
from .test_images import (
    cut_last_bytes,
    flip_last_byte,
    remove_last_line,
    replace_text,
)


def raw_records(**change: Any) -> RawRecords:
    """Return six training records with pixel values 10, 11, ..., and three test records
    with 20, 21, 22.
    """

    def images(first: int, count: int) -> np.ndarray:
        values = np.arange(first, first + count, dtype=np.uint8)
        return np.broadcast_to(values[:, None, None, None], (count, 4, 5, 1))

    arguments: dict[str, Any] = {
        "train_images": images(10, 6),
        "train_labels": np.array([2, 0, 1, 0, 2, 2]),
        "test_images": images(20, 3),
        "test_labels": np.array([1, 1, 0]),
        "class_names": ("cat", "dog", "owl"),
        "versions": {"maker": "1"},
    }
    return RawRecords(**(arguments | change))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    raw_records().save(tmp_path / "pets", {"name": "pets", "licence": "MIT"})
    return tmp_path / "pets"


def test_records_are_ordered_by_split_and_label_and_else_stay_in_order(
    folder: Path,
) -> None:
    dataset = load_records(folder)
    assert dataset.images[:, 0, 0, 0].tolist() == [11, 13, 12, 10, 14, 15, 22, 20, 21]
    assert dataset.labels.tolist() == [0, 0, 1, 2, 2, 2, 0, 1, 1]
    assert dataset.labels.dtype == np.int64
    assert dataset.splits["train"].tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.splits["test"].tolist() == [6, 7, 8]
    assert dataset.class_names == ("cat", "dog", "owl")
    assert dataset.image_shape == (4, 5, 1)
    assert not dataset.images.flags.writeable


def test_records_summary_describes_them(folder: Path, tmp_path: Path) -> None:
    table = (folder / "classes.csv").read_text()
    assert table == "index,name,train,test\n0,cat,2,1\n1,dog,1,2\n2,owl,3,0\n"
    summary = load_records(folder).summary
    expected = {
        "kind": "records",
        "licence": "MIT",
        "records": 9,
        "split_records": {"train": 6, "test": 3},
        "made_with": {"maker": "1"},
        "matches_record": None,
    }
    assert expected.items() <= summary.items()
    assert summary["mean_pixel"] == pytest.approx((75 + 63) / 9, abs=1e-4)
    facts = {"name": "pets", "recorded_sha256": summary["sha256"]}
    raw_records().save(tmp_path / "again", facts)
    assert load_records(tmp_path / "again").summary["matches_record"] is True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_images": np.zeros((6, 4, 5), np.uint8)}, "train images must be uint8"),
        ({"test_images": np.zeros((3, 4, 5, 1))}, "test images must be uint8"),
        ({"train_labels": np.zeros(5, np.int64)}, "train labels must be int64"),
        ({"test_labels": np.zeros(3, np.int32)}, "test labels must be int64"),
        ({"test_labels": np.array([0, 1, 3])}, "must be in 0 ... 2"),
        ({"test_images": np.zeros((3, 5, 5, 1), np.uint8)}, "two sizes"),
        ({"class_names": ("cat", "dog", "cat")}, "one unique name"),
    ],
)
def test_records_that_do_not_fit_together_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        raw_records(**change)


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("images.npy", flip_last_byte),
        ("images.npy", cut_last_bytes),
        ("images.npy", lambda path: path.write_text("not an array")),
        ("classes.csv", remove_last_line),
        ("classes.csv", replace_text("0,cat,2,1", "0,cat,1,2")),
        ("classes.csv", replace_text("0,cat,2,1", "0,cat,2")),
        ("classes.csv", replace_text("train", "trian")),
        ("classes.csv", replace_text("cat", "")),
    ],
)
def test_records_that_are_damaged_are_refused(
    folder: Path, file: str, harm: Callable[[Path], object]
) -> None:
    harm(folder / file)
    message = refusal(load_records, folder)
    assert f"{file} is damaged" in message
    assert f"delete {folder} and run" in message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"class_records"', '"other"'),
        ('"test": [', '"other": ['),
        ("      3\n", "      4\n"),
    ],
)
def test_records_with_a_summary_without_counts_are_refused(
    folder: Path, old: str, new: str
) -> None:
    replace_text(old, new)(folder / "summary.json")
    assert "does not describe a data set" in refusal(load_records, folder)


def test_records_and_classes_are_not_taken_for_each_other(
    folder: Path, tmp_path: Path
) -> None:
    """Data sets of classes that were prepared before the key `kind` are read too."""
    small = tmp_path / "small"
    make_raw_images(5, 2, 3, 4).save(small, {"name": "small"})
    assert load_dataset(small).summary["kind"] == "classes"
    for _ in range(2):
        assert "is split by class, and this method needs" in refusal(
            load_records, small
        )
        replace_text('  "kind": "classes",\n', "")(small / "summary.json")
    assert "kind" not in load_dataset(small).summary
    assert "is split by record, and this method needs" in refusal(load_dataset, folder)
