"""Calls of Snakemake, as a user makes them, and copies of the checkout to call it in."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CallSnakemake = Callable[..., subprocess.CompletedProcess[str]]


def call_snakemake(
    *arguments: str, folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call Snakemake on two cores in a folder."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def copy_checkout(target: Path) -> None:
    """Copy the working tree without the files that git ignores, but with those that
    numba compiled: they fit sources of the same text, and take longest to make.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.check_output(command, cwd=ROOT, text=True)
    files = [ROOT / name for name in filter(None, listing.split("\0"))]
    for file in (
        *files,
        *ROOT.glob("packages/*/src/**/*.nb[ic]"),
        *ROOT.glob("src/**/*.nb[ic]"),
    ):
        if file.is_file():
            copy = target / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
