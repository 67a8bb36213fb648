"""The commands of docs/gpu.md exist, and a benchmark runs on a GPU."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dpfedbench.test_experiments import planned
from tests.pages import code_blocks

ROOT = Path(__file__).resolve().parents[1]


def commands_of_page() -> list[list[str]]:
    """Return the calls of benchmarks in docs/gpu.md, word by word."""
    text = "".join(block.text for block in code_blocks("gpu.md", "bash"))
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if "benchmarks/" in line]


def test_gpu_page_commands_exist() -> None:
    commands = commands_of_page()
    assert len(commands) >= 5
    for words in commands:
        script = words[words.index("python") + 1]
        text = (ROOT / script).read_text(encoding="utf-8")
        for word in words:
            if word.startswith("--") and word != "--group":
                assert f'"{word}"' in text, (script, word)
        if script.endswith("runs.py"):
            preset, item, series = words[words.index(script) + 1 :][:3]
            paper, _, name = item.partition("/")
            cells = planned(preset).items[paper, name].cells
            assert series in {cell.series for cell in cells}


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
