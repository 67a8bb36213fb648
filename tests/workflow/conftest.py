"""The workflow, called as a user calls it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.federation.conftest import federation

__all__ = ["federation"]

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def snakemake(tmp_path: Path) -> Call:
    """Call Snakemake on the repository's Snakefile, or another root's, with results in a temporary folder."""

    def call(*arguments: str, root: Path = ROOT, directory: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile")]
        command += ["--directory", str(directory), "--cores", "2", *arguments]
        environment = {key: value for key, value in os.environ.items() if key != "SNAKEMAKE_PROFILE"}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)

    return call
