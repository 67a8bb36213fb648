"""docs/your-method.md: DP-q-FFL in two files outside the repository."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import dpfedbench
from tests.calls import ROOT, call_snakemake
from tests.pages import files_of_page
from tests.test_fedrep_page import draw_pictures
from tests.workflow.conftest import planned_trainings

FILES = files_of_page("your-method.md")
SMALL = r"""
datasets:
  pictures:
    reader: image-folder
    version: 1
    source: "drawn for a test"
    licence: MIT
    options:
      folder: pictures
      size: 28
      channels: 1
      test_images: 10
      owner: '(\d)\.png'
experiments:
  q-ffl:
    run:
      dataset: pictures
      task: {ways: 4}
      clients: {least: 5}
      participation: {cohort: 6, rounds: 4}
      validation: {tasks: 10}
    tasks: {writers: {}}
"""


def test_recipe_is_short() -> None:
    assert len(FILES["qffl.py"].splitlines()) <= 60
    assert len(FILES["qffl.yaml"].splitlines()) <= 20
    (name,) = yaml.safe_load(FILES["qffl.yaml"])["plugins"]
    assert f"{name}.py" in FILES


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page's files in a folder outside the repository, and small pictures."""
    folder = tmp_path_factory.mktemp("qffl")
    draw_pictures(folder / "pictures")
    for name in ("qffl.py", "qffl.yaml"):
        (folder / name).write_text(FILES[name], encoding="utf-8")
    (folder / "small.yaml").write_text(SMALL, encoding="utf-8")
    return folder


def call(folder: Path, *options: str) -> str:
    """Make the page's call; return what it prints."""
    files = ["--configfile", "qffl.yaml", "small.yaml"]
    words = ["--snakefile", str(ROOT / "Snakefile"), "q_ffl", *files]
    words += ["--config", "terminal=snakemake"]
    done = call_snakemake(*words, *options, folder=folder, DPFEDBENCH_DATA=str(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_page_plans_its_run(written: Path) -> None:
    trainings = planned_trainings(call(written, "--dry-run"))
    assert ("dp-q-ffl", "pictures") in trainings


@pytest.fixture(scope="module")
def row(written: Path) -> pd.Series:
    """Make the page's call; return the row of its run."""
    call(written)
    runs = dpfedbench.load_runs(written / "results")
    (index,) = runs.index[runs.method == "dp-q-ffl"]
    return runs.loc[index]


# Faster: test_page_plans_its_run, the page of test_fedrep_page.py, and the server's
# parts of tests/dpfedbench/training/test_shapes_of_sums.py.
@pytest.mark.slow
def test_row_keeps_the_budget_and_its_audit_is_below(row: pd.Series) -> None:
    assert (row["unit"], row["client_origin"]) == ("client", "owner")
    assert row["clients.count"] == 10
    assert 7 < row["epsilon_proven_high"] <= 8
    assert 0 <= row["epsilon_audited"] <= 1.2 * row["epsilon_proven_high"]
    assert not row["audit_saw_another_mechanism"]
    assert np.isfinite(row["accuracy"])
