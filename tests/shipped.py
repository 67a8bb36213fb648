"""The experiments that lie in config/experiments, whatever there is, for tests that want some of them and no others."""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def without_others(configuration: str) -> str:
    """A configuration's text, in which every shipped experiment that it does not name is left out."""
    files = sorted((ROOT / "config" / "experiments").glob("*.yaml"))
    shipped = [
        name for file in files for name in yaml.safe_load(file.read_text(encoding="utf-8")).get("experiments", ())
    ]
    others = [name for name in dict.fromkeys(shipped) if name not in yaml.safe_load(configuration)["experiments"]]
    start, line, rest = configuration.partition("experiments:\n")
    return "".join([start, line, *(f"  {name}: null\n" for name in others), rest])
