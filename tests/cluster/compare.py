"""Compare two results folders bit for bit, apart from what a clock wrote."""

import csv
import json
from pathlib import Path
from typing import Any

# Durations, the machine and interruptions: values that no table or figure shows.
SPEEDS = {"seconds", "clients_per_second", "records_per_second"}
SPEEDS |= {"milliseconds_per_client", "milliseconds_per_record"}
CLOCK = {
    "training.json": SPEEDS | {"resumed", "threads", "processes", "machine"},
    "history.csv": {"seconds"},
    "audit.json": {"seconds"},
}
# Logs and costs, provenance, the state of a training under way, and the page and the
# frame that show all three; audits as one job made them, whose copies in the runs'
# folders are compared; and checksums, which are of a clock's values too.
LEFT_OUT = {
    "logs",
    "benchmark",
    "checkpoint",
    "provenance.json",
    "index.html",
    "so-far",
}
LEFT_OUT |= {"runs.parquet", "runs.csv", "audits", "manifest", "results.zip"}


def files(root: Path) -> dict[str, Path]:
    """Return the compared files by their relative path; tables of time are left out."""
    compared = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        is_left_out = LEFT_OUT & set(relative.parts) or path.stem.endswith("-time")
        if path.is_file() and not is_left_out:
            compared[str(relative)] = path
    return compared


def without_clock(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in CLOCK[name]}


def content(path: Path) -> Any:
    """Return the compared content of a file: its bytes, or the values that no clock
    wrote; of a table all lines but that with its command.
    """
    if path.name in ("training.json", "audit.json"):
        values = json.loads(path.read_text(encoding="utf-8"))
        return without_clock(values, path.name)
    if path.name == "history.csv":
        with open(path, newline="", encoding="utf-8") as handle:
            return [without_clock(row, path.name) for row in csv.DictReader(handle)]
    if path.suffix == ".md":
        lines = path.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if "snakemake --" not in line]
    return path.read_bytes()


def differences(
    results: Path, expected: Path, *, part: bool = False
) -> tuple[list[str], int]:
    """Return one line for each difference, and the number of compared files.

    Args:
        results: the folder that is judged.
        expected: the folder that it has to equal.
        part: `results` may lack files that `expected` has.
    """
    ours = files(results)
    reference = files(expected)
    lines = [f"{name} should not be there" for name in sorted(ours.keys() - reference)]
    if not part:
        lines += [f"{name} is missing" for name in sorted(reference.keys() - ours)]
    shared = sorted(ours.keys() & reference)
    for name in shared:
        if content(ours[name]) != content(reference[name]):
            lines.append(f"{name} differs")
    return lines, len(shared)
