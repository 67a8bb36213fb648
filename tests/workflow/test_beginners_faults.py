"""Faults of a user's own experiment: one line that names the file, or Python's traceback
for an error in a plugin.
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
      table1: {title: t, tasks: [one], seeds: [0], series: {a: {method: mine}}}
""")
PLUGIN = """
from typing import ClassVar
from dpfedbench.papers.shared import ClientLevelMethod
from dpfedbench.method import Method
from dpfedbench.training.client_updates.maml import Maml
from dpsum.clipping import CohortRule, Seen, State


class Rule(CohortRule):
    kind: ClassVar[str] = "mine"

    def observe(self, state: State, seen: Seen) -> None:
        state["threshold"] *= 0.5


class Mine(ClientLevelMethod):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "Mine"
    client_update: Maml = Maml()
"""
FAULT = """
    def check(self):
        super().check()
        1 / 0
"""
WITHOUT_KIND = PLUGIN.replace('    kind: ClassVar[str] = "mine"\n', "")


@pytest.fixture
def plan(snakemake, tmp_path):
    """Plan an experiment with a plugin; return exit code and lines of the errors."""

    def dry_run(plugin, old="", new=""):
        (tmp_path / "mine.py").write_text(plugin, encoding="utf-8")
        path = tmp_path / "mine.yaml"
        assert old in EXPERIMENT
        path.write_text(EXPERIMENT.replace(old, new), encoding="utf-8")
        options = ("--dry-run", "--quiet", "rules", "--configfile", str(path))
        done = snakemake(*options, directory=tmp_path)
        lines = done.stderr.splitlines()
        started = ("Using", "Config file")
        return done.returncode, [line for line in lines if not line.startswith(started)]

    return dry_run


def test_plan_accepts_a_plugin_and_shows_its_error_as_a_traceback(plan, tmp_path):
    assert plan(PLUGIN)[0] == 0
    code, lines = plan(PLUGIN + FAULT)
    assert code == 1
    start = lines.index("Traceback (most recent call last):")
    assert lines[-1].startswith("ZeroDivisionError: division by zero")
    number = (PLUGIN + FAULT).count("\n")
    location = f'  File "{tmp_path / "mine.py"}", line {number}'
    assert any(line.startswith(location) for line in lines[start:]), lines


@pytest.mark.parametrize(
    ("plugin", "old", "new", "message"),
    [
        (WITHOUT_KIND, "rounds: 2}", "rounds: 2}, clipping: mine", "kind is .*mine"),
        (PLUGIN, "{count: 20}", "{cuont: 20}", "unknown key .*cuont"),
    ],
)
def test_plan_names_a_fault_of_an_experiment_in_one_line(
    plan, plugin, old, new, message
):
    code, (line,) = plan(plugin, old, new)
    assert code == 1
    assert re.match(f"configuration: .*{message}", line), line
