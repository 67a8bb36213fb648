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
    PERSONAL,
    TEST,
    TRAINING,
    UNIT_PREFIXES,
    names,
    run_columns,
)
from dpfedbench.results.format import refuse_newer
from dpfedbench.settings.run import read_yaml
from dpsum.accounting.account import Account

RUNS_FILE = "runs.parquet"
CELLS_FILE = "cells.parquet"
SEPARATOR = " | "
"""Stands between the notices of a run."""

_CLAIMED = {
    "epsilon_low": "epsilon_claimed_low",
    "epsilon_high": "epsilon_claimed",
    "status": "claimed_status",
    "explanation": "claimed_explanation",
}
_PROVEN = {
    "adjacency": "adjacency",
    "observer": "observer",
    "epsilon_low": "epsilon_proven_low",
    "epsilon_high": "epsilon_proven_high",
    "status": "proven_status",
    "explanation": "proven_explanation",
}
_PROFILES = {
    "as_claimed": _CLAIMED,
    "holds": _PROVEN,
    "replace_one": {"epsilon_high": "epsilon_replace_one"},
    "image_level": {
        "epsilon_high": "epsilon_image_level",
        "explanation": "image_level_explanation",
    },
    "tuning": {"epsilon_high": "epsilon_tuning"},
}
"""Profiles of an account: their values, and the columns that these become."""

_AUDIT = {
    "epsilon": "epsilon_audited",
    "confidence": "audit_confidence",
    "status": "audit_status",
    "method": "audit_method",
    "reason": "audit_reason",
    "epsilon_ideal": "epsilon_ideal_audit",
    "epsilon_proven": "epsilon_proven_at_audit",
    "another_mechanism": "audit_saw_another_mechanism",
}
"""Values of an audit, and the columns that they become."""

_AUDIT_DEFAULTS = {
    **dict.fromkeys(("status", "method", "reason", "epsilon_ideal")),
    "epsilon_proven": math.inf,
    "another_mechanism": False,
}
"""Values that an audit need not have."""


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
    rows = []
    for run in sorted(set(runs)):
        audited_run = (audited_runs or {}).get(run, run)
        with _naming(Path(results, "runs", run)):
            rows.append(read_run(results, run, papers or {}, audited_run))
    fixed_names = run_columns()
    setting_names = sorted({name for row in rows for name in row} - set(fixed_names))
    columns = {
        name: _typed_column([row.get(name) for row in rows])
        for name in [*fixed_names, *setting_names]
    }
    return pd.DataFrame(columns)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the place of a result that lacks a value.

    Raises:
        BenchError: in place of an error about the value.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchError(
            f"a result of {path} lacks {error}: delete that folder and run the"
            " workflow again"
        ) from error


def read_run(
    results: str | Path, run: str, papers: Mapping[str, str], audited_run: str
) -> dict[str, Any]:
    """Return one run's row: its values by the names of the columns.

    Raises:
        BenchError: a file of the run is missing or damaged.
    """
    runs = Path(results, "runs")
    method, *further, seed = Path(run).parts
    seed_number = int(seed.removeprefix("seed"))
    identity = [run, papers.get(method, ""), method, *further, seed_number]
    audit_path = runs / audited_run / "audit.json"
    audits = read_audits(audit_path) if audit_path.exists() else {}
    return {
        **dict(_flatten(read_yaml(runs / run / "config.yaml"))),
        **dict(zip(names(IDENTITY), identity, strict=True)),
        **_read_test(runs / run / "metrics.json"),
        **_read_training(runs / run / "training.json"),
        **_read_privacy(runs / run / "privacy.json", audits, audited_run),
    }


