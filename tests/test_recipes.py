"""docs/recipes.md: its files, pictures and commands work, at tiny sizes."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dpfedbench import load_runs
from dpfedbench.command import snakemake_words
from dpfedbench.verification import compare
from tests.calls import PreparedCall
from tests.pages import code_blocks, rows_of
from tests.shipped import without_others
from tests.workflow.conftest import planned_trainings

# Laid over the page's sizes, for its recipe for pictures with the real preset.
TINY = """
seeds: [0]
experiments:
  mine:
    run:
      clients: {count: 20}
      model: {filters: 4}
      participation: {cohort: 10, rounds: 2}
      evaluation: {tasks: 4, steps: 1}
    tables: {accuracy: {series: {maml: null}}}
    figures:
      noise: {x: {values: [1, 4]}, series: {maml: null}}
      calibrated: {x: {values: [8]}}
      methods: {series: {dp-maml: null}}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> PreparedCall:
    """Write the page's files and pictures in a folder outside the repository."""
    folder = tmp_path_factory.mktemp("recipes")
    environment = {"DPFEDBENCH_DATA": str(folder)}
    for block in code_blocks("recipes.md"):
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            command = [sys.executable, "-c", block.text]
            subprocess.run(command, env=os.environ | environment, check=True)
    (folder / "tiny.yaml").write_text(without_others(TINY), encoding="utf-8")
    given = ["run", "mine.yaml", "--preset", "real", "--configfile", "tiny.yaml"]
    options = snakemake_words([*given, "--config", "terminal=snakemake"])
    targets = ["all", "results/real/export/mine/noise.pdf"]
    return PreparedCall(folder, environment, [*options, *targets])


@pytest.fixture(scope="module")
def followed(recipe: PreparedCall) -> Path:
    """Make the call; return the results."""
    recipe.call()
    return recipe.folder / "results" / "real"


def test_recipe_plans_its_own_runs_alone(recipe: PreparedCall) -> None:
    """4 configurations and one seed, with random weights or by DP-AGR."""
    runs = planned_trainings(recipe.call("--dry-run"))
    assert runs == [("dp-agr", "pictures")] * 3 + [("random", "pictures")]


# Faster than this test and the following ones: test_recipe_plans_its_own_runs_alone.
@pytest.mark.slow
def test_recipe_for_pictures_fills_its_table(followed: Path) -> None:
    """One pass at z = 1: a client is in one Gaussian release, whose epsilon at
    delta = 1e-6 is 4.89.
    """
    random, agr = rows_of(followed / "tables" / "mine" / "accuracy.csv")
    assert random["epsilon_proven"] == ""
    assert (agr["dataset"], agr["unit"]) == ("pictures", "client")
    assert round(float(agr["epsilon_proven"]), 2) == 4.89
    path = followed.parent / "data" / "pictures" / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    assert summary["split_classes"] == {"train": 24, "validation": 6, "test": 10}


@pytest.mark.slow
def test_recipe_for_a_sweep_has_the_proven_epsilon_as_x(followed: Path) -> None:
    low, high = rows_of(followed / "figures" / "mine" / "noise.csv")
    for row in (low, high):
        assert float(row["x"]) == pytest.approx(float(row["epsilon_proven"]), abs=1e-3)
    # z = 4 comes first. At the same delta its epsilon is below a quarter of z = 1's.
    assert 0 < float(low["x"]) < float(high["x"]) / 4
    assert round(float(high["x"]), 2) == 4.89


@pytest.mark.slow
def test_recipe_for_a_given_epsilon_calibrates_the_noise(followed: Path) -> None:
    (row,) = rows_of(followed / "figures" / "mine" / "calibrated.csv")
    assert float(row["x"]) == 8
    assert 7.9 < float(row["epsilon_proven"]) <= 8.0


@pytest.mark.slow
def test_recipe_target_has_its_privacy_table_and_page(followed: Path) -> None:
    table = rows_of(followed / "tables" / "mine" / "privacy.csv")
    assert {row["paper"] for row in table} == {"mine"}
    assert len(table) == 3
    for row in table:
        # One correct audit in twenty is a little above the proven epsilon.
        limit = 1.2 * float(row["epsilon_proven_high"])
        assert 0 <= float(row["epsilon_audited"]) <= limit


@pytest.mark.slow
def test_recipe_makes_page_frames_and_archive_of_it_alone(followed: Path) -> None:
    """No job of another paper has run: the frame has every run that exists, and its runs
    are those of the file: 4 configurations and one seed.
    """
    folder = followed / "experiments" / "mine"
    runs = load_runs(folder)
    configurations = (followed.parent / "runs").glob("*/*/*/*/seed*")
    assert set(runs["folder"]) == set(map(str, configurations))
    assert sorted(runs["method"]) == ["dp-agr"] * 3 + ["random"]
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "My pictures" in page
    assert "DP-MAML" not in page
    links = re.findall(r'<a[^>]* href="([^"#][^"]*)"', page)
    assert len(links) > 10
    assert all((folder / link).is_file() for link in links)
    archive = folder / "results.zip"
    with zipfile.ZipFile(archive) as packed:
        names = set(packed.namelist())
    assert "experiments/mine/index.html" in names
    assert "tables/mine/accuracy.csv" in names
    assert list(compare(archive, folder)) == []
