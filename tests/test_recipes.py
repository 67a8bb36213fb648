"""docs/recipes.md: its files, pictures and commands work, at tiny sizes."""

import csv
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import dpfedbench
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, check_names, overlaid
from dpfedbench.experiments.expand import make_plan
from tests.calls import Snakemake
from tests.dpfedbench.test_experiments import configuration as read_configuration
from tests.pages import code_blocks, files_of_page

ROOT = Path(__file__).resolve().parents[1]
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
def followed(
    tmp_path_factory: pytest.TempPathFactory, call_snakemake: Snakemake
) -> Path:
    """Follow the page in a folder outside the repository; return the results."""
    folder = tmp_path_factory.mktemp("recipes")
    environment = os.environ | {"DPFEDBENCH_DATA": str(folder)}
    for block in code_blocks("recipes.md"):
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            command = [sys.executable, "-c", block.text]
            subprocess.run(command, env=environment, check=True)
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    preset = ROOT / "config/presets/real.yaml"
    targets = ["mine", "results/real/export/mine/noise.pdf"]
    options = ["--snakefile", str(ROOT / "Snakefile"), "--cores", "2"]
    options += [*targets, "--configfile", str(preset), "mine.yaml", "tiny.yaml"]
    done = call_snakemake(*options, folder=folder, **environment)
    assert done.returncode == 0, done.stderr
    return folder / "results" / "real"


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_recipe_for_pictures_fills_its_table(followed: Path) -> None:
    random, agr = rows(followed / "tables" / "mine" / "accuracy.csv")
    assert random["method"] == "random"
    assert agr["method"] == "dp-agr"
    assert random["epsilon_proven"] == ""
    assert {random["dataset"], agr["dataset"]} == {"pictures"}
    # One pass at z = 1: a client is in one Gaussian release, whose epsilon at
    # delta = 1e-6 is 4.89.
    assert round(float(agr["epsilon_proven"]), 2) == 4.89
    assert agr["unit"] == "client"
    path = followed.parent / "data" / "pictures" / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    assert summary["split_classes"] == {"train": 24, "validation": 6, "test": 10}


def test_recipe_for_a_sweep_has_the_proven_epsilon_as_x(followed: Path) -> None:
    low, high = rows(followed / "figures" / "mine" / "noise.csv")
    for row in (low, high):
        assert float(row["x"]) == pytest.approx(float(row["epsilon_proven"]), abs=1e-3)
    # z = 4 comes first. At the same delta its epsilon is below a quarter of z = 1's.
    assert 0 < float(low["x"]) < float(high["x"]) / 4
    assert round(float(high["x"]), 2) == 4.89


def test_recipe_for_a_given_epsilon_calibrates_the_noise(followed: Path) -> None:
    (row,) = rows(followed / "figures" / "mine" / "calibrated.csv")
    assert float(row["x"]) == 8
    assert 7.9 < float(row["epsilon_proven"]) <= 8.0


def test_recipe_for_methods_has_a_point_for_each_series(followed: Path) -> None:
    agr, random = rows(followed / "figures" / "mine" / "methods.csv")
    assert agr["series"] == "dp-agr"
    assert random["series"] == "random"
    assert random["x"] == ""
    assert agr["x"] == agr["epsilon_proven"]
    assert math.isfinite(float(agr["x"]))


def test_recipe_target_has_its_privacy_table_and_page(followed: Path) -> None:
    table = rows(followed / "tables" / "mine" / "privacy.csv")
    assert {row["paper"] for row in table} == {"mine"}
    assert len(table) == 3
    for row in table:
        # One correct audit in twenty is a little above the proven epsilon.
        limit = 1.2 * float(row["epsilon_proven_high"])
        assert 0 <= float(row["epsilon_audited"]) <= limit
    page = (followed / "mine.html").read_text(encoding="utf-8")
    assert "My pictures" in page
    assert "DP-FedMeta" not in page
    links = re.findall(r'href="(?!data)([^"#:]+)"', page)
    assert links
    assert all((followed / link).exists() for link in links)
    path = followed / "tables" / "mine" / "provenance.json"
    provenance = json.loads(path.read_text(encoding="utf-8"))
    files = "config/presets/real.yaml mine.yaml tiny.yaml"
    assert f"--cores all mine --configfile {files}" in provenance["command"]
    assert provenance["versions"]["dpfedbench"] == dpfedbench.__version__
    assert not (followed / "index.html").exists()


@pytest.mark.parametrize("preset", ["real", "paper"])
def test_documented_experiments_are_taken_with_a_preset(preset: str) -> None:
    """A preset's overlays for methods apply to the experiments of its papers alone."""
    blocks = code_blocks("add-a-data-set.md", "yaml")
    examples = [yaml.safe_load(block.text) for block in blocks if block.file]
    assert len(examples) >= 2
    examples.append(yaml.safe_load(files_of_page("recipes.md")["mine.yaml"]))

    def runs_of_examples(preset: str | None) -> dict[str, list[list[str]]]:
        configuration = read_configuration(preset)
        plan = make_plan(Configuration.read(overlaid(configuration, *examples)))
        runs: dict[str, list[list[str]]] = {"shapes": [], "stripes": [], "mine": []}
        for (experiment, _), item in plan.items.items():
            if experiment in runs:
                runs[experiment].append(list(item.runs))
        return runs

    runs = runs_of_examples(preset)
    assert all(runs.values())
    assert runs == runs_of_examples(None)


def test_check_names_allows_overlays_and_refuses_a_second_experiment(
    tmp_path: Path,
) -> None:
    """A file that is listed twice is one file."""
    shipped = sorted((ROOT / "config" / "experiments").glob("*.yaml"))
    files = []
    for name, text in (
        ("overlay", "{dp-fedmeta: {run: {model: {filters: 4}}}, dp-maml: null}"),
        ("one", "{mine: {title: a}}"),
        ("two", "{mine: {title: b}}"),
    ):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(f"experiments: {text}\n", encoding="utf-8")
    overlay, experiment, _ = files
    check_names(shipped, [overlay, experiment, experiment])
    message = (
        r"experiments\.mine is made in one\.yaml and again in two\.yaml: give yours"
    )
    with pytest.raises(BenchError, match=message):
        check_names(shipped, files)


def test_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == dpfedbench.__version__
    assert cited["license"] == "MIT"
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
