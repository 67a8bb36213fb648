"""The files in config/, whatever experiments there are, for tests that want some of
them and no others.
"""

import copy
import functools
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]


def parsed(path: Path) -> dict[str, Any]:
    """What a file in YAML holds; it is read once."""
    return copy.deepcopy(_read(path))


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def without_others(configuration: str) -> str:
    """A configuration's text, in which every shipped experiment that it does not name
    is left out.
    """
    files = sorted((ROOT / "config" / "experiments").glob("*.yaml"))
    named = [name for file in files for name in _read(file).get("experiments", ())]
    others = [
        name
        for name in dict.fromkeys(named)
        if name not in yaml.safe_load(configuration)["experiments"]
    ]
    start, line, rest = configuration.partition("experiments:\n")
    return "".join([start, line, *(f"  {name}: null\n" for name in others), rest])
