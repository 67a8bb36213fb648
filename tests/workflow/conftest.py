"""The workflow, called as a user calls it."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.calls import Snakemake
from tests.dpfedbench.federation.conftest import federation
from workflow_jobs.manifests import seal

__all__ = ["federation"]

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def drawn(federation: tuple[Path, Path], tmp_path: Path) -> Path:
    """The small data set in the place of `glyphs`, whose letters take longer to draw
    than a small run takes.
    """
    place = tmp_path / "results" / "data" / "glyphs"
    shutil.copytree(federation[0], place)
    seal(
        "prepare",
        [place / name for name in ("images.npy", "classes.csv", "summary.json")],
    )
    return place


@pytest.fixture
def snakemake(call_snakemake: Snakemake, tmp_path: Path) -> Call:
    """Call Snakemake on the repository's Snakefile, or another root's, with results in
    a temporary folder.
    """

    def call(
        *arguments: str, root: Path = ROOT, directory: Path = tmp_path
    ) -> subprocess.CompletedProcess[str]:
        given = [
            "--snakefile",
            str(root / "Snakefile"),
            "--directory",
            str(directory),
            "--cores",
            "2",
        ]
        return call_snakemake(
            *given, *arguments, folder=Path.cwd(), fresh=root != ROOT, timeout=300
        )

    return call
