"""Cells of one small experiment: their runs and tests, and the audits that runs share."""

import pytest
import yaml

from dpfedbench.experiments.configuration import Configuration
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.plan import audited_as
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
    excluded = ("method", "seed", "dataset")
    values = {key: value for key, value in RUN.items() if key not in excluded}
    configuration = Configuration.read({"run": values} | yaml.safe_load(FIGURE))
    plan = make_plan(configuration)
    cells = list(plan.items["mine", "one"].cells)
    series = [("plain", 2), ("plain", 3), ("once", None), ("own", 2), ("own", 3)]
    assert [(cell.series, cell.x) for cell in cells] == series
    del cells[2]
    for cell in cells:
        assert [run.seed for run in cell.runs] == [4, 2, 7]
        assert [test.seed for test in cell.tests] == [4, 2, 7]
        for run, test in zip(cell.runs, cell.tests, strict=True):
            assert test.folder != run.folder
            assert test.task.shots == cell.x
            assert run.task.shots == 1
            assert test.evaluation.steps == (1 if cell.series == "own" else 9)
            assert test.evaluation.rate == 0.3
    run = cells[2].runs[0]
    assert run.clipping.kind == "constant"
    assert run.noise.multiplier == 5.0
    assert run.budget.delta == 1e-6
    assert len(plan.runs) == 6
    assert len(plan.tests) == 15


SGD = {"optimizer": {"kind": "sgd", "momentum": 0.5}}
FTRL = {"method": "dp-agr-ftrl"}
AGRLR = {"method": "dp-agrlr"}
REPTILE = {"method": "dp-reptile"}
FL = {"method": "dp-fl"}
DISJOINT = {"client_update": {"batches": "disjoint", "inner_steps": 3}}


@pytest.mark.parametrize(
    ("run", "change", "shared"),
    [
        ({}, {"server": {"rate": 0.5}}, True),
        ({}, {"client_update": {"inner_steps": 3}}, True),
        ({}, {"dataset": "omniglot"}, True),
        ({}, {"clients": {"count": 96}}, False),
        ({}, {"participation": {"rounds": 6}}, False),
        (FTRL, {"server": SGD}, False),
        (FTRL, {"noise": {"factorisation": "square-root"}}, False),
        (AGRLR, {"clients": {"query_per_class": 3}}, False),
        (AGRLR, {"task": {"ways": 2}}, False),
        (AGRLR, {"client_update": {"inner_steps": 3}}, False),
        (AGRLR, {"within_task": {"delta": 1e-4}}, False),
        (AGRLR, {"evaluation": {"steps": 3}}, True),
        (REPTILE, DISJOINT, False),
        (FL, {"evaluation": {"every": 0}}, True),
        (FL, {"clients": {"fragments": 40}}, False),
        (FL, {"clients": {"count": 2}}, False),
        (FL, {"dataset": "mnist"}, False),
        (FL, {"client_update": {"inner_steps": 2}}, False),
    ],
)
def test_audit_is_shared_by_runs_of_one_mechanism(run, change, shared):
    """Of clients, and of records."""
    general = LOTS if run is FL else RUN
    base = audited_as(make_config(run, general=general))
    changed = audited_as(make_config(run, change, general=general))
    assert (base == changed) is shared