def _flatten(
    settings: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of nested settings; a list becomes JSON text."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            is_list = isinstance(value, list)
            yield f"{prefix}{name}", json.dumps(value) if is_list else value


def _read_test(path: Path) -> dict[str, Any]:
    metrics = read_group(path)
    if "records" in metrics:
        tested = {"test_unit": "record", "test_count": metrics["records"]}
    else:
        of_tasks = metrics["per_task"]
        tested = {"test_unit": "task", "test_count": len(of_tasks)}
        tested["task_accuracies"] = of_tasks
    return {
        "accuracy": metrics["accuracy"],
        "accuracy_low": metrics.get("ci_low"),
        "accuracy_high": metrics.get("ci_high"),
        **tested,
    }


def _read_training(path: Path) -> dict[str, Any]:
    training = read_group(path)
    refuse_newer(training, str(path.parent))
    row = {name: training.get(name) for name in names([*TRAINING, *PERSONAL])}
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
    units = [account, *account.get("also", ())]
    if len(units) > len(UNIT_PREFIXES):
        raise BenchError(
            f"{path} accounts for {len(units)} units and observers, and the frame of"
            f" runs has room for {len(UNIT_PREFIXES)}: add a prefix to UNIT_PREFIXES"
        )
    row = dict[str, Any]()
    for prefix, unit in zip(UNIT_PREFIXES, units, strict=False):
        values = _privacy_of_unit(unit)
        audit = audits.get((values["unit"], values.get("observer", "")))
        if audit is not None:
            values |= _renamed({**_AUDIT_DEFAULTS, **audit}, _AUDIT)
            values["audit_chance"] = audit.get("chance", 1 - audit["confidence"])
            values["audited_run"] = audited_run
        row |= {f"{prefix}{name}": value for name, value in values.items()}
    return row


def _privacy_of_unit(account: Mapping[str, Any]) -> dict[str, Any]:
    """Return the privacy columns of one unit, without those of the audit."""
    values = {
        "unit": account.get("unit"),
        "delta": account.get("delta"),
        "accounted_multiplier": account.get("noise_multiplier"),
    }
    if values["unit"] is not None:
        reasons = account.get("reasons", {})
        values["claimed_explanation"] = reasons.get("as_claimed")
        values["proven_explanation"] = reasons.get("holds")
    for profile, columns in _PROFILES.items():
        if (entry := account["profiles"].get(profile)) is not None:
            values |= _renamed(entry, columns)
    return values


def _renamed(entry: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return values by the names of their columns. JSON files write an infinite ε as
    the text "inf".
    """
    return {
        column: float(entry[name]) if entry[name] == "inf" else entry[name]
        for name, column in columns.items()
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


def _typed_column(values: list[Any]) -> pd.Series:
    """Return values as a column of one type; missing values stay missing.

    Whole numbers become Int64, other numbers float64, truth values boolean. A column
    with text beside numbers becomes text.
    """
    types = {type(value) for value in values if value is not None}
    dtypes = {bool: "boolean", int: "Int64", list: "object"}
    if len(types) == 1 and (dtype := dtypes.get(next(iter(types)))):
        return pd.Series(values, dtype=dtype)
    if types <= {int, float}:
        return pd.Series(values, dtype="float64")
    texts = [
        value if value is None or isinstance(value, str) else json.dumps(value)
        for value in values
    ]
    return pd.Series(texts, dtype="string")


def write_runs(frame: pd.DataFrame, parquet: Path, csv: Path) -> None:
    """Write the frame of runs as Parquet, and as CSV without its lists."""
    write_frame(frame, parquet)
    flat = frame.drop(columns="task_accuracies")
    write_text(csv, flat.to_csv(index=False, lineterminator="\n"))


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as Parquet."""
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, index=False)


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
    frame = pd.DataFrame(list(cells))
    cell_names = names(CELLS)
    test_names = [name for name in names(TEST) if name in cell_names]
    frame = frame.merge(runs[["run", *test_names]], on="run", how="left")
    for index, row in frame[frame["test"].fillna("") != ""].iterrows():
        path = Path(results, "runs", row["run"], "tests", f"{row['test']}.json")
        with _naming(path):
            for name, value in _read_test(path).items():
                frame.at[index, name] = value
    frame["x"] = frame["x"].astype("float64")
    further = [name for name in frame if name not in cell_names]
    return frame[[*cell_names, *further]]
