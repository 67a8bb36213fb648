"""Lists the runs below results/runs that no table or figure needs any more, and removes
them on request.
"""

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from dpfedbench.yaml_files import read_file

_PLACE = re.compile(
    r"[\w-]+/[\w.-]+/(\d+way-\d+shot|\d+class)/[0-9a-f]{10}/seed\d+(\.pruned)?"
)
_DEPTH = 5


@dataclasses.dataclass(frozen=True)
class OldRun:
    """A run's folder below results/runs, its size in bytes, and whether a training
    holds it.
    """

    folder: str
    size: int
    busy: bool


def wanted_runs(root: Path) -> set[str]:
    """The folders of all runs that the configurations of a repository ask for: the
    default one and every preset.

    Raises:
        BenchError: a configuration is not valid.
    """
    files = [
        root / "config/config.yaml",
        *sorted((root / "config/experiments").glob("*.yaml")),
    ]
    base = overlaid(*map(read_file, files))
    wanted: set[str] = set()
    for preset in (None, *sorted((root / "config/presets").glob("*.yaml"))):
        configuration = Configuration.read(
            base if preset is None else overlaid(base, read_file(preset))
        )
        wanted |= set(make_plan(configuration).runs)
    return wanted


def old_runs(runs: Path, wanted: Collection[str]) -> list[OldRun]:
    """The runs below `runs` (results/runs) that are not wanted.

    Only folders made by this workflow count: at the place of a run, with that run's
    config.yaml. Links are not followed. What a pruning that was killed had set aside
    counts too.
    """
    old = []
    for path in runs.glob("*/" * _DEPTH):
        folder = path.relative_to(runs).as_posix()
        linked = any(
            place.is_symlink() for place in (path, *path.parents[: _DEPTH - 1])
        )
        if (
            folder not in wanted
            and not linked
            and _PLACE.fullmatch(folder)
            and _is_run(path)
        ):
            size = sum(
                file.lstat().st_size for file in path.rglob("*") if not file.is_dir()
            )
            with _held(path) as free:
                old.append(OldRun(folder, size, busy=not free))
    return sorted(old, key=lambda run: run.folder)


def _is_run(path: Path) -> bool:
    """Whether its configuration is that of its place; not by the key, which older
    versions hashed otherwise.
    """
    if path.name.endswith(".pruned"):
        return True
    try:
        values = read_file(path / "config.yaml")
        return (values["method"], f"seed{values['seed']}") == (
            path.parts[-_DEPTH],
            path.name,
        )
    except (BenchError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a run's lock, where it has one; yields False where a training holds it."""
    lock = path / "checkpoint" / "lock"
    with contextlib.ExitStack() as stack:
        free = True
        try:
            if lock.exists():
                handle = stack.enter_context(open(lock, "a", encoding="utf-8"))
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            free = False
        yield free


def remove_run(runs: Path, folder: str) -> bool:
    """Remove a run that `old_runs` found, and the folders that it leaves empty; False
    where a training holds it.

    It is renamed first: killed half-way, it is no longer taken for a run, and the next
    pruning removes the rest.
    """
    path = runs / folder
    with _held(path) as free:
        if not free:
            return False
        aside = (
            path
            if path.name.endswith(".pruned")
            else path.with_name(f"{path.name}.pruned")
        )
        if aside != path:
            if aside.exists():
                shutil.rmtree(aside)
            os.rename(path, aside)
        shutil.rmtree(aside)
    with contextlib.suppress(OSError):  # of one that is not empty
        for parent in aside.parents[: _DEPTH - 1]:
            parent.rmdir()
    return True
