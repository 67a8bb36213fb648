"""Compare the planned cells of this checkout with those of another commit.

`uv run python tools/same_cells.py BASE` checks BASE out beside this tree and plans
every preset with the code and the configuration of each of the two trees. For each run
of each cell it compares the resolved configuration, the folder (whose name has the
run's key), the meta-test, the label, the variant and the reason for a mismatch with the
published value; and for each run of a plan its configuration. It prints the entries
that differ, value by value, and exits with 1 if there are any.

`tests/dpfedbench/planned_cells.json` has a hash of the entries of each table and
figure, which `tests/dpfedbench/test_planned_cells.py` compares. `--write` writes it.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
DIGESTS = HERE / "tests" / "dpfedbench" / "planned_cells.json"
RUNS = "runs"
"""Name of the group with all runs of a plan, beside the tables and figures."""

Entries = dict[str, dict[str, dict[str, Any]]]
"""Entries of a plan by table or figure ("paper/item", or `RUNS`) and by name."""


def main() -> int:
    """Compare the trees, or write the hashes; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?", help="the commit, or a checkout of it")
    parser.add_argument("--write", action="store_true", help=f"write {DIGESTS.name}")
    parser.add_argument("--plan", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        tree, preset = options.plan
        print(json.dumps(list_entries(Path(tree), preset)))
        return 0
    if options.write:
        text = json.dumps(make_digests(HERE), indent=1, sort_keys=True)
        DIGESTS.write_text(f"{text}\n", encoding="utf-8")
        return 0
    if options.base is None:
        parser.error("name a commit to compare with, or give --write")
    with tempfile.TemporaryDirectory() as folder:
        base = _check_out(options.base, Path(folder, "base"))
        return int(_compare_trees(base))


def presets_of(tree: Path) -> list[str]:
    """Return the names of a tree's presets, and "default"."""
    files = (tree / "config" / "presets").glob("*.yaml")
    return ["default", *sorted(file.stem for file in files)]


def list_entries(tree: Path, preset: str) -> Entries:
    """Return the entries of a preset, with the library that this process imports.

    Args:
        tree: the checkout whose configuration is read.
        preset: name of the preset; "default" for none.
    """
    from dpfedbench.config.yaml_files import read_file
    from dpfedbench.experiments.configuration import Configuration, overlaid
    from dpfedbench.experiments.expand import make_plan

    files = list_files(tree, "" if preset == "default" else preset)
    plan = make_plan(Configuration.read(overlaid(*map(read_file, files))))
    entries: Entries = {
        f"{item.paper}/{item.name}": _entries_of_item(item)
        for item in plan.items.values()
    }
    entries[RUNS] = {
        folder: {"values": run.plain()} for folder, run in plan.runs.items()
    }
    return entries


def list_files(tree: Path, preset: str = "") -> list[Path]:
    """Return the files of a tree's configuration, with the library of this process."""
    from dpfedbench.experiments import configuration

    config = tree / "config"
    if hasattr(configuration, "shipped_files"):
        files = configuration.shipped_files(config, preset)
    else:  # a commit of which plugins bring no experiments
        experiments = sorted((config / "experiments").glob("*.yaml"))
        files = [config / "config.yaml", *experiments]
    if preset:
        files.append(config / "presets" / f"{preset}.yaml")
    return files


def _entries_of_item(item: Any) -> dict[str, dict[str, Any]]:
    """Return one entry for each run of each cell of a table or figure.

    The cells of a series are numbered; the order of the series is not compared.
    """
    entries: dict[str, dict[str, Any]] = {}
    numbers = collections.Counter[str]()
    for cell in item.cells:
        number = numbers[cell.series]
        numbers[cell.series] += 1
        tests = cell.tests or (None,) * len(cell.runs)
        for run, test in zip(cell.runs, tests, strict=True):
            entries[f"{cell.series}, cell {number}, x {cell.x}, seed {run.seed}"] = {
                "values": run.plain(),
                "folder": run.folder,
                "test": test and test.plain(),
                "label": cell.label,
                "variant": cell.variant,
                "mismatch": cell.mismatch,
            }
    return entries


def make_digests(tree: Path) -> dict[str, dict[str, str]]:
    """Return a hash of the entries of each table and figure, by preset."""
    return {
        preset: digests_of(list_entries(tree, preset)) for preset in presets_of(tree)
    }


def digests_of(entries: Entries) -> dict[str, str]:
    """Return the number and the hash of the entries of each table and figure."""
    return {
        item: f"{len(of_item)} {_hash(of_item)}" for item, of_item in entries.items()
    }


def _hash(entries: Mapping[str, Any]) -> str:
    """Return the first 12 digits of the sha256 of entries as JSON."""
    text = json.dumps(entries, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# Two trees


def _check_out(commit: str, folder: Path) -> Path:
    """Clone this repository at a commit into a folder; return the folder.

    If `commit` is the folder of a checkout, return that folder.
    """
    if Path(commit, "Snakefile").exists():
        return Path(commit).resolve()
    resolved = subprocess.run(
        ["git", "-C", HERE, "rev-parse", f"{commit}^{{commit}}"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if resolved.returncode:
        sys.exit(f"{commit} is not a commit of this repository")
    clone = ["git", "clone", "--quiet", "--shared", "--no-checkout", HERE, folder]
    subprocess.run(clone, check=True)
    checkout = ["git", "-C", folder, "checkout", "--quiet", resolved.stdout.strip()]
    subprocess.run(checkout, check=True)
    return folder


def _compare_trees(base: Path) -> bool:
    """Print the entries that differ; return whether there are any."""
    presets = dict.fromkeys([*presets_of(base), *presets_of(HERE)])
    moved = 0
    compared = 0
    for preset in presets:
        before = _read_entries(base, preset)
        after = _read_entries(HERE, preset)
        for item in dict.fromkeys([*before, *after]):
            old = before.get(item, {})
            new = after.get(item, {})
            for name in dict.fromkeys([*old, *new]):
                compared += 1
                if old.get(name) != new.get(name):
                    moved += 1
                    print(f"{preset}, {item}, {name}:")
                    _print_difference(old.get(name), new.get(name))
    print(f"{compared} entries compared, {moved} differ")
    return moved > 0


def _read_entries(tree: Path, preset: str) -> Entries:
    """Return the entries of a preset, with the code of a tree."""
    if preset not in presets_of(tree):
        return {}
    process = subprocess.run(
        [sys.executable, __file__, "--plan", str(tree), preset],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if process.returncode:
        sys.exit(f"the preset {preset} of {tree} could not be planned (see above)")
    entries: Entries = json.loads(process.stdout.splitlines()[-1])
    return entries


def _print_difference(old: Any, new: Any) -> None:
    """Print the values in which two entries differ."""
    if old is None or new is None:
        print("  new" if old is None else "  gone")
        return
    old_leaves = dict(_leaves(old))
    new_leaves = dict(_leaves(new))
    for key in dict.fromkeys([*old_leaves, *new_leaves]):
        before = old_leaves.get(key, "absent")
        after = new_leaves.get(key, "absent")
        if before != after:
            print(f"  {key}: {before} -> {after}")


def _leaves(value: Any, key: str = "") -> list[tuple[str, Any]]:
    """Return the values of a nested mapping with their dotted keys."""
    if not isinstance(value, Mapping):
        return [(key, value)]
    return [
        leaf
        for name, item in value.items()
        for leaf in _leaves(item, f"{key}.{name}" if key else str(name))
    ]


if __name__ == "__main__":
    raise SystemExit(main())
