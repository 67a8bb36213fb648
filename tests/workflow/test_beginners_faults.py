"""Faults of a user's own experiment: one line that names the file, or Python's traceback
for an error in a plugin.
"""

import re

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
from dpfedbench.training.client_updates.maml import Maml


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


def plan(snakemake, folder, plugin, experiment=EXPERIMENT):
    """Plan an experiment with a plugin; return exit code and lines of the errors."""
    (folder / "mine.py").write_text(plugin, encoding="utf-8")
    path = folder / "mine.yaml"
    path.write_text(experiment, encoding="utf-8")
    options = ("--dry-run", "--quiet", "rules", "--configfile", str(path))
    done = snakemake(*options, directory=folder)
    started = ("Using", "Config file")
    lines = [line for line in done.stderr.splitlines() if not line.startswith(started)]
    return done.returncode, lines


def test_plan_accepts_a_plugin_and_shows_its_error_as_a_traceback(snakemake, tmp_path):
    assert plan(snakemake, tmp_path, PLUGIN)[0] == 0
    code, lines = plan(snakemake, tmp_path, PLUGIN + FAULT)
    assert code == 1
    start = lines.index("Traceback (most recent call last):")
    assert lines[-1].startswith("ZeroDivisionError: division by zero")
    number = (PLUGIN + FAULT).count("\n")
    location = f'  File "{tmp_path / "mine.py"}", line {number}'
    assert any(line.startswith(location) for line in lines[start:]), lines


def test_plan_names_a_fault_of_an_experiment_in_one_line(snakemake, tmp_path):
    experiment = EXPERIMENT.replace("{count: 20}", "{cuont: 20}")
    code, (line,) = plan(snakemake, tmp_path, PLUGIN, experiment)
    assert code == 1
    assert re.match("configuration: .*unknown key .*cuont", line), line
