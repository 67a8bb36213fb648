"""Collect finished runs into one data frame, a row for each run."""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, read_group, read_json, write_text
from dpfedbench.results.columns import (
    CELLS,
    IDENTITY,
    PRIVACY,
    TEST,
    UNIT_PREFIXES,
    run_columns,
)
from dpfedbench.results.format import refuse_newer
from dpfedbench.settings.run import read_yaml
from dpsum.accounting.account import Account

RUNS_FILE = "runs.parquet"
CELLS_FILE = "cells.parquet"
SEPARATOR = " | "
"""Stands between the notices of a run."""

_PROFILES = {
    "replace_one": "epsilon_replace_one",
    "image_level": "epsilon_image_level",
    "tuning": "epsilon_tuning",
}
_LISTS = ("task_accuracies",)


def collect_runs(
    results: str | Path,
    runs: Iterable[str],
    *,
    papers: Mapping[str, str] | None = None,
    audited_runs: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Read the folders of runs into a frame with one row for each run.

    Args:
        results: the results folder.
        runs: folders of runs below `results/runs`, such as
            `dp-agr/glyphs/5way-1shot/0123456789/seed0`.
        papers: the paper that each method belongs to.
        audited_runs: for a run, the run whose audit stands for it. Without an entry the
            run's own audit counts, if there is one.

    Returns:
        The columns of `columns.run_columns`, and then one column for each value of the
        configurations. Values that a run does not have are missing.

    Raises:
        BenchError: a file of a run is missing or damaged.
    """
    papers = papers or {}
    audited_runs = audited_runs or {}
    rows = []
    for run in sorted(set(runs)):
        audited_run = audited_runs.get(run, run)
        folder = Path(results, "runs", run)
        with _naming(folder):
            rows.append(read_run(results, run, papers=papers, audited_run=audited_run))
    fixed_names = [column.name for column in run_columns()]
    setting_names = sorted({name for row in rows for name in row} - set(fixed_names))
    columns = {
        name: _typed_column([row.get(name) for row in rows])
        for name in [*fixed_names, *setting_names]
    }
    return pd.DataFrame(columns)


@contextlib.contextmanager
def _naming(place: Path) -> Iterator[None]:
    """Name the place of a result that lacks a value.

    Raises:
        BenchError: in place of an error about the value.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchError(
            f"a result of {place} lacks {error}: delete that folder and run the"
            " workflow again"
        ) from error


def read_run(
    results: str | Path, run: str, *, papers: Mapping[str, str], audited_run: str
) -> dict[str, Any]:
    """Return one run's row: its values by the names of the columns.

    Raises:
        BenchError: a file of the run is missing or damaged.
    """
    folder = Path(results, "runs", run)
    method, dataset, task_name, key, seed = Path(run).parts
    identity = (
        run,
        papers.get(method, ""),
        method,
        dataset,
        task_name,
        key,
        int(seed.removeprefix("seed")),
    )
    row = dict(_flatten(read_yaml(folder / "config.yaml")))
    row |= zip((column.name for column in IDENTITY), identity, strict=True)
    row |= _read_test(folder / "metrics.json")
    row |= _read_training(folder / "training.json")
    audit_path = Path(results, "runs", audited_run, "audit.json")
    audits = read_audits(audit_path) if audit_path.exists() else {}
    row |= _read_privacy(folder / "privacy.json", audits, audited_run)
    return row


def _flatten(
    settings: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of nested settings; a list becomes JSON text."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield f"{prefix}{name}", json.dumps(value)
        else:
            yield f"{prefix}{name}", value


def _read_test(path: Path) -> dict[str, Any]:
    metrics = read_group(path)
    row = {
        "accuracy_low": metrics.get("ci_low"),
        "accuracy_high": metrics.get("ci_high"),
    }
    if "records" in metrics:
        row |= {"test_unit": "record", "test_count": metrics["records"]}
    else:
        task_accuracies = metrics["per_task"]
        row |= {"test_unit": "task", "test_count": len(task_accuracies)}
        row["task_accuracies"] = task_accuracies
    row["accuracy"] = metrics["accuracy"]
    return row


def _read_training(path: Path) -> dict[str, Any]:
    training = read_group(path)
    refuse_newer(training, str(path.parent))
    names = (
        "rounds_planned",
        "rounds_run",
        "stopped_by",
        "noise_multiplier",
        "parameters",
        "seconds",
        "milliseconds_per_client",
        "milliseconds_per_record",
        "device",
        "machine",
        "threads",
        "processes",
        "gradients",
        "method_version",
    )
    row = {name: training.get(name) for name in names}
    versions = training.get("versions", {})
    row["versions"] = ", ".join(f"{name} {text}" for name, text in versions.items())
    row["notices"] = SEPARATOR.join(training.get("notices", ()))
    accuracies = [100 * member["accuracy"] for member in training.get("members", ())]
    if accuracies:
        row["validation_accuracy"] = sum(accuracies) / len(accuracies)
    return row


def _read_privacy(
    path: Path, audits: Mapping[tuple[str, str], Mapping[str, Any]], audited_run: str
) -> dict[str, Any]:
    """Return the privacy columns of a run, of each unit and observer."""
    account = read_group(path)
    row = dict[str, Any]()
    units = [account, *account.get("also", ())]
    if len(units) > len(UNIT_PREFIXES):
        raise BenchError(
            f"{path} accounts for {len(units)} units and observers, and the frame of"
            f" runs has room for {len(UNIT_PREFIXES)}: add a prefix to UNIT_PREFIXES"
        )
    for prefix, unit in zip(UNIT_PREFIXES, units, strict=False):
        values = _privacy_of_unit(unit)
        audit = audits.get((values["unit"], values["observer"]))
        if audit is not None:
            values |= _audit_columns(audit) | {"audited_run": audited_run}
        row |= {f"{prefix}{name}": value for name, value in values.items()}
    return row


def _privacy_of_unit(account: Mapping[str, Any]) -> dict[str, Any]:
    """Return the privacy columns of one unit, without those of the audit."""
    values = dict[str, Any]({column.name: None for column in PRIVACY})
    profiles = account["profiles"]
    values |= {
        "unit": account.get("unit"),
        "delta": account.get("delta"),
        "accounted_multiplier": account.get("noise_multiplier"),
    }
    if values["unit"] is not None:
        reasons = account.get("reasons", {})
        values["claimed_explanation"] = reasons.get("as_claimed")
        values["proven_explanation"] = reasons.get("holds")
    if (claimed := profiles.get("as_claimed")) is not None:
        values |= {
            "epsilon_claimed_low": _number(claimed["epsilon_low"]),
            "epsilon_claimed": _number(claimed["epsilon_high"]),
            "claimed_status": claimed["status"],
            "claimed_explanation": claimed["explanation"],
        }
    if (proven := profiles.get("holds")) is not None:
        values |= {
            "adjacency": proven["adjacency"],
            "observer": proven["observer"],
            "epsilon_proven_low": _number(proven["epsilon_low"]),
            "epsilon_proven_high": _number(proven["epsilon_high"]),
            "proven_status": proven["status"],
            "proven_explanation": proven["explanation"],
        }
    for profile, name in _PROFILES.items():
        if (entry := profiles.get(profile)) is not None:
            values[name] = _number(entry["epsilon_high"])
    if (image_level := profiles.get("image_level")) is not None:
        values["image_level_explanation"] = image_level["explanation"]
    return values


def _audit_columns(audit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an audit of one unit and observer."""
    ideal = audit.get("epsilon_ideal")
    return {
        "epsilon_audited": _number(audit["epsilon"]),
        "audit_confidence": audit["confidence"],
        "audit_status": audit.get("status"),
        "audit_method": audit.get("method"),
        "audit_reason": audit.get("reason"),
        "audit_chance": audit.get("chance", 1 - audit["confidence"]),
        "epsilon_ideal_audit": None if ideal is None else _number(ideal),
        "epsilon_proven_at_audit": _number(audit.get("epsilon_holds", "inf")),
        "audit_saw_another_mechanism": audit.get("another_mechanism", False),
    }


def read_account(path: Path | str) -> Account:
    """Return a run's privacy.json.

    Raises:
        BenchError: the file is missing or damaged.
    """
    return Account.from_json(read_json(path), str(path))


def read_audits(path: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the audits of a run by unit and observer.

    Raises:
        BenchError: the file is missing or damaged.
    """
    audit = read_group(path)
    try:
        if audit["epsilon"] is None:
            return {}
        audits = [*audit.get("also", ()), audit]
        return {(entry["unit"], entry["observer"]): entry for entry in audits}
    except (KeyError, TypeError, AttributeError) as error:
        raise BenchError(
            f"{path} is no audit ({error}): delete it and run the workflow again"
        ) from error


def _number(value: Any) -> float:
    """Return a number that JSON files write as "inf" where it is infinite."""
    return float(value)


def _typed_column(values: list[Any]) -> pd.Series:
    """Return values as a column of one type; missing values stay missing.

    Whole numbers become Int64, other numbers float64, truth values boolean. A column
    with text beside numbers becomes text.
    """
    present = [value for value in values if value is not None]
    if not present:
        return pd.Series([math.nan] * len(values), dtype="float64")
    if all(isinstance(value, list) for value in present):
        return pd.Series(values, dtype="object")
    if all(isinstance(value, bool) for value in present):
        return pd.Series(values, dtype="boolean")
    numeric = not any(isinstance(value, bool | str) for value in present)
    if numeric and all(isinstance(value, int) for value in present):
        return pd.Series(values, dtype="Int64")
    if numeric:
        return pd.Series(values, dtype="float64")
    texts = [None if value is None else _text(value) for value in values]
    return pd.Series(texts, dtype="string")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def write_runs(frame: pd.DataFrame, parquet: Path, csv: Path) -> None:
    """Write the frame of runs as Parquet, and as CSV without its lists."""
    with atomic_path(parquet) as temporary:
        frame.to_parquet(temporary, index=False)
    flat = frame.drop(columns=list(_LISTS))
    write_text(csv, flat.to_csv(index=False, lineterminator="\n"))


def collect_cells(
    results: str | Path, cells: Iterable[Mapping[str, Any]], runs: pd.DataFrame
) -> pd.DataFrame:
    """Return one row for each run of each cell of a table or figure.

    Args:
        results: the results folder.
        cells: the columns of `columns.CELLS` that the plan knows, for each row.
        runs: the frame of these runs.

    Raises:
        BenchError: the file of a test is missing or damaged.
    """
    names = [column.name for column in CELLS]
    frame = pd.DataFrame(list(cells))
    known = [column.name for column in TEST if column.name in names]
    frame = frame.merge(runs[["run", *known]], on="run", how="left")
    for index, row in frame[frame["test"].fillna("") != ""].iterrows():
        path = Path(results, "runs", row["run"], "tests", f"{row['test']}.json")
        with _naming(path):
            for name, value in _read_test(path).items():
                frame.at[index, name] = value
    frame["x"] = frame["x"].astype("float64")
    further = [name for name in frame if name not in names]
    return frame[[*names, *further]]


def write_cells(frame: pd.DataFrame, path: Path) -> None:
    """Write the frame of cells as Parquet."""
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, index=False)
