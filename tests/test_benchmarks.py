"""The benchmarks that docs/performance.md runs, on small cases."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MACHINES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def run_benchmark(name: str, options: str, folder: Path) -> str:
    script = ROOT / "benchmarks" / name
    done = subprocess.run(
        [sys.executable, str(script), *options.split()],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("device", MACHINES)
def test_meta_gradient_benchmark_measures_chunks(device: str, tmp_path: Path) -> None:
    options = f"--torch --device {device} --threads 1 --chunks 2 --cases 1 --pairs 1"
    assert "peak_mib" in run_benchmark("meta_gradient.py", options, tmp_path)


@pytest.mark.parametrize("device", MACHINES)
def test_benchmark_of_a_run_trains_its_first_rounds(
    device: str, tmp_path: Path
) -> None:
    options = f"smoke dp-fedmeta/table2 dp-agr --device {device} --rounds 1"
    assert '"rounds_run": 1' in run_benchmark("runs.py", options, tmp_path)
