"""The examples of docs/add-a-method.md and docs/add-a-data-set.md work as they are printed."""

import csv
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("add-a-data-set.md", "add-a-method.md")
# Laid over the pages' sizes; the method's data set is replaced by the folder of pictures.
TINY = """
preset: null
seeds: [0]
stand_ins: {fashion-mnist: shapes}
experiments:
  dp-fedmeta: null
  adap-dp-fl: null
  shapes:
    run: {participation: {rounds: 2}}
    tables: {table1: {series: {fedavg: null}}}
  dp-fedavgm:
    run:
      task: {ways: 4}
      clients: {count: 10, fragments: 40}
      participation: {cohort: 4, rounds: 4}
      client_update: {inner_steps: 2}
      budget: {delta: 1.0e-3}
      validation: {tasks: 10}
      evaluation: {every: 2}
    tables: {table1: {series: {fedavg: null, plain: null}}}
    figures: {figure1: {series: {fedavg: null, plain: null}}}
  stripes:
    run: {clients: {count: 20}, model: {filters: 4}, participation: {cohort: 10, rounds: 2}, evaluation: {tasks: 4}}
    tables: {table1: {series: {random: null, maml: null}}}
"""


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(language, file that it is or "", text) of a page's code blocks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", text, flags=re.M | re.S)


def test_the_page_of_properties_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/properties.md").read_text(encoding="utf-8"))
    assert len(named) > 40
    gone = [
        f"{file}::{test}"
        for file, test in named
        if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8") and test
    ]
    assert gone == []


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git knows of the repository, in which both pages were followed block by block."""
    copy = tmp_path_factory.mktemp("docs") / "copy"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    # What numba compiled fits as long as a source is unchanged, and takes longest to make.
    for compiled in (ROOT / "src").rglob("*.nb[ic]"):
        place = copy / compiled.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(compiled, place)
    (copy / "tiny.yaml").write_text(TINY, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "SNAKEMAKE_PROFILE"}
    environment |= {"PYTHONPATH": str(copy / "src"), "DPFEDBENCH_DATA": str(copy / "local")}
    targets = []
    for page in PAGES:
        for language, file, text in blocks(page):
            if file:
                assert not (copy / file).exists(), f"{page} would edit {file}: a new file was promised"
                (copy / file).write_text(text, encoding="utf-8")
            elif language == "python":
                subprocess.run([sys.executable, "-c", text], cwd=copy, env=environment, check=True)
            else:
                assert language == "bash"
                for line in text.splitlines():
                    words = shlex.split(line)
                    assert words[:5] == ["uv", "run", "snakemake", "--cores", "all"], line
                    targets += [word for word in words[5:] if not word.startswith("-")]
    # All pages' targets in one call: Snakemake takes seconds to start.
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *dict.fromkeys(targets), "--configfile", "tiny.yaml"]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return copy


def table(copy: Path, paper: str) -> list[dict[str, str]]:
    with open(copy / "results" / "tables" / paper / "table1.csv", newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_a_sixth_method_is_in_its_table_with_both_epsilons(followed: Path) -> None:
    (row,) = table(followed, "dp-fedavgm")
    assert (row["method"], row["dataset"], row["unit"]) == ("dp-fedavgm", "shapes", "client")
    assert 0 <= float(row["value"]) <= 100
    # Poisson cohorts of 4 of 10 in 4 rounds at z = 1: less than four plain Gaussians of all clients, mu = 2, whose
    # epsilon at delta = 1e-3 solves Phi(-e/2 + 1) - exp(e) Phi(-e/2 - 1) = 1e-3.
    assert 0 < float(row["epsilon_holds"]) < 7.5813
    assert float(row["epsilon_claimed"]) == float(row["epsilon_holds"])
    assert "| DP-FedAvg, server momentum 0.9 |" in (followed / "results/tables/dp-fedavgm/table1.md").read_text("utf-8")


def test_what_comes_for_free_came(followed: Path) -> None:
    (run,) = (followed / "results" / "runs" / "dp-fedavgm").glob("*/*/*/seed0")
    releases = [json.loads(line) for line in (run / "ledger.jsonl").read_text("utf-8").splitlines()]
    assert [event["name"] for event in releases] == ["model-difference-sum"] * 4
    assert {event["sampler"]["kind"] for event in releases} == {"poisson"}
    config = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    assert (config["server"]["momentum"], config["server"]["rate"]) == (0.9, 0.2)
    drawn = followed / "results" / "figures" / "dp-fedavgm" / "figure1"
    assert drawn.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with open(drawn.with_suffix(".csv"), newline="", encoding="utf-8") as handle:
        assert [float(row["x"]) for row in csv.DictReader(handle)] == [2, 4]


def test_a_folder_of_pictures_is_in_its_table(followed: Path) -> None:
    (row,) = table(followed, "shapes")
    assert (row["dataset"], row["method"], row["unit"]) == ("shapes", "dp-fl", "record")
    assert math.isfinite(float(row["epsilon_holds"]))
    summary = json.loads((followed / "results" / "data" / "shapes" / "summary.json").read_text("utf-8"))
    assert summary["split_records"] == {"train": 200, "test": 40}
    assert summary["source_sizes"] == {"40x32": 240} and summary["image_shape"] == [28, 28, 1]


def test_a_data_set_of_a_module_is_in_its_table(followed: Path) -> None:
    (row,) = table(followed, "stripes")
    assert (row["dataset"], row["task"], row["method"]) == ("stripes", "5-way 1-shot", "dp-agr")
    summary = json.loads((followed / "results" / "data" / "stripes" / "summary.json").read_text("utf-8"))
    assert summary["split_classes"] == {"train": 24, "validation": 6, "test": 6}


def test_a_second_module_of_a_name_stops_the_workflow_with_one_line(followed: Path) -> None:
    twin = followed / "src" / "dpfedbench" / "methods" / "twin.py"
    shutil.copy(followed / "src" / "dpfedbench" / "methods" / "dp_fl.py", twin)
    try:
        command = [sys.executable, "-m", "snakemake", "--cores", "1", "--dry-run"]
        done = subprocess.run(command, cwd=followed, capture_output=True, text=True, check=False)
    finally:
        twin.unlink()
    said = [text for text in done.stderr.splitlines() if not text.startswith(("Using", "Config file"))]
    assert done.returncode == 1 and said == [
        "configuration: the method modules dpfedbench.methods.dp_fl and dpfedbench.methods.twin both have the NAME "
        "'dp-fl': give one of them another"
    ]
