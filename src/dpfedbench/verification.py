"""A whole results folder against what its rules wrote: for who was sent one, or mistrusts a disk.

What is there has to be as it was written, and has to fit together; what is not there is no fault of a folder, which may
be a part of one, or of a workflow that has not ended.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import ledger_of
from dpfedbench.manifest import FOLDER, checked, listed
from dpfedbench.methods import read_run_file
from dpfedbench.results_format import NAME

_NOT_RESULTS = {FOLDER, "logs", "benchmark", "checkpoint", "download"}
"""Folders of what a rule writes on the way, or Snakemake: nothing reads it as a result."""


def faults(results: Path) -> Iterator[str | None]:
    """What does not hold of each file and each trained run of a results folder, in turn; None for one that does.

    A file has to be there if its manifest is, and to have the SHA-256 that it says; a file that no manifest names is a
    fault too. The configuration of a run has to be that of its folder, and its ledger has to be whole and to say what
    the configuration and training.json do.
    """
    for place, folders, names in os.walk(results):
        folder = Path(place)
        folders[:] = sorted(name for name in folders if name not in _NOT_RESULTS and not name.startswith("."))
        there = {name for name in names if not name.startswith(".")} - ({NAME} if folder == results else set())
        found = {name: _fault(checked, folder / name) for name in sorted(there | {*listed(folder)})}
        yield from found.values()
        sound = {name for name in found if found[name] is None}
        if "config.yaml" in sound:
            whole = {"ledger.jsonl", "training.json"} <= sound
            yield _fault(_check_trained if whole else read_run_file, folder / "config.yaml")


def _check_trained(path: Path) -> None:
    ledger_of(read_run_file(path), path.parent)


def _fault(check: Callable[[Path], object], path: Path) -> str | None:
    try:
        check(path)
    except BenchError as error:
        return str(error)
    return None
