"""The workflow as a module of another Snakefile, and the command of the package."""

import csv
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfedbench import command
from dpfedbench.errors import BenchError
from tests.shipped import without_others

ROOT = Path(__file__).resolve().parents[2]
OWN = """
seeds: [0]
run:
  dataset: glyphs
  task: {ways: 3, shots: 1}
  model: {filters: 4}
  clients: {count: 8, examples_per_class: 4, support_per_class: 1, query_per_class: 2}
  evaluation: {tasks: 4, steps: 1, query_per_class: 5}
experiments:
  mine:
    title: Mine
    tasks: {letters: {}}
    tables:
      table1: {title: t, tasks: [letters], series: {random: {method: random}}}
"""
MAIN = """
configfile: "mine.yaml"


module dpfedbench:
    snakefile:
        "ROOT/Snakefile"
    config:
        config


use rule * from dpfedbench as dpfedbench_*


rule mine:
    default_target: True
    input:
        "results/tables/mine/table1.csv",
    output:
        "mine.csv",
    shell:
        "cp {input} {output}"
"""


def test_another_snakefile_takes_the_workflow_as_a_module(tmp_path: Path, drawn: Path) -> None:
    """Its own configuration lies over the workflow's, its rules stand on the workflow's, and nothing is copied."""
    (tmp_path / "Snakefile").write_text(MAIN.replace("ROOT", str(ROOT)), encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(without_others(OWN), encoding="utf-8")
    called = [sys.executable, "-m", "snakemake", "--cores", "2", "--directory", str(tmp_path)]
    done = subprocess.run(called, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "mine.csv", newline="", encoding="utf-8") as handle:
        (row,) = csv.DictReader(handle)
    assert (row["method"], row["dataset"], row["task"]) == ("random", "glyphs", "3-way 1-shot")
    (config,) = (tmp_path / "results" / "runs" / "random").glob("*/*/*/seed0/config.yaml")
    said = yaml.safe_load(config.read_text(encoding="utf-8"))
    # What the caller says, and below it what config/config.yaml says.
    assert said["evaluation"]["tasks"] == 4
    default = yaml.safe_load((ROOT / "config" / "config.yaml").read_text(encoding="utf-8"))["run"]
    assert said["model"] == {"kind": "conv4", **default["model"], "filters": 4}


def test_the_catalogue_finds_what_it_asks_for(snakemake: Callable[..., Any], tmp_path: Path) -> None:
    """Standardised usage: workflow/Snakefile, which plans the same jobs, config/README.md and the catalogue's file."""
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text(encoding="utf-8"))["usage"]
    assert usage["report"] is True and usage["software-stack-deployment"]["conda"] is True
    assert set(usage) <= {"mandatory-flags", "software-stack-deployment", "report"}
    assert "snakefile:" in (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    said = []
    for root in (ROOT, ROOT / "workflow"):
        done = snakemake("--dry-run", "--quiet", "rules", "--configfile", SMOKE, root=root, directory=tmp_path)
        assert done.returncode == 0, done.stderr
        said.append(dict(re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, flags=re.M)))
    one, other = said
    assert one.pop("all") == other.pop("everything") == "1"
    assert one == other and int(one["train"]) > 10


SNAKEFILE = str(ROOT / "Snakefile")
SMOKE = str(ROOT / "config" / "presets" / "smoke.yaml")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["run"], ["--snakefile", SNAKEFILE]),
        (["run", "--preset", "smoke", "-n"], ["--configfile", SMOKE, "--snakefile", SNAKEFILE, "-n"]),
        (["run", "--preset=smoke", "all"], ["--configfile", SMOKE, "--snakefile", SNAKEFILE, "all"]),
        (
            ["run", "all", "--configfile", "a.yaml", "b.yaml", "--cores", "1", "--preset", "smoke"],
            ["--configfile", SMOKE, "a.yaml", "b.yaml", "--snakefile", SNAKEFILE, "all", "--cores", "1"],
        ),
    ],
)
def test_the_command_is_a_call_of_snakemake(given: list[str], words: list[str]) -> None:
    assert command.snakemake_words(given) == words


def test_the_command_says_where_the_snakefile_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["where"]) == 0
    assert capsys.readouterr().out == f"{SNAKEFILE}\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], r"usage: dpfedbench run \[--preset NAME\]"),
        (["go"], "usage: "),
        (["run", "--preset", "smok"], r"there is no preset 'smok': there are .*real.*smoke, the nearest is smoke$"),
        (["run", "--preset"], "there is no preset ''"),
    ],
)
def test_a_bad_command_is_one_line(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchError, match=said):
        command.snakemake_words(given)
    assert command.main(given) == 1
    assert capsys.readouterr().err.count("\n") == 1
