"""The workflow as a module of another Snakefile, and the command of the package."""

import subprocess

import pytest
import yaml

from dpfedbench import command
from tests.calls import ROOT, call_snakemake, copy_checkout
from tests.pages import rows_of
from tests.shipped import without_others
from tests.workflow.conftest import planned_rules

SNAKEFILE = str(ROOT / "Snakefile")
SMOKE = str(ROOT / "config" / "presets" / "smoke.yaml")
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
        github("someone/dpfedbench", path="workflow/Snakefile", tag="v1")
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


@pytest.fixture(scope="module")
def git_host(tmp_path_factory):
    """Make a host of Git repositories with a tag of this one, and a later, broken
    commit.
    """
    host = tmp_path_factory.mktemp("host")
    repository = host / "someone" / "dpfedbench"
    copy_checkout(repository, bytecode=False)
    git = ["git", "-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    for words in ("init -q", "add -A -f", "commit -q -m all", "tag v1"):
        subprocess.run([*git, *words.split()], cwd=repository, check=True)
    (repository / "Snakefile").write_text("not the tag's", encoding="utf-8")
    more = [*git, "commit", "-q", "-a", "-m", "more"]
    subprocess.run(more, cwd=repository, check=True)
    return host


def call_from_git(folder, host, *words):
    """Call Snakemake in a folder; github.com is a folder of this machine."""
    git = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{host}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
    }
    variables = {"PYTHONPATH": "", "XDG_CACHE_HOME": str(folder / "cache")}
    return call_snakemake(*words, folder=folder, **git, **variables)


def write_snakefile(folder):
    """Write a Snakefile that takes the workflow as a module, and its configuration."""
    (folder / "Snakefile").write_text(MAIN, encoding="utf-8")
    (folder / "mine.yaml").write_text(without_others(OWN), encoding="utf-8")


def check_tag(folder, host):
    """Check that the sources come from the tag's commit; return its Snakefile."""
    repository = host / "someone" / "dpfedbench"
    tag = subprocess.check_output(["git", "rev-parse", "v1"], cwd=repository, text=True)
    (snakefile,) = folder.glob("cache/**/source-cache/dpfedbench/*/Snakefile")
    assert snakefile.parent.name == tag.strip()
    return snakefile


def test_module_from_a_git_host_has_the_plan_of_its_tag(git_host, tmp_path):
    write_snakefile(tmp_path)
    done = call_from_git(tmp_path, git_host, "--dry-run")
    assert done.returncode == 0, done.stderr
    rules = {rule for rule, _ in planned_rules(done.stdout + done.stderr)}
    assert {"dpfedbench_prepare", "dpfedbench_meta_test", "mine"} <= rules
    check_tag(tmp_path, git_host)


# Faster: test_module_from_a_git_host_has_the_plan_of_its_tag.
@pytest.mark.slow
def test_module_from_a_git_host_has_scripts_and_library_of_its_tag(
    git_host, tmp_path, drawn
):
    """The Snakefile's configuration lies over that of the tag. A second call neither
    clones nor runs anything. No rule of the tag made the data set.
    """
    write_snakefile(tmp_path)
    triggers = ("--rerun-triggers", "mtime", "params", "input")
    done = call_from_git(tmp_path, git_host, *triggers)
    assert done.returncode == 0, done.stderr
    (row,) = rows_of(tmp_path / "mine.csv")
    assert (row["method"], row["task"]) == ("random", "3-way 1-shot")
    runs = tmp_path / "results" / "runs" / "random"
    (path,) = runs.glob("*/*/*/seed0/config.yaml")
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert config["evaluation"]["tasks"] == 4
    defaults = (ROOT / "config" / "config.yaml").read_text(encoding="utf-8")
    model = yaml.safe_load(defaults)["small"]["all"]["model"]
    own = {"kind": "conv4", "normalisation": "batch"}
    assert config["model"] == {**own, **model, "filters": 4}
    snakefile = check_tag(tmp_path, git_host)
    compiled = snakefile.parent / "src" / "dpfedbench" / "evaluation" / "__pycache__"
    assert list(compiled.glob("features.*.pyc"))
    repeated = call_from_git(tmp_path, git_host, "--dry-run", *triggers)
    assert repeated.returncode == 0, repeated.stderr
    assert "Nothing to be done" in repeated.stdout + repeated.stderr


def test_command_is_a_call_of_snakemake():
    options = "--configfile a.yaml --cores 1 --preset smoke"
    expected = ["--configfile", SMOKE, "a.yaml", "--snakefile", SNAKEFILE, "all"]
    words = command.snakemake_words(["run", "all", *options.split()])
    assert words == [*expected, "--cores", "1"]
