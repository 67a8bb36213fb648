"""Checks of a results folder: files against manifests, accounts against ledgers, and
results against those of another folder.
"""

import io
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.manifests import FOLDER, checked, listed, mend
from dpfedbench.method import Method
from dpfedbench.papers import read_run_file
from dpfedbench.results.formats import format_range
from dpfedbench.results.load import load_cells, load_runs
from dpfedbench.results.runs_table import CELLS_FILE, RUNS_FILE
from dpfedbench.results.summary import summarize
from dpfedbench.results_format import NAME
from dpfedbench.training.accounts import (
    account_of,
    ledger_before,
    ledger_of,
    read_account,
)
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
_NOT_RESULTS = {FOLDER, "logs", "benchmark", "checkpoint", "download"}
"""Folders without results: no rule reads them."""


def check_files(results: Path) -> Iterator[str | None]:
    """Compare every file with the SHA-256 in its manifest.

    Yields:
        For each file None, or a line if it changed, if a manifest names it and it is
        missing, or if no manifest names it.
    """
    for folder in _folders(results):
        try:
            names = set(listed(folder))
        except BenchError as error:
            names = set()
            yield str(error)
        names.update(path.name for path in folder.iterdir() if not path.is_dir())
        if folder == results:
            names.discard(NAME)
        for name in sorted(names):
            if not name.startswith("."):
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
    for folder in _folders(results):
        path = folder / "privacy.json"
        if path.exists() and (folder / "config.yaml").exists():
            yield _fault(
                path,
                lambda path: _check_account(path, results, searches or {}),
            )


def _folders(results: Path) -> Iterator[Path]:
    """Yield each folder once, also where links lead to it more than once."""
    visited = set[str]()
    for folder, folders, _ in os.walk(results, onerror=_raise, followlinks=True):
        real = os.path.realpath(folder)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(
            name
            for name in folders
            if name not in _NOT_RESULTS and not name.startswith(".")
        )
        yield Path(folder)


def _raise(error: OSError) -> None:
    raise error


def _check_account(path: Path, results: Path, searches: Mapping[str, Any]) -> None:
    run = read_run_file(path.parent / "config.yaml")
    stored = read_account(path)
    clients = results / "clients" / run.clients_folder
    has_clients = run.accounts_images and (clients / "summary.json").exists()
    computed = account_of(
        run,
        ledger_of(run, path.parent),
        clients_dir=clients if has_clients else None,
        search=Search.of(searches.get(run.folder)),
        before=ledger_before(run, _references(run, results)),
    )
    left_out = set[str]()
    if not has_clients:
        left_out.add("image_level")
    if run.folder not in searches:
        left_out.add("tuning")
    before = _numbers(stored, left_out)
    now = _numbers(computed, left_out)
    for name in {**before, **now}:
        if not _equal(before.get(name), now.get(name)):
            raise BenchError(
                f"{path}: its {name} is {before.get(name)}, but its ledger gives"
                f" {now.get(name)}: {mend(path, 'account')}"
            )


def _references(run: Method, results: Path) -> dict[str, Path]:
    return {
        name: checked(results / "runs" / reference.folder / name)
        for name, reference in run.references.items()
    }


def _numbers(account: Account, left_out: set[str]) -> dict[str, Any]:
    """Return the numbers and statuses of an account by name, without explanations."""
    numbers = dict[str, Any]()
    for unit in (account, *account.also):
        suffix = "" if unit is account else f" of {unit.unit}s"
        for name in ("delta", "unit", "rounds", "noise_multiplier"):
            numbers[f"{name}{suffix}"] = getattr(unit, name)
        entries = {**unit.profiles}
        for name, entry in unit.groups.items():
            entries[f"groups of {name}"] = entry
        for profile, entry in entries.items():
            if profile.removeprefix("groups of ") in left_out:
                continue
            for name in (
                "epsilon_low",
                "epsilon_high",
                "delta",
                "unit",
                "adjacency",
                "observer",
                "status",
            ):
                numbers[f"{name} {profile}{suffix}"] = getattr(entry, name)
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
    rows = [read_cells(path).set_index(_CELL) for path in (first, second)]
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
