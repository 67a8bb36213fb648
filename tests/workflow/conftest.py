"""The workflow, called as a user calls it."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dpfedbench.federation.conftest import federation
from workflow_jobs.manifests import seal

__all__ = ["federation"]

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def drawn(federation, tmp_path):
    """The small data set as `glyphs`, whose letters take longer to draw than a small
    run takes.
    """
    folder = tmp_path / "results" / "data" / "glyphs"
    shutil.copytree(federation[0], folder)
    names = ("images.npy", "classes.csv", "summary.json")
    seal("prepare", [folder / name for name in names])
    return folder


@pytest.fixture
def snakemake(call_snakemake, tmp_path):
    """Call Snakemake on the repository's Snakefile, or another root's, with results in
    a temporary folder.
    """

    def call(*arguments, root=ROOT, directory=tmp_path):
        options = ["--snakefile", str(root / "Snakefile")]
        options += ["--directory", str(directory), "--cores", "2"]
        return call_snakemake(
            *options, *arguments, folder=Path.cwd(), fresh=root != ROOT, timeout=300
        )

    return call
