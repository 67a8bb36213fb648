"""A results folder as one file to share, and the comparison of two of them.

The archive has the frames of runs and cells, all tables and figures, the page and the
provenance, without models, ledgers or data.
"""

import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path
from dpfedbench.results.formats import format_percent, format_range
from dpfedbench.results.load import load_cells, load_runs
from dpfedbench.results.runs_table import CELLS_FILE, RUNS_FILE
from dpfedbench.results.summary import each_row, summarize

_CELL = ["paper", "item", "series", "dataset", "tested", "x"]
"""Columns that say which cell of a table or figure a row is."""
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)
_QUANTITIES = {
    "accuracy": ("accuracy_low", "accuracy_high", 0.0),
    "claimed ε": ("epsilon_claimed_low", "epsilon_claimed", 0.01),
    "proven ε": ("epsilon_proven_low", "epsilon_proven_high", 0.01),
}
"""Columns with the ends of what is compared, and the share by which they may be apart."""


def write_archive(folder: str | Path, files: Iterable[str | Path], path: Path) -> None:
    """Write files of a results folder into a ZIP archive: the same bytes each time.

    Args:
        folder: the results folder, from which names in the archive are relative.
        files: the files to pack.
        path: of the archive.
    """
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for file in sorted(map(Path, files)):
            entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _FIXED_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())


def compare(first: str | Path, second: str | Path) -> Iterator[str]:
    """Yield one line for each cell of a table or figure that differs between two
    results: an archive or a folder each.

    Accuracies differ where their 95 % intervals do not overlap. Two ε differ where
    the gap between their ranges, from low to high end, is more than 1 % of the smaller.
    Cells that only one of the two has are named together at the end.

    Raises:
        BenchError: one of them is no archive or results folder.
    """
    rows = [read_cells(path).set_index(_CELL) for path in (first, second)]
    shared = rows[0].index.intersection(rows[1].index, sort=False)
    pairs = (each_row(frame.loc[shared]) for frame in rows)
    for name, *cells in zip(shared, *pairs, strict=True):
        for quantity, (low, high, slack) in _QUANTITIES.items():
            ends = [(getattr(cell, low), getattr(cell, high)) for cell in cells]
            if not _overlap(ends[0], ends[1], slack):
                values = [
                    _text(cell, quantity, *pair)
                    for cell, pair in zip(cells, ends, strict=True)
                ]
                cell_name = ", ".join(str(part) for part in name if not pd.isna(part))
                yield f"{cell_name}: {quantity} {' and '.join(values)}"
    for path, frame in zip((first, second), rows, strict=True):
        alone = frame.index.difference(shared)
        items = sorted({f"{paper} {item}" for paper, item, *_ in alone})
        if items:
            yield f"only in {path}: {len(alone)} cells of {', '.join(items)}"


def read_cells(path: str | Path) -> pd.DataFrame:
    """Return one row for each cell of an archive or results folder, as
    `summary.summarize`.

    Raises:
        BenchError: it is no archive or results folder.
    """
    if Path(path).is_dir():
        runs = load_runs(path)
        cells = load_cells(path)
    else:
        try:
            with zipfile.ZipFile(path) as archive:
                runs, cells = (
                    pd.read_parquet(io.BytesIO(archive.read(name)))
                    for name in (RUNS_FILE, CELLS_FILE)
                )
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise BenchError(
                f"{path} is no archive of results ({error}): make one with `snakemake"
                " --cores all all results/results.zip`"
            ) from error
    rows = summarize(cells, runs).drop_duplicates(_CELL)
    # An accuracy without an interval is a range of one number.
    for end in ("accuracy_low", "accuracy_high"):
        rows[end] = rows[end].fillna(rows["accuracy"])
    return rows


def _text(cell: Any, quantity: str, low: float, high: float) -> str:
    if quantity == "accuracy":
        return format_percent(cell.accuracy, low, high).line
    return format_range(low, high).text


def _overlap(
    left: tuple[float, float], right: tuple[float, float], slack: float
) -> bool:
    """Whether two ranges overlap, or are apart by at most a share of the smaller upper
    end. Two missing ranges overlap; a missing and a known one do not.
    """
    highs = [left[1], right[1]]
    if np.isnan(highs).any():
        return bool(np.isnan(highs).all())
    return max(left[0], right[0]) <= min(highs) * (1 + slack)
