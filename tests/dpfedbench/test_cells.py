"""Runs: those of an experiment's cells, their keys and folders, and shared audits."""

from pathlib import Path

import pytest
import yaml

from dpfedbench.experiments.configuration import Configuration
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.plan import audited_as
from dpfedbench.method import Method
from dpfedbench.papers import read_run
from dpfedbench.papers.dp_fedmeta import DpAgr
from dpfedbench.run import read_yaml
from dpsum.clipping import Constant
from dpsum.noise import Gaussian
from tests.dpfedbench.training.conftest import LOTS, RUN, make_config

FIGURE = """
experiments:
  mine:
    title: Mine
    variants:
      quiet: {noise: {multiplier: 4.0}, clipping: constant}
      noisy: {noise: {multiplier: 5.0}, budget: {delta: 1.0e-7}}
    tasks: {letters: {dataset: glyphs}}
    figures:
      one:
        title: one
        kind: sweep
        task: letters
        seeds: [4, 2, 7]
        test: {steps: 9, rate: 0.3}
        x: {key: test.shots, values: [2, 3], label: shots}
        y: {label: accuracy}
        series:
          plain: {method: maml}
          once: {method: maml, sweep: false}
          own: {method: dp-agr, use: [quiet, noisy], run: {budget: {delta: 1.0e-6}}, test: {steps: 1, shots: 8}}
"""


def test_cell_overlays_win_and_each_seed_has_its_run():
    """Tests: the figure's values, then the series', then the swept value. A series
    may have no sweep.

    Runs: the variants' values in order, then the series'.
    """
    general = {key: RUN[key] for key in RUN.keys() - {"method", "seed", "dataset"}}
    plan = make_plan(Configuration.read({"run": general} | yaml.safe_load(FIGURE)))
    cells = list(plan.items["mine", "one"].cells)
    series = [("plain", 2), ("plain", 3), ("once", None), ("own", 2), ("own", 3)]
    assert [(cell.series, cell.x) for cell in cells] == series
    assert (len(plan.runs), len(plan.tests_of(None))) == (6, 15)
    del cells[2]
    for cell in cells:
        steps = 1 if cell.series == "own" else 9
        assert [run.seed for run in cell.runs] == [4, 2, 7]
        for run, test in zip(cell.runs, cell.tests, strict=True):
            assert (test.seed, test.task.shots) == (run.seed, cell.x)
            assert (test.evaluation.steps, test.evaluation.rate) == (steps, 0.3)
            assert test.folder != run.folder
            assert run.task.shots == 1
    run = cells[2].runs[0]
    assert run.clipping.kind == "constant"
    assert (run.noise.multiplier, run.budget.delta) == (5.0, 1e-6)


def test_run_key_does_not_change_with_a_key_of_a_later_version(tmp_path: Path) -> None:
    run = make_config({"evaluation": {"tasks": 50}, "streams": "shared"})
    path = tmp_path / "config.yaml"
    path.write_text(run.to_yaml(), encoding="utf-8")
    assert read_run(read_yaml(path)) == run
    older = run.plain()
    del older["streams"]
    path.write_text(yaml.safe_dump(older), encoding="utf-8")
    assert read_run(read_yaml(path)).key == run.key


def test_folders_have_what_a_run_and_a_test_differ_in() -> None:
    run = make_config({"seed": 2})
    assert run.folder == f"dp-agr/glyphs/3way-1shot/{run.key}/seed2"
    assert make_config(general=LOTS).folder.split("/")[2] == "10class"
    tested = run.tested_at(shots=5, steps=30)
    assert tested.test_name == "5shot-30steps-0.1rate-6tasks-3query"
    assert run.test_name != tested.test_name


DISJOINT = {"client_update": {"batches": "disjoint", "inner_steps": 3}}


@pytest.mark.parametrize(
    ("method", "change", "shared"),
    [
        ("dp-agr", {"server": {"rate": 0.5}}, True),
        ("dp-agr", {"client_update": {"inner_steps": 3}}, True),
        ("dp-agr", {"dataset": "omniglot"}, True),
        ("dp-agr", {"clients": {"count": 96}}, False),
        ("dp-agr", {"participation": {"rounds": 6}}, False),
        ("dp-agrlr", {"clients": {"query_per_class": 3}}, False),
        ("dp-agrlr", {"task": {"ways": 2}}, False),
        ("dp-agrlr", {"client_update": {"inner_steps": 3}}, False),
        ("dp-agrlr", {"within_task": {"delta": 1e-4}}, False),
        ("dp-agrlr", {"evaluation": {"steps": 3}}, True),
        ("dp-reptile", DISJOINT, False),
        ("dp-fl", {"evaluation": {"every": 0}}, True),
        ("dp-fl", {"clients": {"fragments": 40}}, False),
        ("dp-fl", {"clients": {"count": 2}}, False),
        ("dp-fl", {"dataset": "mnist"}, False),
        ("dp-fl", {"client_update": {"inner_steps": 2}}, False),
    ],
)
def test_audit_is_shared_by_runs_of_one_mechanism(method, change, shared):
    """Of clients, and of records."""
    run = {"method": method}
    general = LOTS if method == "dp-fl" else RUN
    base = audited_as(make_config(run, general=general))
    changed = audited_as(make_config(run, change, general=general))
    assert (base == changed) is shared


class ThresholdThree(DpAgr):
    """DP-AGR with values of its own class."""

    name = "threshold-three"
    clipping: Constant = Constant(threshold=3.0)
    noise: Gaussian = Gaussian(multiplier=1.0)


class ThresholdFour(ThresholdThree):
    """The same method after a correction of its class."""

    clipping: Constant = Constant(threshold=4.0)


@pytest.fixture
def known_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Method.known, "threshold-three", ThresholdThree)


SHARED = {
    "method": "threshold-three",
    "participation": {"cohort": 4, "rounds": 4},
    **{key: RUN[key] for key in ("seed", "dataset", "task", "clients", "model")},
}


def test_key_changes_with_a_value_of_the_class() -> None:
    """A corrected class must not take the folder and the checkpoints of old runs."""
    before = ThresholdThree.read(SHARED)
    after = ThresholdFour.read(SHARED)
    assert (before.clipping.threshold, after.clipping.threshold) == (3.0, 4.0)
    assert before.key != after.key


def test_key_is_that_of_the_values_wherever_they_stand() -> None:
    stated = {**SHARED, "clipping": {"kind": "constant", "threshold": 4.0}}
    assert ThresholdThree.read(stated).key == ThresholdFour.read(SHARED).key


def test_key_does_not_have_a_neutral_value_that_a_class_states() -> None:
    """1.0 is the default of the family's base too."""
    assert "noise" not in ThresholdThree.read(SHARED).identity()


def test_run_of_an_identity_does_not_depend_on_values_of_the_class() -> None:
    """Another run refers to this one by its identity (`initial.run`)."""
    run = ThresholdFour.read(SHARED)
    assert ThresholdThree.of_identity(run.identity()).clipping == run.clipping


def test_run_of_an_identity_has_neutral_values(known_method: None) -> None:
    run = ThresholdThree.read(SHARED).replace(noise=Gaussian(multiplier=1.0))
    assert Method.another(run.identity()) == run
