"""Provenance of the results: versions, machine and revision."""

import importlib.metadata
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedbench.models.kernels import processor
from dpfedbench.results_format import VERSION


def versions(root: str | Path) -> dict[str, str]:
    """Return the installed versions of dpfedbench and of its direct requirements.

    The names come from the repository's pyproject.toml, because the package itself may
    not be installed: in a rule's environment it is not.
    """
    try:
        project = tomllib.loads(
            Path(root, "pyproject.toml").read_text(encoding="utf-8")
        )["project"]
    except OSError:
        return {}
    here = {"dpfedbench": VERSION}
    for name in (
        re.split(r"[\s<>=!~;\[(]", text, maxsplit=1)[0]
        for text in project["dependencies"]
    ):
        try:
            here[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            here[name] = "not installed"
    return here


def revision(root: str | Path) -> str | None:
    """Return the git commit of the working tree, or None outside git.

    "+changes" is appended if files differ from the commit.
    """

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", root, *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (
            "+changes" if git("status", "--porcelain") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def provenance(
    root: str | Path,
    command: str,
    *,
    preset: str | None = None,
    stand_ins: Mapping[str, str] | None = None,
    configuration_files: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the provenance of the results that the results themselves do not contain.

    Args:
        root: the repository.
        command: the command that makes all results.
        preset: name of the preset. None: the default run.
        stand_ins: for each published data set that was replaced, the data set that was
            measured instead.
        configuration_files: files that Snakemake read from `--configfile`, in order.
    """
    return {
        "command": command,
        "configuration_files": list(configuration_files),
        "preset": preset,
        "stand_ins": dict(stand_ins or {}),
        "revision": revision(root),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": versions(root),
    }
