"""Faults of a beginner are one line, which names the file and says what to do; an error
of the user's own code is Python's traceback.

Each is made in a folder outside the repository, beside a right experiment, and met by a
dry run.
"""

import re

import pytest

from tests.shipped import without_others

EXPERIMENT = without_others("""
plugins: [mine]
experiments:
  mine:
    title: Mine
    run: {dataset: glyphs, clients: {count: 20}, participation: {cohort: 10, rounds: 2}}
    tasks: {one: {}}
    tables:
      table1: {title: t, tasks: [one], seeds: [0], series: {a: {method: METHOD}}}
""")
METHOD = """
from typing import ClassVar
from dpfedbench.papers.shared import ClientLevelMethod
from dpfedbench.method import Method
from dpfedbench.training.client_updates.maml import Maml


class Mine(ClientLevelMethod):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"
    client_update: Maml = Maml()
"""
RULE = """
from typing import ClassVar
from dpsum.clipping import CohortRule, Seen, State


class Mine(CohortRule):
    kind: ClassVar[str] = "mine"

    def observe(self, state: State, seen: Seen) -> None:
        state["threshold"] *= 0.5
"""
KIND = '    kind: ClassVar[str] = "mine"\n'


def replaced(text, old, new):
    assert old in text
    return text.replace(old, new)


@pytest.fixture
def write_experiment(tmp_path):
    """Write mine.py and mine.yaml; return the path of the latter."""

    def write(plugin, experiment=EXPERIMENT, method="dp-agr"):
        (tmp_path / "mine.py").write_text(plugin, encoding="utf-8")
        path = tmp_path / "mine.yaml"
        path.write_text(experiment.replace("METHOD", method), encoding="utf-8")
        return path

    return write


@pytest.fixture
def fail(snakemake, tmp_path):
    """Run a dry run that fails; return its lines on standard error."""

    def dry_run(path):
        options = ("--dry-run", "--quiet", "rules", "--configfile", str(path))
        done = snakemake(*options, directory=tmp_path)
        assert done.returncode == 1, done.stdout
        lines = done.stderr.splitlines()
        return [line for line in lines if not line.startswith(("Using", "Config file"))]

    return dry_run


def test_plan_names_a_fault_of_yaml(fail, tmp_path, monkeypatch):
    """Snakemake reads a file of --configfile before the Snakefile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.yaml").write_text("seeds: [0\nrun: {}\n", encoding="utf-8")
    (line,) = fail("faulty.yaml")
    assert re.match(r"configuration: faulty\.yaml is not YAML: .* line 2", line), line


@pytest.mark.parametrize(
    ("plugin", "number", "message"),
    [
        (
            f"{METHOD}\n    def check(self):\n        super().check()\n        1 / 0\n",
            15,
            "ZeroDivisionError: division by zero",
        ),
        (f"{METHOD}\n    def f(:\n", 13, "SyntaxError: invalid syntax"),
    ],
)
def test_plan_shows_a_plugin_error_as_a_traceback(
    fail, write_experiment, tmp_path, plugin, number, message
):
    lines = fail(write_experiment(plugin, method="mine"))
    start = lines.index("Traceback (most recent call last):")
    assert lines[-1].startswith(message), lines[-1]
    location = f'  File "{tmp_path / "mine.py"}", line {number}'
    assert any(line.startswith(location) for line in lines[start:]), lines


RULE_CHOSEN = EXPERIMENT.replace("rounds: 2}", "rounds: 2}, clipping: mine")


@pytest.mark.parametrize(
    ("plugin", "experiment", "message"),
    [
        (replaced(RULE, KIND, ""), RULE_CHOSEN, "kind is .*mine.*"),
        (
            "def red(local, download_dir): ...\n",
            EXPERIMENT,
            "the plugin mine .* defines no class",
        ),
    ],
)
def test_plan_names_a_plugin_that_would_be_overlooked(
    fail, write_experiment, plugin, experiment, message
):
    (line,) = fail(write_experiment(plugin, experiment))
    assert re.match(f"configuration: .*{message}", line), line


@pytest.mark.parametrize(
    ("old", "new", "message", "place"),
    [
        ("{count: 20}", "{cuont: 20}", "nearest known key is .*count", "cuont"),
        (
            "cohort: 10",
            "cohort: 30",
            "lower the cohort",
            "table1:",
        ),  # of the whole item
    ],
)
def test_plan_names_file_and_line_of_a_faulty_key(
    fail, write_experiment, tmp_path, old, new, message, place
):
    text = replaced(EXPERIMENT, old, new).replace("plugins: [mine]\n", "")
    (line,) = fail(write_experiment("", text))
    number = text[: text.index(place)].count("\n") + 1
    expected = (
        rf"configuration: .*{message}.* \[{tmp_path}/mine\.yaml, line {number}\]$"
    )
    assert re.match(expected, line), line


def test_plan_accepts_the_right_plugins(snakemake, write_experiment):
    plugin = METHOD + RULE.replace("class Mine", "class Other")
    path = write_experiment(plugin, method="mine")
    done = snakemake("--dry-run", "--quiet", "rules", "--configfile", str(path))
    assert done.returncode == 0, done.stderr
