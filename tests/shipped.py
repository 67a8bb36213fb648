"""The files in config/, for tests that use some of the shipped experiments."""

import copy
import functools
from pathlib import Path
from typing import Any

import yaml

from dpfedbench.experiments.configuration import shipped_files

ROOT = Path(__file__).resolve().parents[1]


def parsed(path: Path) -> dict[str, Any]:
    """Return a copy of the values of a YAML file, which is read once."""
    return copy.deepcopy(_read(path))


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values


def without_others(configuration: str) -> str:
    """Return a configuration's text in which all other shipped experiments are null."""
    stated = yaml.safe_load(configuration)["experiments"]
    shipped: set[str] = set()
    for file in shipped_files(ROOT / "config"):
        shipped.update(_read(file).get("experiments", ()))
    nulls = "".join(f"  {name}: null\n" for name in sorted(shipped - set(stated)))
    return configuration.replace("experiments:\n", f"experiments:\n{nulls}", 1)
