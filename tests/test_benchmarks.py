"""A benchmark of docs/gpu.md runs on a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.cuda
def test_meta_gradient_benchmark_measures_a_gpu(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "meta_gradient.py"
    options = "--device cuda --chunks 64 --cases 1 --pairs 1"
    done = subprocess.run(
        [sys.executable, str(script), *options.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "peak_mib" in done.stdout
