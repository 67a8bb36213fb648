"""The benchmarks that docs/performance.md runs, on small cases."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.small_data import draw_glyphs

ROOT = Path(__file__).resolve().parents[1]
MACHINES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with few images as `glyphs`: drawing letters takes longer."""
    folder = tmp_path_factory.mktemp("benchmarks")
    rng = np.random.default_rng(0)
    images = draw_glyphs(rng, (28, 28, 1), train=12, held_out=6)
    images.save(folder / "results" / "data" / "glyphs", {"name": "glyphs"})
    return folder


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


# Faster: test_benchmark_of_a_run_trains_its_first_rounds.
@pytest.mark.slow
@pytest.mark.parametrize("device", MACHINES)
def test_meta_gradient_benchmark_measures_chunks(device: str, folder: Path) -> None:
    options = f"--torch --device {device} --threads 1 --chunks 2 --cases 1 --pairs 1"
    assert "peak_mib" in run_benchmark("meta_gradient.py", options, folder)


@pytest.mark.parametrize("device", MACHINES)
def test_benchmark_of_a_run_trains_its_first_rounds(device: str, folder: Path) -> None:
    options = f"smoke dp-fedmeta/table2 dp-agr --device {device} --rounds 1"
    options += f" --out {device}"
    (folder / device).mkdir(exist_ok=True)
    (folder / device / "data").symlink_to(folder / "results" / "data")
    assert '"rounds_run": 1' in run_benchmark("runs.py", options, folder)
