"""A Parquet table of pictures as a data set of labelled records, with owners.

One row is one record, as in the data sets of the Hugging Face hub: a column of encoded
pictures (bytes, or a struct with the field `bytes`), a column of labels, and a column
of owners, such as FEMNIST's `writer_id`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpfedbench.config.part import Settings, setting
from dpfedbench.data.folder_files import data_files, folder_of
from dpfedbench.data.image_folder import square_pixels
from dpfedbench.data.images import with_progress
from dpfedbench.data.owners import check_names, count_held_out
from dpfedbench.data.records import RawRecords
from dpfedbench.data.sources import decoded_image
from dpfedbench.errors import BenchError

if TYPE_CHECKING:
    import pandas as pd
else:
    from dpsum.lazy import Lazy

    pd = Lazy("pandas")


class ParquetOptions(Settings):
    """Arguments of `read` in a configuration."""

    file: str = setting(
        doc="Parquet file, or a folder of *.parquet; absolute, or below the local data"
    )
    image: str = setting("image", doc="column of the encoded pictures")
    label: str = setting("label", doc="column of the labels")
    owner: str = setting(doc="column of the owners")
    size: int = setting(28, ge=8, le=1024, doc="height and width after resizing")
    channels: Literal[1, 3] = setting(1, doc="1: grey; 3: colour")


OPTIONS = ParquetOptions
"""Schema of this reader's options."""


def read(local: Path | None, download_dir: Path, **options: Any) -> RawRecords:
    """Read a table of pictures. A tenth of each owner's rows are test records.

    Args:
        local: the local data folder; a relative `file` lies below it.
        options: see `ParquetOptions`.

    Raises:
        BenchError: the file is missing or damaged, lacks a column, or has a row without
            an owner, a label or a readable picture.
    """
    chosen = ParquetOptions(**options)
    size = chosen.size
    channels = chosen.channels
    path = folder_of(chosen.file, local)
    table = _table(path, [chosen.image, chosen.label, chosen.owner])
    owners = _texts(table[chosen.owner], path)
    labels = _texts(table[chosen.label], path)
    class_names, numbers = np.unique(labels, return_inverse=True)
    pixels = np.empty((len(table), size, size, channels), np.uint8)
    rows = with_progress(list(table[chosen.image]), f"reading {path.name}")
    for number, (target, encoded) in enumerate(zip(pixels, rows, strict=True), 1):
        try:
            content = encoded["bytes"] if isinstance(encoded, Mapping) else encoded
            target[:], _ = square_pixels(decoded_image(bytes(content)), size, channels)
        except Exception as error:  # a damaged picture can raise nearly anything
            raise BenchError(
                f"{path}: the picture of row {number} cannot be read ({error}): replace"
                " or remove the row"
            ) from error
    is_test = _test_rows(owners)
    parts: dict[str, Any] = {}
    for split, rows_of_split in (("train", ~is_test), ("test", is_test)):
        parts[f"{split}_images"] = pixels[rows_of_split]
        parts[f"{split}_labels"] = numbers[rows_of_split].astype(np.int64)
        parts[f"{split}_owners"] = owners[rows_of_split]
    return RawRecords(
        **parts, class_names=tuple(class_names.tolist()), versions={}, facts={}
    )


def owner_counts(local: Path | None, *, file: str, owner: str, **_: Any) -> np.ndarray:
    """Return the number of training records of each owner, int64 [owners, 1].

    Only the column of owners is read.

    Raises:
        BenchError: the file is missing or damaged, or lacks the column.
    """
    path = folder_of(file, local)
    owners = _texts(_table(path, [owner])[owner], path)
    sizes = np.unique(owners, return_counts=True)[1]
    tested = [count_held_out(size) for size in sizes.tolist()]
    return (sizes - np.array(tested))[:, None].astype(np.int64)


def holds(local: Path | None, **_: Any) -> str:
    """Return the contents as in `data.DATASETS_TABLE`."""
    return "records"


def _table(path: Path, columns: list[str]) -> "pd.DataFrame":
    """Return columns of a file, or of all files of a folder, one after another.

    Raises:
        BenchError: a file is missing or damaged, or lacks a column.
    """
    files = [path]
    if path.is_dir():
        files = [inner for inner in data_files(path) if inner.suffix == ".parquet"]
    if not files:
        raise BenchError(f"{path} has no *.parquet: name the file or its folder")
    frames = []
    for part in files:
        try:
            frames.append(pd.read_parquet(part, columns=columns))
        except Exception as error:  # pyarrow's errors have many classes
            raise BenchError(
                f"{part} cannot be read with the columns {', '.join(columns)}"
                f" ({error}): check the file and the names of its columns"
            ) from error
    table: pd.DataFrame = pd.concat(frames, ignore_index=True)
    if not len(table):
        raise BenchError(f"{path} has no rows: name a table with records")
    return table


def _texts(column: "pd.Series", path: Path) -> np.ndarray:
    """Return a column as text.

    Raises:
        BenchError: a row has no value.
    """
    missing = int(column.isna().sum())
    if missing:
        raise BenchError(
            f"{path}: {missing} rows have no {column.name}: remove them or fill them in"
        )
    texts = np.array([str(value) for value in column], dtype=np.str_)
    check_names(texts.tolist(), str(path))
    return texts


def _test_rows(owners: np.ndarray) -> np.ndarray:
    """Return whether each row is a test record: the first tenth of its owner's rows."""
    is_test = np.zeros(len(owners), bool)
    for name in np.unique(owners):
        rows = np.flatnonzero(owners == name)
        is_test[rows[: count_held_out(len(rows))]] = True
    return is_test
