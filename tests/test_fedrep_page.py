"""docs/your-method.md: FedRep in two files outside the repository, on small pictures."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors.numpy import load_file

import dpfedbench
from tests.calls import ROOT, call_snakemake
from tests.pages import code_blocks, files_of_page, read_page
from tests.shipped import without_others

PAGE = "your-method.md"
FILES = files_of_page(PAGE)
# Laid over the page's sizes, and pictures in place of digits.
SMALL = """
stand_ins: {digits: pictures}
datasets:
  pictures:
    reader: image-folder
    version: 1
    source: "drawn for a test"
    licence: MIT
    options: {folder: pictures, size: 28, channels: 1, test_images: 10}
experiments:
  fed-rep:
    run:
      task: {ways: 4}
      clients: {count: 10, fragments: 20}
      participation: {cohort: 6, rounds: 4}
      validation: {tasks: 10}
"""


def draw_pictures(folder: Path) -> None:
    """Draw pictures of four classes: each has another bright quarter, in noise."""
    rng = np.random.default_rng(0)
    for label in range(4):
        (folder / f"quarter{label}").mkdir(parents=True)
        for number in range(60):
            pixels = rng.integers(0, 120, (28, 28), dtype=np.uint8)
            row, column = divmod(label, 2)
            pixels[14 * row : 14 * row + 14, 14 * column : 14 * column + 14] += 120
            path = folder / f"quarter{label}" / f"{number:02}.png"
            Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Follow the page in a folder outside the repository."""
    folder = tmp_path_factory.mktemp("fedrep")
    draw_pictures(folder / "pictures")
    for name in ("fedrep.py", "fedrep.yaml"):
        (folder / name).write_text(FILES[name], encoding="utf-8")
    (folder / "small.yaml").write_text(without_others(SMALL), encoding="utf-8")
    (command,) = re.findall(
        r"`uv run snakemake --cores all (fed_rep .*?)`", read_page(PAGE)
    )
    options = ["--snakefile", str(ROOT / "Snakefile"), *command.split(), "small.yaml"]
    done = call_snakemake(*options, folder=folder, DPFEDBENCH_DATA=str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def row(folder: Path) -> pd.Series:
    runs = dpfedbench.load_runs(folder / "results")
    (index,) = runs.index[runs.method == "dp-fed-rep"]
    return runs.loc[index]


def test_row_has_three_epsilons_and_the_personal_accuracy(row: pd.Series) -> None:
    assert row["unit"] == "client"
    assert 0 < row["epsilon_claimed"] < 20
    assert 0 < row["epsilon_proven_high"] < 20
    assert 0 <= row["epsilon_audited"] <= 1.2 * row["epsilon_proven_high"]
    assert not row["audit_saw_another_mechanism"]
    assert row["personal_worst_tenth"] <= row["personal_accuracy"] <= 100
    # A client has two classes, so chance is about 50 %.
    assert row["personal_accuracy"] > 60


def test_noise_is_on_the_shared_body_alone(folder: Path, row: pd.Series) -> None:
    run = folder / "results" / "runs" / row["run"]
    lines = (run / "ledger.jsonl").read_text("utf-8").splitlines()
    releases = [json.loads(line) for line in lines]
    assert [line["name"] for line in releases] == ["body-difference-sum"] * 4
    assert {line["dimension"] for line in releases} == {row["shared_parameters"]}
    tensors = load_file(run / "model.safetensors")
    head = [tensor for name, tensor in tensors.items() if tensor.shape[0] == 4]
    assert sum(tensor.size for tensor in head) == (
        row["parameters"] - row["shared_parameters"]
    )


def test_program_of_the_page_prints_the_row(folder: Path) -> None:
    (program,) = [block for block in code_blocks(PAGE, "python") if not block.file]
    command = [sys.executable, "-c", program.text]
    output = subprocess.check_output(command, cwd=folder, text=True)
    assert output.startswith("ε")
