"""What made the results: versions, machine and revision."""

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any


def versions(distribution: str = "dpfedbench") -> dict[str, str]:
    """The installed versions of a distribution and of what it directly requires.

    Empty for a distribution that is not installed, as where only src/ is on the path.
    """
    try:
        required = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    names = [distribution] + [
        re.split(r"[\s<>=!~;\[(]", text, maxsplit=1)[0] for text in required if "extra ==" not in text
    ]
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def revision(root: str | Path) -> str | None:
    """The git commit of the working tree, with "+changes" where files differ from it; None outside git."""
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+changes" if _git(root, "status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: str | Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def provenance(root: str | Path, command: str) -> dict[str, Any]:
    """Everything about how the results came to be that the results themselves do not say."""
    return {
        "command": command,
        "revision": revision(root),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "versions": versions(),
    }
