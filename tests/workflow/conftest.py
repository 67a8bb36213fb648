"""The workflow, called as a user calls it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.calls import Snakemake
from tests.federation.conftest import federation

__all__ = ["federation"]

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def snakemake(call_snakemake: Snakemake, tmp_path: Path) -> Call:
    """Call Snakemake on the repository's Snakefile, or another root's, with results in a temporary folder."""

    def call(*arguments: str, root: Path = ROOT, directory: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        given = ["--snakefile", str(root / "Snakefile"), "--directory", str(directory), "--cores", "2"]
        return call_snakemake(*given, *arguments, folder=Path.cwd(), fresh=root != ROOT, timeout=300)

    return call
