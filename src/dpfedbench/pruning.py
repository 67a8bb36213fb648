"""Lists the runs below results/runs that no table or figure needs any more, and removes them on request."""

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan

_PLACE = re.compile(r"[\w-]+/[\w.-]+/(\d+way-\d+shot|\d+class)/[0-9a-f]{10}/seed\d+(\.pruned)?")
_DEPTH = 5


@dataclasses.dataclass(frozen=True)
class OldRun:
    """A run's folder below results/runs, its size in bytes, and whether a training holds it."""

    folder: str
    size: int
    busy: bool


def wanted_runs(root: Path) -> set[str]:
    """The folders of all runs that the repository's own configurations ask for: the default one and every preset.

    Args:
        root: the repository.

    Raises:
        BenchError: a configuration is not valid.
    """
    files = [root / "config/config.yaml", *sorted((root / "config/experiments").glob("*.yaml"))]
    base = overlaid(*map(_read, files))
    wanted: set[str] = set()
    for preset in (None, *sorted((root / "config/presets").glob("*.yaml"))):
        configuration = Configuration.read(base if preset is None else overlaid(base, _read(preset)))
        wanted |= set(make_plan(configuration).runs)
    return wanted


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values


def old_runs(runs: Path, wanted: Collection[str]) -> list[OldRun]:
    """The runs below `runs` (results/runs) that are not wanted.

    Only folders made by this workflow count: at the place of a run, with that run's config.yaml. Links are not
    followed. What a pruning that was killed had set aside counts too.
    """
    old = []
    for path in _folders(runs, _DEPTH):
        folder = path.relative_to(runs).as_posix()
        if folder not in wanted and _PLACE.fullmatch(folder) and _is_run(path):
            size = sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
            with _held(path) as free:
                old.append(OldRun(folder, size, busy=not free))
    return sorted(old, key=lambda run: run.folder)


def _folders(path: Path, depth: int) -> Iterator[Path]:
    """Folders exactly so far below `path`, without following links."""
    if depth == 0:
        yield path
    elif path.is_dir():
        for below in path.iterdir():
            if below.is_dir() and not below.is_symlink():
                yield from _folders(below, depth - 1)


def _is_run(path: Path) -> bool:
    """Whether its configuration is that of its place; not by the key, which older versions hashed otherwise."""
    if path.name.endswith(".pruned"):
        return True
    try:
        values = _read(path / "config.yaml")
        return (values["method"], f"seed{values['seed']}") == (path.parts[-_DEPTH], path.name)
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a run's lock, where it has one; yields False where a training holds it."""
    lock = path / "checkpoint" / "lock"
    try:
        handle = open(lock, "a", encoding="utf-8") if lock.exists() else None  # noqa: SIM115
    except OSError:
        yield False
        return
    if handle is None:
        yield True
        return
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def remove_run(runs: Path, folder: str) -> bool:
    """Remove a run that `old_runs` found, and the folders that it leaves empty; False where a training holds it.

    It is renamed first: killed half-way, it is no longer taken for a run, and the next pruning removes the rest.
    """
    path = runs / folder
    with _held(path) as free:
        if not free:
            return False
        aside = path if path.name.endswith(".pruned") else path.with_name(f"{path.name}.pruned")
        if aside != path:
            if aside.exists():
                shutil.rmtree(aside)
            os.rename(path, aside)
        shutil.rmtree(aside)
    for parent in aside.parents:
        if parent == runs:
            break
        try:
            parent.rmdir()
        except OSError:
            break
    return True
