"""Collect finished runs into one data frame, a row for each run."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, read_group, write_text
from dpfedbench.results.columns import CELLS, IDENTITY, PRIVACY, run_columns
from dpfedbench.settings.run import read_yaml

RUNS_FILE = "runs.parquet"
CELLS_FILE = "cells.parquet"

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
        try:
            rows.append(read_run(results, run, papers=papers, audited_run=audited_run))
        except (KeyError, TypeError, ValueError) as error:
            raise BenchError(
                f"a result of {Path(results, 'runs', run)} lacks {error}: delete that"
                " folder and run the workflow again"
            ) from error
    fixed_names = [column.name for column in run_columns()]
    setting_names = sorted({name for row in rows for name in row} - set(fixed_names))
    columns = {
        name: _typed_column([row.get(name) for row in rows])
        for name in [*fixed_names, *setting_names]
    }
    return pd.DataFrame(columns)


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
    audits = _read_audits(audit_path) if audit_path.exists() else {}
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
    unit = "record" if "records" in metrics else "task"
    return {
        "accuracy": metrics.get("accuracy"),
        "accuracy_low": metrics.get("ci_low"),
        "accuracy_high": metrics.get("ci_high"),
        "test_unit": unit,
        "test_count": metrics.get(f"{unit}s"),
        "task_accuracies": metrics.get("per_task"),
    }


def _read_training(path: Path) -> dict[str, Any]:
    training = read_group(path)
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
    row["notices"] = "; ".join(training.get("notices", ()))
    accuracies = [100 * member["accuracy"] for member in training.get("members", ())]
    if accuracies:
        row["validation_accuracy"] = sum(accuracies) / len(accuracies)
    return row


def _read_privacy(
    path: Path, audits: Mapping[tuple[str, str], Mapping[str, Any]], audited_run: str
) -> dict[str, Any]:
    """Return the privacy columns of a run, of its first and of its second unit."""
    account = read_group(path)
    row = dict[str, Any]()
    units = [account, *account.get("also", ())]
    for prefix, unit in zip(("", "second_"), units, strict=False):
        values = _privacy_of_unit(unit)
        audit = audits.get((values["unit"], values["observer"]))
        if audit is not None:
            values |= {
                "epsilon_audited": _number(audit["epsilon"]),
                "audit_confidence": audit["confidence"],
                "audit_status": audit["status"],
                "audited_run": audited_run,
            }
        row |= {f"{prefix}{name}": value for name, value in values.items()}
    return row


def _privacy_of_unit(account: Mapping[str, Any]) -> dict[str, Any]:
    """Return the privacy columns of one unit, without those of the audit."""
    values = dict[str, Any]({column.name: None for column in PRIVACY})
    profiles = account.get("profiles", {})
    values |= {"unit": account.get("unit"), "delta": account.get("delta")}
    if claimed := profiles.get("as_claimed"):
        values |= {
            "epsilon_claimed": _number(claimed["epsilon_high"]),
            "claimed_status": claimed["status"],
        }
    if proven := profiles.get("holds"):
        values |= {
            "adjacency": proven["adjacency"],
            "observer": proven["observer"],
            "epsilon_proven_low": _number(proven["epsilon_low"]),
            "epsilon_proven_high": _number(proven["epsilon_high"]),
            "proven_status": proven["status"],
            "proven_explanation": proven["explanation"],
        }
    for profile, name in _PROFILES.items():
        if entry := profiles.get(profile):
            values[name] = _number(entry["epsilon_high"])
    return values


def _read_audits(path: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the audits of a run by unit and observer."""
    audit = read_group(path)
    if audit["epsilon"] is None:
        return {}
    audits = [*audit.get("also", ()), audit]
    return {(entry["unit"], entry["observer"]): entry for entry in audits}


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


def write_cells(cells: Iterable[Sequence[Any]], path: Path) -> None:
    """Write which runs each cell of a table or figure shows, as Parquet.

    Args:
        cells: for each run of a cell the values of `columns.CELLS`, in order.
        path: the file to write.
    """
    frame = pd.DataFrame(list(cells), columns=[column.name for column in CELLS])
    frame["x"] = frame["x"].astype("float64")
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, index=False)
