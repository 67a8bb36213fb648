"""Checks of a results folder: files against manifests, accounts against ledgers, and
results against those of another folder.
"""

import glob
import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.manifests import FOLDER, checked, listed, mend
from dpfedbench.notebook import FinishedRun
from dpfedbench.papers import read_run_file
from dpfedbench.results.formats import format_range
from dpfedbench.results.runs_table import CELLS_FILE, RUNS_FILE
from dpfedbench.results.summary import summarize
from dpfedbench.results_format import NAME
from dpfedbench.training.accounts import read_account
from dpsum.accounting.account import Account
from dpsum.accounting.tuning import Search

_CELL = ["paper", "item", "series", "dataset", "tested", "x"]
"""Columns that say which cell of a table or figure a row is."""
_QUANTITIES = {
    "accuracy": ("accuracy_low", "accuracy_high", 0.0),
    "claimed ε": ("epsilon_claimed_low", "epsilon_claimed", 0.01),
    "proven ε": ("epsilon_proven_low", "epsilon_proven_high", 0.01),
}
"""Columns with the ends of what is compared, and the share by which they may be apart."""
_COMPARED = (
    "epsilon_low",
    "epsilon_high",
    "delta",
    "unit",
    "adjacency",
    "observer",
    "status",
    "rounds",
    "noise_multiplier",
)
"""Values of an account and of its profiles that are computed again and compared."""


def check_files(results: Path) -> Iterator[str | None]:
    """Compare every file beside a manifest with the SHA-256 in the manifest.

    Yields:
        For each file None, or a line if it changed, if a manifest names it and it is
        missing, or if no manifest names it.
    """
    for manifests in _paths(results, FOLDER):
        folder = manifests.parent
        names = {path.name for path in folder.iterdir() if not path.is_dir()}
        try:
            names.update(listed(folder))
        except BenchError as error:
            yield str(error)
        for name in sorted(names):
            if name != NAME and not name.startswith("."):
                yield _fault(folder / name, checked)


def check_accounts(
    results: Path, searches: Mapping[str, Any] | None = None
) -> Iterator[str | None]:
    """Compute the account of every run again from its ledger, and compare.

    The ledger must be whole, and must be the one that the run's configuration gives.

    Args:
        results: the results folder.
        searches: by the folder of a run, the hyper-parameter search that it is part of.
            Without it the account of tuning is not compared.

    Yields:
        For each account None, or a line that says how it differs.
    """
    for path in _paths(results, "privacy.json"):
        if (path.parent / "config.yaml").exists():
            yield _fault(path, lambda path: _check_account(path, searches or {}))


def _paths(results: Path, name: str) -> list[Path]:
    """Return the paths of this name at any depth, also where links lead to them."""
    return sorted(map(Path, glob.glob(f"{results}/**/{name}", recursive=True)))


def _check_account(path: Path, searches: Mapping[str, Any]) -> None:
    run = FinishedRun(
        folder=path.parent, settings=read_run_file(path.parent / "config.yaml")
    )
    folder = run.settings.folder
    computed = run.computed_account(search=Search.of(searches.get(folder)))
    left_out = set[str]()
    if run.find_partition() is None:
        left_out.add("image_level")
    if folder not in searches:
        left_out.add("tuning")
    before = _numbers(read_account(path), left_out)
    now = _numbers(computed, left_out)
    for name in {**before, **now}:
        if not _equal(before.get(name), now.get(name)):
            raise BenchError(
                f"{path}: its {name} is {before.get(name)}, but its ledger gives"
                f" {now.get(name)}: {mend(path, 'account')}"
            )


def _numbers(account: Account, left_out: set[str]) -> dict[str, Any]:
    """Return the compared values of an account by name, without these profiles."""
    numbers = dict[str, Any]()
    for unit in (account, *account.also):
        groups = {f"groups of {name}": entry for name, entry in unit.groups.items()}
        for name, entry in {"": unit, **unit.profiles, **groups}.items():
            if name in left_out:
                continue
            for value in _COMPARED:
                full_name = f"{value} {name} of {unit.unit}s".replace("  ", " ")
                numbers[full_name] = getattr(entry, value, None)
    return numbers


def _equal(before: Any, now: Any) -> bool:
    """Compare two values; numbers may differ by another processor's rounding."""
    if isinstance(before, float) and isinstance(now, float):
        both_nan = math.isnan(before) and math.isnan(now)
        return both_nan or math.isclose(before, now, rel_tol=1e-6)
    return bool(before == now)


def _fault(path: Path, check: Callable[[Path], object]) -> str | None:
    """Return the line that a check raises, or None. An odd file is a line too."""
    try:
        check(path)
    except Exception as error:
        message = str(error)
        if not isinstance(error, BenchError):
            message = f"{path} cannot be checked: {type(error).__name__}: {message}"
        return " ".join(message.encode("utf-8", "backslashreplace").decode().split())
    return None


def compare(first: str | Path, second: str | Path) -> Iterator[str]:
    """Yield one line for each cell of a table or figure that differs between two
    results: an archive or a folder each.

    Accuracies differ where their 95 % intervals do not overlap. Two ε differ where
    the gap between their ranges, from low to high end, is more than 1 % of the smaller.
    Cells that only one of the two has are named together at the end.

    Raises:
        BenchError: one of them is no archive or results folder.
    """
    rows = [_read_cells(path).set_index(_CELL) for path in (first, second)]
    shared = rows[0].index.intersection(rows[1].index, sort=False)
    for name in shared:
        cells = [frame.loc[name] for frame in rows]
        for quantity, (low, high, slack) in _QUANTITIES.items():
            ends = [(cell[low], cell[high]) for cell in cells]
            if not _overlap(ends[0], ends[1], slack):
                cell_name = ", ".join(str(part) for part in name if not pd.isna(part))
                values = [format_range(*pair).text for pair in ends]
                yield f"{cell_name}: {quantity} {' and '.join(values)}"
    for path, frame in zip((first, second), rows, strict=True):
        alone = frame.index.difference(shared)
        items = sorted({f"{paper} {item}" for paper, item, *_ in alone})
        if items:
            yield f"only in {path}: {len(alone)} cells of {', '.join(items)}"


def _frames_of_archive(path: str | Path) -> zipfile.Path:
    """Return the folder of the frames in an archive. That of one experiment has them in
    experiments/NAME/.
    """
    root = zipfile.Path(path)
    experiments = root / "experiments"
    if (root / RUNS_FILE).exists() or not experiments.exists():
        return root
    (folder,) = experiments.iterdir()
    return folder


def _read_cells(path: str | Path) -> pd.DataFrame:
    """Return one row for each cell of an archive or results folder, as
    `summary.summarize`.

    Raises:
        BenchError: it is no archive or results folder.
    """
    try:
        root = Path(path) if Path(path).is_dir() else _frames_of_archive(path)
        runs, cells = (
            pd.read_parquet(io.BytesIO((root / name).read_bytes()))
            for name in (RUNS_FILE, CELLS_FILE)
        )
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise BenchError(
            f"{path} is not an archive of results ({error}): make one with `snakemake"
            " --cores all all results/results.zip`"
        ) from error
    rows = summarize(cells, runs).drop_duplicates(_CELL)
    # An accuracy without an interval is a range of one number.
    for end in ("accuracy_low", "accuracy_high"):
        rows[end] = rows[end].fillna(rows["accuracy"])
    return rows


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
