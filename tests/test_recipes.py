"""docs/recipes.md, followed: its file, its pictures and its commands, at tiny sizes;
and the version that is cited.
"""

import csv
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import dpfedbench
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, check_names, overlaid
from dpfedbench.experiments.expand import make_plan
from tests.calls import Snakemake
from tests.shipped import parsed

ROOT = Path(__file__).resolve().parents[1]
# Over the page's sizes. The results are those of the page's recipe for pictures with
# the real preset.
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


def blocks() -> list[tuple[str, str, str]]:
    """(language, file that it is or "", text) of the page's code blocks."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    return re.findall(
        r"^```(\w+) ?(\S*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL
    )


def configuration(*over: dict[str, Any], preset: str | None = None) -> Configuration:
    """The default configuration with a preset, and more over it."""
    files = [
        ROOT / "config" / "config.yaml",
        *sorted((ROOT / "config" / "experiments").glob("*.yaml")),
    ]
    files += [ROOT / "config" / "presets" / f"{preset}.yaml"] * bool(preset)
    return Configuration.read(overlaid(*map(parsed, files), *over))


def mine() -> dict[str, Any]:
    """The page's experiment file."""
    (text,) = (text for _, name, text in blocks() if name == "mine.yaml")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.fixture(scope="module")
def followed(
    tmp_path_factory: pytest.TempPathFactory, call_snakemake: Snakemake
) -> Path:
    """A folder outside the repository, after the page: pictures, tables, figures,
    exports, page of the experiment.
    """
    folder = tmp_path_factory.mktemp("recipes")
    environment = os.environ | {"DPFEDBENCH_DATA": str(folder)}
    for language, name, text in blocks():
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        elif language == "python":
            subprocess.run([sys.executable, "-c", text], env=environment, check=True)
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    targets = [
        "mine",
        "results/real/export/mine/noise.pdf",
    ]
    command = ["--snakefile", str(ROOT / "Snakefile"), "--cores", "2", *targets]
    command += [
        "--configfile",
        str(ROOT / "config/presets/real.yaml"),
        "mine.yaml",
        "tiny.yaml",
    ]
    done = call_snakemake(*command, folder=folder, **environment)
    assert done.returncode == 0, done.stderr
    return folder / "results" / "real"


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_own_pictures_are_in_their_table_under_the_real_preset(followed: Path) -> None:
    random, agr = rows(followed / "tables" / "mine" / "accuracy.csv")
    assert random["method"] == "random"
    assert agr["method"] == "dp-agr"
    assert random["epsilon_proven"] == ""
    assert {random["dataset"], agr["dataset"]} == {"pictures"}
    # One-pass blocks at z = 1: every client is in at most one Gaussian release, 4.89 at
    # delta = 1e-6.
    assert round(float(agr["epsilon_proven"]), 2) == 4.89
    assert agr["unit"] == "client"
    summary = json.loads(
        (followed.parent / "data" / "pictures" / "summary.json").read_text(
            encoding="utf-8"
        )
    )
    assert summary["split_classes"] == {"train": 24, "validation": 6, "test": 10}


def test_a_sweep_stands_over_the_epsilon_that_holds(followed: Path) -> None:
    low, high = rows(followed / "figures" / "mine" / "noise.csv")
    assert [round(float(row["x"]), 3) for row in (low, high)] == [
        round(float(row["epsilon_proven"]), 3) for row in (low, high)
    ]
    # z = 4 first: less than a quarter of what is proven at z = 1, since delta is the same.
    assert 0 < float(low["x"]) < float(high["x"]) / 4
    assert round(float(high["x"]), 2) == 4.89


def test_noise_is_found_for_a_given_epsilon(followed: Path) -> None:
    (row,) = rows(followed / "figures" / "mine" / "calibrated.csv")
    assert float(row["x"]) == 8
    assert 7.9 < float(row["epsilon_proven"]) <= 8.0


def test_a_figure_has_a_point_for_each_series(followed: Path) -> None:
    agr, random = rows(followed / "figures" / "mine" / "methods.csv")
    assert agr["series"] == "dp-agr"
    assert random["series"] == "random"
    assert random["x"] == ""
    assert agr["x"] == agr["epsilon_proven"]
    assert math.isfinite(float(agr["x"]))


def test_a_papers_target_has_its_table_of_privacy_and_its_page(followed: Path) -> None:
    table = rows(followed / "tables" / "mine" / "privacy.csv")
    assert {row["paper"] for row in table} == {"mine"}
    assert len(table) == 3
    for row in table:
        # One right audit in twenty is a little above it.
        assert (
            0
            <= float(row["epsilon_audited"])
            <= 1.2 * float(row["epsilon_proven_high"])
        )
    page = (followed / "mine.html").read_text(encoding="utf-8")
    assert "My pictures" in page
    assert "DP-FedMeta" not in page
    links = [
        link
        for link in re.findall(r'href="([^"#:]+)"', page)
        if not link.startswith("data")
    ]
    assert links
    assert all((followed / link).exists() for link in links)
    provenance = json.loads(
        (followed / "tables" / "mine" / "provenance.json").read_text(encoding="utf-8")
    )
    assert (
        "--cores all mine --configfile config/presets/real.yaml mine.yaml tiny.yaml"
        in provenance["command"]
    )
    assert provenance["versions"]["dpfedbench"] == dpfedbench.__version__
    assert not (followed / "index.html").exists()


@pytest.mark.parametrize("preset", ["real", "paper"])
def test_documented_experiments_are_taken_with_a_preset(preset: str) -> None:
    """The real preset's overlays for methods are its papers' own:
    docs/add-a-data-set.md's `stripes` was refused.
    """
    text = (ROOT / "docs" / "add-a-data-set.md").read_text(encoding="utf-8")
    printed = re.findall(
        r"^```yaml \S+\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL
    )
    examples = [yaml.safe_load(block) for block in printed] + [mine()]
    plain, plan = (
        make_plan(configuration(*examples, preset=name)) for name in (None, preset)
    )
    assert len(printed) >= 2
    for name in ("shapes", "stripes", "mine"):
        places = [place for place in plan.items if place[0] == name]
        assert places
        assert all(
            list(plan.items[place].runs) == list(plain.items[place].runs)
            for place in places
        )


def test_an_overlay_of_an_experiment_is_no_second_one(tmp_path: Path) -> None:
    shipped = sorted((ROOT / "config" / "experiments").glob("*.yaml"))
    files = []
    for name, text in (
        ("overlay", "{dp-fedmeta: {run: {model: {filters: 4}}}, dp-maml: null}"),
        ("one", "{mine: {title: a}}"),
        ("two", "{mine: {title: b}}"),
    ):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(f"experiments: {text}\n", encoding="utf-8")
    check_names(shipped, [files[0], files[1], files[1]])  # given twice is one file
    with pytest.raises(
        BenchError,
        match=(
            r"experiments\.mine is made in one\.yaml and again in two\.yaml: give yours"
        ),
    ):
        check_names(shipped, files)


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == dpfedbench.__version__
    assert cited["license"] == "MIT"
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
