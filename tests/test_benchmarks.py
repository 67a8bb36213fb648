"""The scripts of benchmarks/ run as docs/gpu.md prints them, on a CPU and on tiny sizes."""

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_experiments import configuration, plan

ROOT = Path(__file__).resolve().parents[1]


def called(name: str, *arguments: str, directory: Path) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed() -> list[list[str]]:
    """The calls of docs/gpu.md, word by word."""
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```bash\n(.*?)^```$", text, flags=re.M | re.S)).replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in blocks.splitlines() if "benchmarks/" in line]


def test_clients_a_second_over_chunks(tmp_path: Path) -> None:
    said = called(
        "meta_gradient", "--device", "cpu", "--chunks", "2", "4", "--cases", "1", "--pairs", "1", "--threads", "1",
        "--out", "found.csv", directory=tmp_path,
    )  # fmt: skip
    assert "matrix multiply" in said
    with open(tmp_path / "found.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["filters"], row["inner_steps"], row["chunk"]) for row in rows] == [("64", "5", "2"), ("64", "5", "4")]
    assert all(float(row["clients_per_second"]) > 0 for row in rows)


def test_a_series_of_a_preset_is_made_and_gone_on_with(tmp_path: Path) -> None:
    call = ("smoke", "dp-fedmeta/table2", "dp-agr", "--device", "cpu")

    def shown(*more: str) -> dict[str, Any]:
        said = called("runs", *call, *more, directory=tmp_path)
        found: dict[str, Any] = json.loads(said[said.index("{") :])
        return found

    first = shown("--rounds", "2")
    assert first["rounds_run"] == 2 and first["hours_of_all"] >= 0
    found = shown()
    assert (found["rounds_run"], found["device"]) == (6, "cpu") and found["epsilon holds"] > 0
    assert shown()["seconds"] == found["seconds"]


def test_the_page_on_gpus_prints_commands_that_there_are() -> None:
    calls = printed()
    assert len(calls) >= 5
    for words in calls:
        script = words[words.index("python") + 1]
        text = (ROOT / script).read_text(encoding="utf-8")
        for flag in [word for word in words if word.startswith("--") and word not in ("--group",)]:
            assert f'"{flag}"' in text, (script, flag)
        if script.endswith("runs.py"):
            preset, item, series = words[words.index(script) + 1 :][:3]
            paper, _, name = item.partition("/")
            assert series in {cell.series for cell in plan(configuration(preset)).items[paper, name].cells}


@pytest.mark.cuda
def test_a_gpu_is_measured(tmp_path: Path) -> None:
    said = called(
        "meta_gradient", "--device", "cuda", "--chunks", "64", "--cases", "1", "--pairs", "1", directory=tmp_path
    )
    assert "peak_mib" in said
