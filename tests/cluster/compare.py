"""Whether two results folders say the same, bit for bit, apart from what a clock
wrote.
"""

import csv
import json
from pathlib import Path
from typing import Any

# How long it took, where, how often it was interrupted; nothing that any table or
# figure shows.
CLOCK = {
    "training.json": {
        "seconds",
        "clients_per_second",
        "records_per_second",
        "milliseconds_per_client",
        "milliseconds_per_record",
        "resumed",
        "threads",
        "processes",
        "machine",
    },
    "history.csv": {"seconds"},
    "audit.json": {"seconds"},
}
# Logs and costs, what made the results, the state of a training under way, and the page
# and the frame that show all three; audits as one job made them, whose copies in the
# runs' folders are compared; and checksums, which are of what a clock wrote too.
LEFT_OUT = {
    "logs",
    "benchmark",
    "checkpoint",
    "provenance.json",
    "index.html",
    "runs.parquet",
    "runs.csv",
    "audits",
    "manifest",
    "results.zip",
}


def files(root: Path) -> dict[str, Path]:
    """The files that are compared, by their place."""
    found = {
        path.relative_to(root): path
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    kept = {
        place: path for place, path in found.items() if not LEFT_OUT & set(place.parts)
    }
    # Tables of time have it in their names.
    return {
        str(place): path
        for place, path in kept.items()
        if not place.stem.endswith("-time")
    }


def content(path: Path) -> Any:
    """What counts of a file: its bytes, or the values that no clock wrote."""
    if path.name in ("training.json", "audit.json"):
        values = json.loads(path.read_text(encoding="utf-8"))
        return {
            key: value for key, value in values.items() if key not in CLOCK[path.name]
        }
    if path.name == "history.csv":
        with open(path, newline="", encoding="utf-8") as handle:
            return [
                {
                    key: value
                    for key, value in row.items()
                    if key not in CLOCK[path.name]
                }
                for row in csv.DictReader(handle)
            ]
    if path.suffix == ".md":  # a table says by which command it was made
        return [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if "snakemake --" not in line
        ]
    return path.read_bytes()


def differences(
    found: Path, wanted: Path, *, part: bool = False
) -> tuple[list[str], int]:
    """What differs between two results folders, one line each, and how many files were
    compared.

    Args:
        found: the folder that is judged.
        wanted: the folder it is to equal.
        part: `found` may lack files that `wanted` has.
    """
    ours, theirs = files(found), files(wanted)
    said = [
        f"{place} should not be there" for place in sorted(ours.keys() - theirs.keys())
    ]
    if not part:
        said += [f"{place} is missing" for place in sorted(theirs.keys() - ours.keys())]
    both = sorted(ours.keys() & theirs.keys())
    return said + [
        f"{place} differs"
        for place in both
        if content(ours[place]) != content(theirs[place])
    ], len(both)
