"""The workflow as a module of another Snakefile, and the command of the package."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dpfedbench import command
from dpfedbench.errors import BenchError
from tests.calls import Snakemake
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


def test_another_snakefile_takes_the_workflow_as_a_module(
    tmp_path: Path, drawn: Path, call_snakemake: Snakemake
) -> None:
    """Its own configuration lies over the workflow's, its rules stand on the
    workflow's, and nothing is copied.
    """
    (tmp_path / "Snakefile").write_text(
        MAIN.replace("ROOT", str(ROOT)), encoding="utf-8"
    )
    (tmp_path / "mine.yaml").write_text(without_others(OWN), encoding="utf-8")
    done = call_snakemake("--cores", "2", "--directory", str(tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "mine.csv", newline="", encoding="utf-8") as handle:
        (row,) = csv.DictReader(handle)
    assert (row["method"], row["dataset"], row["task"]) == (
        "random",
        "glyphs",
        "3-way 1-shot",
    )
    (config,) = (tmp_path / "results" / "runs" / "random").glob(
        "*/*/*/seed0/config.yaml"
    )
    said = yaml.safe_load(config.read_text(encoding="utf-8"))
    # What the caller says, and below it what config/config.yaml says.
    assert said["evaluation"]["tasks"] == 4
    default = yaml.safe_load(
        (ROOT / "config" / "config.yaml").read_text(encoding="utf-8")
    )["run"]
    assert said["model"] == {"kind": "conv4", **default["model"], "filters": 4}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A host of Git repositories on this machine, with a tag of this one, and a later
    commit that is broken.
    """
    host = tmp_path_factory.mktemp("host")
    folder = host / "someone" / "dpfedbench"
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("the tests are not run in a git repository")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    # What numba compiled fits wherever the sources have the same text, and takes
    # longest to make.
    for compiled in (ROOT / "src").rglob("*.nb[ic]"):
        place = folder / compiled.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(compiled, place)
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    for words in (
        ["init", "-q"],
        ["add", "-A", "-f"],
        [*who, "commit", "-q", "-m", "all"],
        ["tag", "v1"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "Snakefile").write_text("not the tag's", encoding="utf-8")
    subprocess.run(
        ["git", *who, "commit", "-q", "-a", "-m", "more"], cwd=folder, check=True
    )
    return host


def called_from_git(
    source: str, folder: Path, host: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    """Call a Snakefile whose module comes from Git; what would be fetched from
    github.com is a folder here.
    """
    main = MAIN.replace('"ROOT/Snakefile"', source)
    assert source in main
    (folder / "Snakefile").write_text(main, encoding="utf-8")
    (folder / "mine.yaml").write_text(without_others(OWN), encoding="utf-8")
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "SNAKEMAKE_PROFILE")
    }
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "GIT_CONFIG_COUNT": "1"}
    environment |= {
        "GIT_CONFIG_KEY_0": f"url.file://{host}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
    }
    called = [
        sys.executable,
        "-m",
        "snakemake",
        "--cores",
        "2",
        "--directory",
        str(folder),
        *words,
    ]
    return subprocess.run(
        called, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_module_comes_from_a_git_host_with_its_own_library(
    published: Path, tmp_path: Path, drawn: Path
) -> None:
    """Plan, scripts and library are those of the tag; a second call neither clones nor
    runs anything.
    """
    source = 'github("someone/dpfedbench", path="workflow/Snakefile", tag="v1")'
    triggers = (
        "--rerun-triggers",
        "mtime",
        "params",
        "input",
    )  # the data set was made by no rule of the tag
    done = called_from_git(source, tmp_path, published, *triggers)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine.csv").read_text(encoding="utf-8").count("random") == 1
    tag = subprocess.run(
        ["git", "-C", str(published / "someone" / "dpfedbench"), "rev-parse", "v1"],
        capture_output=True,
        text=True,
    )
    (snakefile,) = tmp_path.glob("cache/**/source-cache/dpfedbench/*/Snakefile")
    assert snakefile.parent.name == tag.stdout.strip()
    compiled = snakefile.parent / "src" / "dpfedbench" / "evaluation" / "__pycache__"
    assert any(path.name.startswith("features.") for path in compiled.glob("*.pyc"))
    again = called_from_git(source, tmp_path, published, "--dry-run", *triggers)
    assert (
        again.returncode == 0 and "Nothing to be done" in again.stdout + again.stderr
    ), again.stderr


SNAKEFILE = str(ROOT / "Snakefile")
SMOKE = str(ROOT / "config" / "presets" / "smoke.yaml")


CORES = ["--cores", "1"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["run"], ["--snakefile", SNAKEFILE]),
        (
            ["run", "all", "--configfile", "a.yaml", *CORES, "--preset", "smoke"],
            ["--configfile", SMOKE, "a.yaml", "--snakefile", SNAKEFILE, "all", *CORES],
        ),
    ],
)
def test_the_command_is_a_call_of_snakemake(given: list[str], words: list[str]) -> None:
    assert command.snakemake_words(given) == words


def test_the_command_says_where_the_snakefile_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["where"]) == 0
    assert capsys.readouterr().out == f"{SNAKEFILE}\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], r"usage: dpfedbench run \[--preset NAME\]"),
        (["run", "--preset", "smok"], r"no preset 'smok': .*the nearest is smoke$"),
    ],
)
def test_a_bad_command_is_one_line(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BenchError, match=said):
        command.snakemake_words(given)
    assert command.main(given) == 1
    assert capsys.readouterr().err.count("\n") == 1
