"""Run a command under the hooks, and make the report of its training."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpsum.errors import DpsumError
from dpwatch.check.report import read_observations, report

STARTUP = Path(__file__).with_name("startup")
"""Folder of the `sitecustomize` that installs the hooks."""


def check(
    command: Sequence[str],
    *,
    folder: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a command under watch and return the report (`report.report`).

    The command's standard output and error are its own.

    Args:
        command: words of the command, e.g. `["python", "train.py"]`.
        folder: new or empty folder for ledgers and observations; None: a temporary one.
        settings: see `default_settings`.

    Raises:
        DpsumError: the command cannot be started, the folder has files, or the
            command's Python has no dpwatch.
    """
    settings = default_settings() | dict(settings or {})
    if not command:
        raise DpsumError("no command: give it after --, as in check -- python train.py")
    with tempfile.TemporaryDirectory(prefix="dpwatch-") as temporary:
        check_folder = _empty_folder(
            Path(temporary) if folder is None else Path(folder)
        )
        (check_folder / "settings.json").write_text(
            json.dumps(settings), encoding="utf-8"
        )
        exit_code = _run(command, check_folder)
        observations = read_observations(check_folder)
        _check_started(observations, command)
        return report(
            observations, command=command, exit_code=exit_code, settings=settings
        )


def default_settings() -> dict[str, Any]:
    """Return the settings of a check, with their defaults.

    `delta`: None for the script's own; `units_public`: whether the number of units is
    declared public; `metrics`: "released" or "kept"; `cohorts`: "secret" or "known";
    `audit_calls`: calls of each attack, 0 for no audit; `audit_any_size`: whether a
    large release is audited too.
    """
    return {
        "delta": None,
        "units_public": False,
        "metrics": "released",
        "cohorts": "secret",
        "audit_calls": 200,
        "audit_any_size": False,
    }


def _empty_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise DpsumError(f"{folder} has files: name a new or an empty folder")
    except OSError as error:
        raise DpsumError(f"{folder} cannot be written: {error}") from error
    return folder.resolve()


def _run(command: Sequence[str], folder: Path) -> int:
    environment = dict(os.environ)
    earlier = environment.get("PYTHONPATH")
    parts = [str(STARTUP), *([earlier] if earlier else [])]
    environment["PYTHONPATH"] = os.pathsep.join(parts)
    environment["DPWATCH_CHECK"] = str(folder)
    try:
        return subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        raise DpsumError(f"{command[0]} cannot be started: {error}") from error


def _check_started(
    observations: Sequence[Mapping[str, Any]], command: Sequence[str]
) -> None:
    if any(item["kind"] == "started" for item in observations):
        return
    missing = [item for item in observations if item["kind"] == "missing"]
    if missing:
        raise DpsumError(
            f"{missing[0]['python']} has no dpwatch ({missing[0]['text']}): install"
            " dpwatch in the environment of the script"
        )
    raise DpsumError(
        f"{' '.join(command)} started no Python process that loads the hooks: name a"
        " Python command, without -I, -E and -S"
    )
