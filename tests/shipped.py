"""The experiments that lie in config/experiments, whatever there is, for tests that want some of them and no others."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]


def without_others(configuration: str) -> str:
    """A configuration with `experiments` in which every shipped one that it does not name is left out."""
    found: dict[str, Any] = yaml.safe_load(configuration)
    files = (ROOT / "config" / "experiments").glob("*.yaml")
    shipped = {
        name for file in files for name in yaml.safe_load(file.read_text(encoding="utf-8")).get("experiments", ())
    }
    found["experiments"] = dict.fromkeys(sorted(shipped)) | found["experiments"]
    return yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
