"""Parquet tables of pictures with owners."""

import io

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from dpfedbench.data import parquet_table
from dpfedbench.errors import BenchError

ROWS = [("ann", "cat", 10), ("bob", "dog", 20), ("ann", "dog", 30), ("ann", "cat", 40)]
OPTIONS = {"file": "people.parquet", "owner": "writer", "label": "kind", "size": 8}


def picture(value, size=8):
    content = io.BytesIO()
    Image.new("L", (size, size), value).save(content, "PNG")
    return content.getvalue()


def frame_of(rows, wrap=lambda content: content):
    return pd.DataFrame(
        {
            "image": [wrap(picture(value)) for _, _, value in rows],
            "kind": [label for _, label, _ in rows],
            "writer": [owner for owner, _, _ in rows],
        }
    )


@pytest.mark.parametrize(
    "wrap",
    [lambda content: content, lambda content: {"bytes": content, "path": None}],
    ids=["bytes", "struct"],
)
def test_each_row_is_a_record_of_its_owner(tmp_path, wrap):
    """Of ann's three rows the first is a test record; bob keeps his one."""
    frame_of(ROWS, wrap).to_parquet(tmp_path / "people.parquet")
    read = parquet_table.read(tmp_path, tmp_path, **OPTIONS)
    assert read.class_names == ("cat", "dog")
    assert read.train_owners.tolist() == ["bob", "ann", "ann"]
    assert read.train_labels.tolist() == [1, 1, 0]
    assert read.train_images[:, 0, 0, 0].tolist() == [20, 30, 40]
    assert read.test_owners.tolist() == ["ann"]
    assert read.test_images[:, 0, 0, 0].tolist() == [10]
    counts = parquet_table.owner_counts(tmp_path, **OPTIONS)
    assert counts.tolist() == [[2], [1]]


def test_files_of_a_folder_are_one_table(tmp_path):
    folder = tmp_path / "people.parquet"
    folder.mkdir()
    for number, rows in enumerate((ROWS[:2], ROWS[2:])):
        frame_of(rows).to_parquet(folder / f"{number}.parquet")
    counts = parquet_table.owner_counts(tmp_path, **OPTIONS)
    assert counts.tolist() == [[2], [1]]
    read = parquet_table.read(tmp_path, tmp_path, **OPTIONS)
    assert read.train_owners.tolist() == ["bob", "ann", "ann"]


def spoiled(column, value):
    frame = frame_of(ROWS)
    frame[column] = frame[column].astype(object)
    frame.loc[2, column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (spoiled("image", b"no picture"), "the picture of row 3 cannot be read"),
        (spoiled("writer", None), "1 rows have no writer"),
        (spoiled("writer", " "), "an owner has no name"),
        (frame_of(ROWS).drop(columns="writer"), "cannot be read with the columns"),
        (frame_of([]), "has no rows"),
    ],
    ids=["picture", "no owner", "blank owner", "column", "empty"],
)
def test_damaged_table_is_refused_in_one_line(tmp_path, frame, message):
    frame.to_parquet(tmp_path / "people.parquet")
    with pytest.raises(BenchError, match=message):
        parquet_table.read(tmp_path, tmp_path, **OPTIONS)


def test_missing_or_cut_file_is_refused(tmp_path):
    with pytest.raises(BenchError, match="cannot be read with the columns"):
        parquet_table.owner_counts(tmp_path, **OPTIONS)
    frame_of(ROWS).to_parquet(tmp_path / "people.parquet")
    content = (tmp_path / "people.parquet").read_bytes()
    (tmp_path / "people.parquet").write_bytes(content[:-20])
    with pytest.raises(BenchError, match="cannot be read with the columns"):
        parquet_table.owner_counts(tmp_path, **OPTIONS)


def test_test_rows_are_a_tenth_of_each_owner():
    owners = np.repeat(["a", "b"], [20, 10])
    is_test = parquet_table._test_rows(owners)
    assert [is_test[:20].sum(), is_test[20:].sum()] == [2, 1]
