"""Saving, checking and loading of data sets of records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfedbench.data import registry
from dpfedbench.data.images import load_dataset
from dpfedbench.data.records import RawRecords, load_records
from dpfedbench.errors import BenchError

TRAIN, TEST = [2, 0, 1, 0, 2, 2], [1, 1, 0]


def _raw(**change: Any) -> RawRecords:
    """Six training records with pixel values 10, 11, ..., three test records with 20,
    21, 22.
    """

    def images(first: int, count: int) -> np.ndarray:
        values = np.arange(first, first + count, dtype=np.uint8)
        return np.broadcast_to(values[:, None, None, None], (count, 4, 5, 1))

    arguments: dict[str, Any] = {
        "train_images": images(10, 6),
        "train_labels": np.array(TRAIN),
        "test_images": images(20, 3),
        "test_labels": np.array(TEST),
        "class_names": ("cat", "dog", "owl"),
        "versions": {"maker": "1"},
    }
    return RawRecords(**(arguments | change))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _raw().save(tmp_path / "pets", {"name": "pets", "licence": "MIT"})
    return tmp_path / "pets"


def test_records_are_ordered_by_split_then_label_then_as_they_came(
    folder: Path,
) -> None:
    dataset = load_records(folder)
    assert dataset.images[:, 0, 0, 0].tolist() == [11, 13, 12, 10, 14, 15, 22, 20, 21]
    assert (
        dataset.labels.tolist() == [0, 0, 1, 2, 2, 2, 0, 1, 1]
        and dataset.labels.dtype == np.int64
    )
    assert dataset.splits["train"].tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.splits["test"].tolist() == [6, 7, 8]
    assert dataset.class_names == ("cat", "dog", "owl")
    assert dataset.image_shape == (4, 5, 1)
    assert not dataset.images.flags.writeable


def test_the_three_files_and_what_they_say(folder: Path) -> None:
    assert sorted(file.name for file in folder.iterdir()) == [
        "classes.csv",
        "images.npy",
        "summary.json",
    ]
    assert (
        folder / "classes.csv"
    ).read_text() == "index,name,train,test\n0,cat,2,1\n1,dog,1,2\n2,owl,3,0\n"
    summary = load_records(folder).summary
    assert (
        summary["kind"] == "records"
        and summary["licence"] == "MIT"
        and summary["matches_record"] is None
    )
    assert summary["records"] == 9 and summary["split_records"] == {
        "train": 6,
        "test": 3,
    }
    assert summary["mean_pixel"] == pytest.approx((75 + 63) / 9, abs=1e-4)
    assert summary["made_with"] == {"maker": "1"}


def test_the_same_records_give_the_same_bytes_and_match_the_record(
    folder: Path, tmp_path: Path
) -> None:
    digest = load_records(folder).summary["sha256"]
    _raw().save(tmp_path / "again", {"name": "pets", "recorded_sha256": digest})
    assert load_records(tmp_path / "again").summary["matches_record"] is True


@pytest.mark.parametrize(
    ("change", "what"),
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
def test_what_does_not_fit_together_is_our_fault(
    change: dict[str, Any], what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        _raw(**change)


@pytest.mark.parametrize("missing", ["images.npy", "classes.csv", "summary.json"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(
        BenchError, match=rf"{missing} is missing: .*run the workflow again"
    ):
        load_records(folder)


def _replace(old: str, new: str) -> Any:
    return lambda path: path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("images.npy", lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\0")),
        ("images.npy", lambda path: path.write_bytes(path.read_bytes()[:-20])),
        ("images.npy", lambda path: path.write_text("no array")),
        (
            "classes.csv",
            lambda path: path.write_text(
                "".join(path.read_text().splitlines(True)[:-1])
            ),
        ),
        ("classes.csv", _replace("0,cat,2,1", "0,cat,1,2")),
        ("classes.csv", _replace("0,cat,2,1", "0,cat,2")),
        ("classes.csv", _replace("train", "trian")),
        ("classes.csv", _replace("cat", "")),
    ],
)
def test_a_damaged_file_is_named_and_to_be_deleted(
    folder: Path, file: str, harm: Any
) -> None:
    harm(folder / file)
    with pytest.raises(
        BenchError, match=rf"{file} is damaged .*delete {folder} and run"
    ) as caught:
        load_records(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    ['{"name": "pets", "kind": "records"}', "[]", '{"kind": "records", "records": 3}'],
)
def test_a_foreign_summary_is_refused(folder: Path, content: str) -> None:
    (folder / "summary.json").write_text(content)
    with pytest.raises(BenchError, match="does not describe a data set"):
        load_records(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"class_records"', '"other"'),
        ('"test": [', '"other": ['),
        ("      3\n", "      4\n"),
    ],
)
def test_a_summary_without_its_counts_is_refused(
    folder: Path, old: str, new: str
) -> None:
    _replace(old, new)(folder / "summary.json")
    with pytest.raises(
        BenchError, match=r"summary\.json does not describe a data set .no "
    ) as caught:
        load_records(folder)
    assert "\n" not in str(caught.value)


def test_each_loader_says_that_the_other_kind_is_needed(
    folder: Path, tmp_path: Path, raw_images: Any
) -> None:
    raw_images(5, 2, 3, 4).save(tmp_path / "small", {"name": "small"})
    assert load_dataset(tmp_path / "small").summary["kind"] == "classes"
    with pytest.raises(
        BenchError,
        match=(
            r"small .* is split by class, and this method needs .* by record: take one"
        ),
    ):
        load_records(tmp_path / "small")
    with pytest.raises(
        BenchError,
        match=(
            r"pets .* is split by record, and this method needs .* by class: take one"
        ),
    ):
        load_dataset(folder)


def test_a_class_data_set_made_before_kinds_is_still_read(
    tmp_path: Path, raw_images: Any
) -> None:
    raw_images(5, 2, 3, 4).save(tmp_path / "small", {"name": "small"})
    summary = tmp_path / "small" / "summary.json"
    _replace('  "kind": "classes",\n', "")(summary)
    assert "kind" not in load_dataset(tmp_path / "small").summary
    with pytest.raises(BenchError, match="is split by class"):
        load_records(tmp_path / "small")


def test_writing_cut_short_leaves_no_data_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfedbench.data.images.write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        _raw().save(folder, {"name": "pets"})
    with pytest.raises(BenchError, match=r"summary\.json is missing"):
        load_records(folder)


def test_preparing_by_name_writes_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = registry.DatasetEntry(
        name="pets", version="2", source="here", licence="MIT", read=lambda *_: _raw()
    )
    monkeypatch.setitem(registry.DATASETS, "pets", entry)
    registry.prepare("pets", tmp_path / "out")
    summary = load_records(tmp_path / "out").summary
    assert (summary["name"], summary["version"], summary["stand_in"]) == (
        "pets",
        "2",
        False,
    )
