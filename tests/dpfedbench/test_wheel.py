"""The wheel has all files that the library reads, so it works outside a checkout."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel without a network, and return the folder of its content.

    The build backend is in uv's cache since the environment was made.
    """
    uv = shutil.which("uv")
    folder = tmp_path_factory.mktemp("wheel")
    if uv is None:
        pytest.skip("uv is not on the path")
    command = [uv, "build", "--wheel", "--offline", "--quiet", "--out-dir"]
    command += [str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "network was disabled" in done.stderr:
        pytest.skip("the build backend is not in uv's cache")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    zipfile.ZipFile(built).extractall(folder / "content")
    return folder / "content"


RUN = "import sys; from dpfedbench.command import main; sys.exit(main())"


def test_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    source = ROOT / "src"
    for path in [*source.rglob("*.py"), *(source / "dpfedbench").rglob("*.txt")]:
        assert (wheel / path.relative_to(source)).is_file(), path


def test_wheel_runs_its_workflow_with_its_package(wheel: Path, tmp_path: Path) -> None:
    """In an empty folder the wheel's files alone plan every job, and the script of a job
    imports the wheel's library, not that of a checkout.
    """

    def call(*words: str) -> str:
        """Call `dpfedbench run` of the wheel alone; return what it prints."""
        environment = dict(os.environ)
        environment.pop("SNAKEMAKE_PROFILE", None)
        environment |= {"PYTHONPATH": str(wheel), "PYTHONDONTWRITEBYTECODE": ""}
        done = subprocess.run(
            [sys.executable, "-c", RUN, "run", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    jobs = call("--preset", "smoke", "--dry-run", "--quiet", "rules")
    planned = dict(re.findall(r"^(\w+) +(\d+)$", jobs, flags=re.MULTILINE))
    assert int(planned["train"]) > 10
    assert planned["train"] == planned["account"]
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"two words {number}", encoding="utf-8")
    options = f"{{folder: '{tmp_path}', words: 3}}"
    dataset = f"{{reader: text-folder, licence: MIT, options: {options}}}"
    configuration = f"datasets: {{mine: {dataset}}}\n"
    (tmp_path / "own.yaml").write_text(configuration, encoding="utf-8")
    call("results/data/mine/summary.json", "--configfile", "own.yaml")
    assert (tmp_path / "results" / "data" / "mine" / "images.npy").exists()
    compiled = wheel / "dpfedbench" / "data" / "__pycache__"
    assert any(path.name.startswith("text_folder.") for path in compiled.glob("*.pyc"))
    (entry,) = wheel.glob("*.dist-info/entry_points.txt")
    assert "dpfedbench = dpfedbench.command:main" in entry.read_text(encoding="utf-8")
