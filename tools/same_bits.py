"""Compare this checkout with another commit on this machine: bits of the golden cases,
and keys of all planned runs.

`uv run python tools/same_bits.py BASE` checks BASE out beside this tree. With the code
of each of the two trees it computes:

- the golden cases (`tests/golden/runs.py`): hashes of model, ledger, metrics, account,
  history and audit;
- every preset: the configurations of all runs of its plan, and their keys. A renamed
  value (`RENAMED`) counts as the same.

It prints the differences and exits with 1 if there are any. The recorded hashes
(`tests/golden/golden.json`) hold on one kind of processor; the comparison works on any.
`--cases TEXT` takes only cases whose name contains TEXT, `--keys no` leaves the plans
out. Uncommitted changes of this tree are compared as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
RENAMED = {"as_claimed": "claimed", "holds": "proven"}
"""Values of `profile` that had another name."""
PARTS = ("model", "ledger", "metrics", "account", "history", "audit")


def main() -> int:
    """Compare the trees, print the differences, and return the exit status."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "base", help="the commit to compare with, or the folder of a checkout of it"
    )
    arguments.add_argument(
        "--cases", default="", help="only golden cases whose name contains this text"
    )
    arguments.add_argument(
        "--keys",
        choices=("yes", "no"),
        default="yes",
        help="whether to compare run keys",
    )
    arguments.add_argument("--tree", help=argparse.SUPPRESS)
    arguments.add_argument("--plan", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.plan is not None:
        _print_plan(Path(options.tree), options.plan)
        return 0
    if options.tree:
        _run_cases(Path(options.tree), options.cases)
        return 0
    with _check_out(options.base) as before:
        cases = [_start(tree, options.cases) for tree in (before, HERE)]
        before_cases, after_cases = (_read(process) for process in cases)
        if options.keys == "no" and not before_cases | after_cases:
            sys.exit(
                f"no golden case has {options.cases!r} in its name: nothing compared"
            )
        moved = _compare_cases(before_cases, after_cases)
        if options.keys == "yes":
            presets = sorted(
                {path.stem for path in (HERE / "config" / "presets").glob("*.yaml")}
            )
            for preset in ("", *presets):
                moved |= _compare_keys(
                    preset or "default",
                    *(_read_configurations(tree, preset) for tree in (before, HERE)),
                )
    print("something differs" if moved else "all the same")
    return int(moved)


@contextlib.contextmanager
def _check_out(commit: str) -> Iterator[Path]:
    """Yield a temporary clone of this repository at a commit.

    If `commit` is the folder of a checkout, yield that folder.
    """
    if Path(commit, "Snakefile").exists():
        yield Path(commit).resolve()
        return
    with tempfile.TemporaryDirectory() as root:
        tree = Path(root, "base")
        subprocess.run(
            ["git", "clone", "--quiet", "--shared", str(HERE), str(tree)], check=True
        )
        subprocess.run(
            ["git", "checkout", "--quiet", _resolve_commit(commit)],
            cwd=tree,
            check=True,
        )
        yield tree


def _resolve_commit(name: str) -> str:
    """Return the hash of a commit, or exit if there is no such commit."""
    process = subprocess.run(
        ["git", "rev-parse", f"{name}^{{commit}}"],
        cwd=HERE,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        sys.exit(f"{name} is not a commit of this repository")
    return process.stdout.strip()


# Golden cases


def _make_environment(tree: Path) -> dict[str, str]:
    sources = [tree / "src", *sorted(tree.glob("packages/*/src")), tree]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "OMP_NUM_THREADS": "1",
    }


def _start(tree: Path, cases: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "-", "--tree", str(tree), "--cases", cases]
    return subprocess.Popen(
        command,
        cwd=tree,
        env=_make_environment(tree),
        stdout=subprocess.PIPE,
        text=True,
    )


def _run_cases(tree: Path, text: str) -> None:
    """Print the hashes of a tree's golden cases as JSON.

    A case that fails has its error in place of the hashes.
    """
    sys.path[0] = str(tree)  # not the folder of this file, which is another tree's
    from tests.golden import runs

    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        data = runs.make_data(Path(root) / "data")
        for number, name in enumerate(name for name in runs.CASES if text in name):
            folder = Path(root, str(number))
            try:
                with (
                    contextlib.redirect_stderr(io.StringIO()),
                    contextlib.redirect_stdout(io.StringIO()),
                ):
                    runs.files_of(name, data, folder)
                results[name] = runs.found_of(folder)
            except Exception as error:
                results[name] = {
                    "hashes": dict.fromkeys(PARTS, f"{type(error).__name__}: {error}"),
                    "plain": {},
                }
    print(json.dumps(results))


def _read(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode:
        sys.exit("the golden cases could not be run (the error stands above)")
    return dict(json.loads(output.splitlines()[-1]))


def _compare_cases(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Print the cases that differ, with their numbers, and return whether any do."""
    moved = 0
    for name in sorted(before.keys() | after.keys()):
        old = before.get(name)
        new = after.get(name)
        if old is None or new is None:
            print(f"{name}: {'new' if old is None else 'gone'}")
            continue
        parts = [
            part for part in PARTS if old["hashes"].get(part) != new["hashes"].get(part)
        ]
        if not parts:
            continue
        moved += 1
        print(f"{name}: {', '.join(parts)} differ")
        for error in {
            new["hashes"][part] for part in parts if ": " in str(new["hashes"][part])
        }:
            print(f"  {error}")
        for key in sorted(old["plain"].keys() | new["plain"].keys()):
            if old["plain"].get(key) != new["plain"].get(key):
                print(f"  {key}: {old['plain'].get(key)} -> {new['plain'].get(key)}")
    print(f"golden cases: {len(before.keys() & after.keys())} compared, {moved} differ")
    return moved > 0


# Keys


def _print_plan(tree: Path, preset: str) -> None:
    """Print the folder and configuration of each run of a preset as JSON."""
    sys.path[0] = str(tree)

    # The configuration's module has `read_file` in older trees too.
    from dpfedbench.experiments import configuration
    from dpfedbench.experiments.configuration import Configuration, overlaid, read_file
    from dpfedbench.experiments.expand import make_plan
    from dpfedbench.papers import read_run

    try:
        from dpfedbench.run import Run

        run_of = Run.another
    except ImportError:  # a commit before a run had a module of its own
        run_of = read_run

    def resolve_runs(values: Any) -> Any:
        """Return values with each run that they name (`initial.run`) written out."""
        if not isinstance(values, Mapping):
            return values
        return {
            key: resolve_runs(
                run_of({"seed": 0, **value}).plain() if key == "run" else value
            )
            for key, value in values.items()
        }

    config = tree / "config"
    if hasattr(configuration, "shipped_files"):
        files = configuration.shipped_files(config, preset)
    else:  # a commit of which plugins bring no experiments
        experiments = sorted((config / "experiments").glob("*.yaml"))
        files = [config / "config.yaml", *experiments]
    if preset:
        files.append(config / "presets" / f"{preset}.yaml")
    plan = make_plan(Configuration.read(overlaid(*map(read_file, files))))
    runs = {folder: resolve_runs(run.plain()) for folder, run in plan.runs.items()}
    print(json.dumps(runs))


def _read_configurations(tree: Path, preset: str) -> dict[str, str]:
    """Return the folder of each run of a preset by its configuration, as text."""
    command = [sys.executable, __file__, "-", "--tree", str(tree), "--plan", preset]
    output = subprocess.run(
        command, cwd=tree, env=_make_environment(tree), capture_output=True, text=True
    )
    if output.returncode:
        sys.exit(
            f"the plan of {preset or 'the default'} in {tree} could not be read:"
            f" {output.stderr.strip().splitlines()[-1]}"
        )
    runs = json.loads(output.stdout.splitlines()[-1])
    return {json.dumps(_rename(run), sort_keys=True): key for key, run in runs.items()}


def _rename(values: Any) -> Any:
    """Return a configuration in which renamed values have their present names."""
    if isinstance(values, Mapping):
        return {
            key: RENAMED.get(value, value) if key == "profile" else _rename(value)
            for key, value in values.items()
        }
    return values


def _compare_keys(
    preset: str, before: Mapping[str, str], after: Mapping[str, str]
) -> bool:
    """Print the runs that only one tree has, and the number of changed keys.

    Returns:
        Whether a run is in one tree only.
    """
    for sign, runs, other_runs in (("-", before, after), ("+", after, before)):
        for configuration in sorted(runs.keys() - other_runs.keys()):
            print(f"{sign} {runs[configuration]}")
    common = before.keys() & after.keys()
    removed = len(before) - len(common)
    added = len(after) - len(common)
    moved = sum(before[run] != after[run] for run in common)
    print(
        f"{preset}: {len(common)} runs have the same configuration, {moved} of them"
        f" another key; {removed} gone, {added} new"
    )
    return before.keys() != after.keys()


if __name__ == "__main__":
    raise SystemExit(main())
