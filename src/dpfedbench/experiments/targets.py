"""The command that makes a target of the workflow."""

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
    """The command of somebody who called the workflow in this way, with `{target}` for
    what is asked for.

    Args:
        through_uv: called by `uv run`.
        through_conda: with `--use-conda`.
        files: of `--configfile`, absolute; those of the repository are shown as seen
            from it, others from here.
        values: of `--config`.
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
    ):  # what an installed package has, by its own command
        words = ["dpfedbench", "run"]
        if files and files[0].parent == root / "config" / "presets":
            words += ["--preset", files[0].stem]
            files = files[1:]
    shown = [
        os.path.relpath(file, root if file.is_relative_to(root) else Path.cwd())
        for file in files
    ]
    # The target goes before these: each takes every word after it for one more of its
    # own.
    after = ["--configfile", *shown] * bool(shown) + ["--config", *values] * bool(
        values
    )
    return f"{shlex.join(words)} {{target}} {shlex.join(after)}".strip()
