"""Checks of a results folder: files against manifests, accounts against ledgers."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import account_of, ledger_before, ledger_of
from dpfedbench.manifests import FOLDER, checked, listed, mend
from dpfedbench.method import Method
from dpfedbench.papers import read_run_file
from dpfedbench.results.runs_table import read_account
from dpfedbench.results_format import NAME
from dpsum.accounting.account import Account
from dpsum.accounting.tuning import Search

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
                f"{path}: its {name} is {before.get(name)}, but it is {now.get(name)},"
                f" computed again from its ledger: {mend(path, 'account')}"
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
