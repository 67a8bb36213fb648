"""Command that makes a target of the workflow."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path


def own_command(
    *,
    through_uv: bool,
    through_conda: bool,
    files: Sequence[Path],
    values: Sequence[str],
    root: Path,
) -> str:
    """Return the command that repeats the user's call, with `{target}` as target.

    Args:
        through_uv: called by `uv run`.
        through_conda: called with `--use-conda`.
        files: arguments of `--configfile`, absolute. Files of the repository are shown
            relative to it, others relative to the working folder.
        values: arguments of `--config`. `only` is left out: it chooses the default
            target, and the command has a target.
        root: the repository, or the folder of the workflow in an installed package.
    """
    words = (
        ["uv", "run"] * through_uv
        + ["snakemake", "--cores", "all"]
        + ["--use-conda"] * through_conda
    )
    if root.parts[-2:] == (
        "dpfedbench",
        "workflow",
    ):  # an installed package has its own command
        words = ["dpfedbench", "run"]
        if files and files[0].parent == root / "config" / "presets":
            words += ["--preset", files[0].stem]
            files = files[1:]
    shown = [
        os.path.relpath(file, root if file.is_relative_to(root) else Path.cwd())
        for file in files
    ]
    values = [value for value in values if not value.startswith("only=")]
    # The target stands before these options, because each of them takes every argument
    # after it.
    after = ["--configfile", *shown] * bool(shown) + ["--config", *values] * bool(
        values
    )
    return f"{shlex.join(words)} {{target}} {shlex.join(after)}".strip()
