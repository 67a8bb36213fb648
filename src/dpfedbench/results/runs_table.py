"""Collect finished runs into one data frame, a row for each run."""

import json
import math
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dpfedbench.audit.findings import read_audits
from dpfedbench.config.sections import PartitionScheme
from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, read_group, write_text
from dpfedbench.results.columns import UNIT_PREFIXES, names, run_columns, sources
from dpfedbench.results_format import refuse_other_format
from dpfedbench.run import read_yaml

RUNS_FILE = "runs.parquet"
CELLS_FILE = "cells.parquet"
SEPARATOR = " | "
"""Stands between the notices of a run."""
_NONE: Mapping[str, str] = types.MappingProxyType({})


def collect_runs(
    results: str | Path,
    runs: Iterable[str],
    *,
    papers: Mapping[str, str] = _NONE,
    audited_runs: Mapping[str, str] = _NONE,
) -> pd.DataFrame:
    """Read the folders of runs into a frame with one row for each run.

    Args:
        results: the results folder.
        runs: folders of runs below `results/runs`, such as
            `dp-agr/glyphs/5way-1shot/0123456789/seed0`.
        papers: the paper that each method belongs to.
        audited_runs: for a run, the run whose audit stands for it. Without an entry, or
            with an empty one, the run's own audit counts, if there is one.

    Returns:
        The columns of `columns.run_columns`, and then one column for each value of the
        configurations. Values that a run does not have are missing.

    Raises:
        BenchError: a file of a run is missing or damaged.
    """
    rows = []
    for run in sorted(set(runs)):
        row = _read_run(Path(results, "runs"), run, audited_runs.get(run) or run)
        rows.append({**row, "paper": papers.get(row["method"], "")})
    settings = sorted({name for row in rows for name in row} - set(run_columns()))
    columns = {
        name: _typed_column([row.get(name) for row in rows])
        for name in [*run_columns(), *settings]
    }
    return pd.DataFrame(columns)


def _read_run(runs: Path, run: str, audited_run: str) -> dict[str, Any]:
    """Return one run's row: its values by the names of the columns."""
    method, dataset, task, key, seed = Path(run).parts
    values = read_yaml(runs / run / "config.yaml")
    origin = PartitionScheme.origin_of(values)
    number = int(seed.removeprefix("seed"))
    identity = [run, "", method, dataset, task, key, number, origin]
    audit_path = runs / audited_run / "audit.json"
    audits = {}
    if audit_path.exists():
        audits = read_audits(audit_path)
    return {
        **dict(_flatten(values)),
        **dict(zip(names("identity"), identity, strict=True)),
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
            if isinstance(value, list):
                value = json.dumps(value)
            yield f"{prefix}{name}", value


def _read_test(path: Path) -> dict[str, Any]:
    metrics = read_group(path)
    row = {
        "accuracy": metrics["accuracy"],
        "accuracy_low": metrics.get("ci_low"),
        "accuracy_high": metrics.get("ci_high"),
    }
    if "records" in metrics:
        return row | {"test_unit": "record", "test_count": metrics["records"]}
    of_tasks = metrics["per_task"]
    row |= {"test_unit": "task", "test_count": len(of_tasks)}
    return row | {"task_accuracies": of_tasks}


def _read_training(path: Path) -> dict[str, Any]:
    training = read_group(path)
    refuse_other_format(training, str(path.parent))
    versions = training.get("versions", {})
    row = _values(training, "training") | _values(training, "personal")
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
        observer = unit["profiles"].get("proven", {}).get("observer", "")
        if audit := audits.get((unit.get("unit"), observer)):
            unit["audit"] = {**audit, "run": audited_run}
        values = _values(unit, "privacy")
        if unit.get("unit"):
            reasons = unit.get("reasons", {})
            for name in ("claimed", "proven"):
                column = f"{name}_explanation"
                values[column] = values[column] or reasons.get(name)
        row |= {f"{prefix}{name}": value for name, value in values.items()}
    return row


def _values(content: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return a group of columns of the content of a JSON file."""
    return {name: _value(content, source) for name, source in sources(group).items()}


def _value(content: Mapping[str, Any], source: str) -> Any:
    """Return the value at a path. A section that is missing has no values; one that is
    there has all. JSON files write an infinite ε as the text "inf".
    """
    *sections, name = source.split(".")
    for section in sections:
        if section not in content:
            return None
        content = content[section]
    value = content[name] if sections else content.get(name)
    return math.inf if value == "inf" else value


def _typed_column(values: list[Any]) -> pd.Series:
    """Return values as a column of one type; missing values stay missing.

    Whole numbers become Int64, other numbers float64, truth values boolean. A column
    with text beside numbers becomes text.
    """
    kinds = {type(value) for value in values if value is not None}
    dtypes = {
        bool: "boolean",
        int: "Int64",
        list: "object",
    }
    if kinds <= {int, float} and kinds != {int}:
        return pd.Series(values, dtype="float64")
    if len(kinds) == 1 and kinds <= set(dtypes):
        return pd.Series(values, dtype=dtypes[kinds.pop()])
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
    test_names = [name for name in names("test") if name in names("cells")]
    own_tests = runs.set_index("run")[test_names]
    rows = []
    for cell in cells:
        test = dict[Any, Any](own_tests.loc[cell["run"]])
        if cell["test"]:
            folder = Path(results, "runs", cell["run"])
            test = _read_test(folder / "tests" / f"{cell['test']}.json")
        rows.append({**dict.fromkeys(names("cells")), **cell, **test})
    return pd.DataFrame(rows).astype({"x": "float64", "test_count": "Int64"})
