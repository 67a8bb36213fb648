"""The scripts of benchmarks/ run as docs/gpu.md prints them, on a CPU and on tiny
sizes.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dpfedbench.test_experiments import configuration, plan

ROOT = Path(__file__).resolve().parents[1]


def called(name: str, *arguments: str, directory: Path) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=directory, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed() -> list[list[str]]:
    """The calls of docs/gpu.md, word by word."""
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    blocks = "".join(
        re.findall(r"^```bash\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    ).replace("\\\n", " ")
    return [
        shlex.split(line, comments=True)
        for line in blocks.splitlines()
        if "benchmarks/" in line
    ]


def test_the_page_on_gpus_prints_commands_that_there_are() -> None:
    calls = printed()
    assert len(calls) >= 5
    for words in calls:
        script = words[words.index("python") + 1]
        text = (ROOT / script).read_text(encoding="utf-8")
        for flag in [
            word for word in words if word.startswith("--") and word not in ("--group",)
        ]:
            assert f'"{flag}"' in text, (script, flag)
        if script.endswith("runs.py"):
            preset, item, series = words[words.index(script) + 1 :][:3]
            paper, _, name = item.partition("/")
            assert series in {
                cell.series
                for cell in plan(configuration(preset)).items[paper, name].cells
            }


@pytest.mark.cuda
def test_a_gpu_is_measured(tmp_path: Path) -> None:
    said = called(
        "meta_gradient",
        "--device",
        "cuda",
        "--chunks",
        "64",
        "--cases",
        "1",
        "--pairs",
        "1",
        directory=tmp_path,
    )
    assert "peak_mib" in said
