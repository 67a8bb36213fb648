"""Trace the way of a noise multiplier from YAML to its draw.

`uv run python tools/trace_multiplier.py [TREE]` runs DP-AGR for one round at the sizes
of the golden cases, with the code of this tree or of another checkout (`git worktree
add`). Tracing begins when the run's config.yaml is read, and ends at the first draw of
noise. It prints three numbers:

- calls: calls of functions in `src/` with an argument that holds z. Lambdas and
  comprehensions are not counted. An argument holds z if it is z, or if it is a
  collection or an object of the project that has z within two steps: `run.noise` is one
  step, `run.noise.multiplier` two.
- files: files of these functions.
- returns: calls into a file that an earlier call was in, from another file.

Training uses torch and no compiled kernels, whose compilation would take a minute.
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
CASE = "dp-agr constant one-pass"
MULTIPLIER = 1.2345678
STEPS = 2
DRAW = "standard"
"""Method of a noise that draws it (`dpsum.noise.Noise.standard`)."""
ARGUMENTS = 0x04 | 0x08
"""Flags of a function that takes `*arguments` or `**options`."""


def main() -> int:
    """Trace one run, print the numbers, and return the exit status."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("tree", nargs="?", default=HERE, type=Path)
    arguments.add_argument(
        "--list", action="store_true", help="also list the calls of each function"
    )
    options = arguments.parse_args()
    tree = options.tree.resolve()
    packages = sorted(tree.glob("packages/*/src"))
    sys.path[:0] = map(str, (tree / "src", tree, *packages))
    calls = trace(tree / "src")
    files = [file for file, _ in calls]
    print(
        f"{len(calls)} calls, {len(set(files))} files, {count_returns(files)} returns"
    )
    if options.list:
        for (file, function), count in collections.Counter(calls).most_common():
            print(f"{count:5} {file} {function}")
    return 0


def holds(value: Any, steps: int = STEPS) -> bool:
    """Return whether a value is the multiplier, or has it within some steps."""
    if type(value) is float:
        return value == MULTIPLIER
    if steps == 0:
        return False
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.values() if isinstance(value, dict) else dict(value).values()
    elif isinstance(value, (list, tuple)):
        inner = value
    elif isinstance(value, functools.partial):
        inner = [*value.args, *value.keywords.values()]
    elif type(value).__module__.startswith(("dpsum", "dpfedbench")):
        inner = list(getattr(value, "__dict__", {}).values())
    return any(holds(item, steps - 1) for item in inner)


def count_returns(files: list[str]) -> int:
    """Return how often a file is entered again from another file."""
    returns = 0
    seen = set[str]()
    for before, after in itertools.pairwise(files):
        seen.add(before)
        if after != before and after in seen:
            returns += 1
    return returns


def trace(source: Path) -> list[tuple[str, str]]:
    """Return file and function of each call with an argument that holds z."""
    from dpfedbench.papers import read_run, read_run_file
    from dpfedbench.training.engine import train
    from tests.golden import runs

    calls = list[tuple[str, str]]()

    def see(frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{source}/"):
            return
        count = code.co_argcount + code.co_kwonlyargcount
        count += (code.co_flags & ARGUMENTS).bit_count()
        names = code.co_varnames[:count]
        if code.co_name.startswith("<"):
            return
        if any(holds(frame.f_locals.get(name)) for name in names):
            file = Path(code.co_filename).relative_to(source)
            calls.append((str(file), code.co_qualname))
        if code.co_name == DRAW:
            sys.settrace(None)

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        images, clients = runs.make_data(root / "data")[runs.CASES[CASE].data]
        values = runs.config_of(CASE).plain()
        values["noise"]["multiplier"] = MULTIPLIER
        values["participation"]["rounds"] = 1
        run = read_run(values)
        path = root / run.folder / "config.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(run.to_yaml(), encoding="utf-8")
        read_run_file(path)  # imports what the trace should not see
        sys.settrace(see)
        try:
            train(
                read_run_file(path),
                run_dir=root / "run",
                data_dir=images,
                clients_dir=clients,
                threads=1,
                kernels=False,
            )
        finally:
            sys.settrace(None)
    return calls


if __name__ == "__main__":
    raise SystemExit(main())
