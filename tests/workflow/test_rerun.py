"""Rules that run again after a change: the whole workflow with scripts that only write
their outputs.
"""

import contextlib
import re
import shutil

import pytest

from tests.calls import call_snakemake, copy_checkout
from tests.shipped import without_others
from tests.workflow.conftest import planned_rules

STUB = """
import pathlib
for path in map(pathlib.Path, snakemake.output):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(path))
"""
SMALL = """
preset: null
seeds: [3]
experiments:
  dp-fedmeta:
    tables:
      table2: {tasks: [omniglot-1shot], series: {dp-agrlr: null, gbml: null}}
      table3-time: null
      repairs: null
      baselines: null
      as-released: null
      table2-by-tensor: null
    figures:
      frontier: null
      figure3: null
      figure4c: null
      figure4d: null
      figure4a: {x: {values: [50, 90]}, seeds: [0]}
      figure4b: null
      figure5: null
      figure2b: {seeds: [0]}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Copy the workflow, with stubs for scripts, and make a small run.

    A test that changes the copy restores it.
    """
    copy = tmp_path_factory.mktemp("finished") / "copy"
    copy_checkout(copy)
    for script in (copy / "workflow" / "scripts").glob("*.py"):
        script.write_text(STUB, encoding="utf-8")
    (copy / "small.yaml").write_text(without_others(SMALL), encoding="utf-8")
    done = run(copy)
    assert done.returncode == 0, done.stderr
    return copy


def run(copy, *arguments):
    options = [*arguments, "--configfile", str(copy / "small.yaml")]
    return call_snakemake(*options, folder=copy, PYTHONPATH="")


@pytest.fixture
def rerun(finished):
    """Return the rules that would run again: (rule, method) or (rule,)."""

    def dry_run():
        done = run(finished, "--dry-run")
        assert done.returncode == 0, done.stderr
        return {
            (rule, *re.findall(r"method=([\w-]+)", text)[:1])
            for rule, text in planned_rules(done.stdout + done.stderr)
        }

    return dry_run


@contextlib.contextmanager
def edited(path, old, new):
    """Replace a text in a file, and restore the file afterwards."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    yield
    path.write_text(text, encoding="utf-8")


PAGES = {("page",), ("provenance",), ("all",)}
REPORTED = {("table",), ("figure",), ("privacy",), ("collect",)} | PAGES


def test_rerun_of_copied_results_without_times_is_empty(finished, rerun, tmp_path):
    """After `cp -r` inputs may be younger than outputs."""
    results = finished / "results"
    original = tmp_path / "results"
    shutil.copytree(results, original)
    shutil.rmtree(results)
    shutil.copytree(original, results, copy_function=shutil.copy)
    for path in sorted(results.rglob("*"), reverse=True):
        path.touch()
    assert rerun() == set()
    shutil.rmtree(results)
    shutil.copytree(original, results)


def test_rerun_after_a_methods_version_trains_its_runs_alone(finished, rerun):
    """Accounts and audits depend on the folder of all methods, so they run again for
    every run.
    """
    method = finished / "src" / "dpfedbench" / "papers" / "dp_fedmeta.py"
    name = 'name = "dp-agr"'
    with edited(method, name, f'version = "1a"\n    {name}'):
        rules = rerun()
    trained = {entry for entry in rules if entry[0] in ("train", "meta_test")}
    assert trained == {("train", "dp-agr"), ("meta_test", "dp-agr")}
    assert {("account", "dp-agr"), ("audit", "dp-agr"), *REPORTED} < rules


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("dpsum/accounting/tuning.py", {"account", "audit"}),
        ("dpfedbench/models/meta_gradient.py", {"meta_test", "audit"}),
        ("dpfedbench/training/engine.py", {"account", "audit"}),
        ("dpfedbench/results/figures.py", set()),
    ],
)
def test_rerun_after_an_edit_of_a_package_is_cheap(finished, rerun, file, expected):
    """The rules that use the package run again, and no training does."""
    with edited(finished / "src" / file, "\n", "\n\n"):
        rules = {rule for rule, *_ in rerun()}
    assert rules & {"meta_test", "account", "audit"} == expected
    assert "train" not in rules
    assert {"table", "page"} < rules


def test_rerun_after_an_edit_of_workflow_jobs_is_empty(finished, rerun):
    jobs = finished / "src" / "workflow_jobs" / "jobs.py"
    with edited(jobs, "\n", "\n# a comment\n"):
        assert rerun() == set()


def test_rerun_after_a_changed_label_draws_one_figure(finished, rerun):
    """Machine settings and the local folder change nothing."""
    start = "experiments:\n"
    machine = (
        "machine: {threads: 2, checkpoint_seconds: 5}\ndata: {local_dir: /nowhere}\n"
    )
    grid = "{x: {values: [50, 90]}"
    path = finished / "small.yaml"
    with (
        edited(path, start, machine + start),
        edited(path, grid, grid.replace("{x", "{title: other, x")),
    ):
        assert rerun() == {("figure",)} | PAGES


def test_rerun_after_a_declared_search_trains_runs_of_their_own(finished, rerun):
    """A search on private data has streams of its own. A further value in a grid adds
    one run to the search's four.
    """
    start = "experiments:\n"
    path = finished / "small.yaml"
    with edited(path, start, "tuning: {dp-agr: {runs: 3, data: private}}\n" + start):
        stages = ("configure", "train", "meta_test", "account", "audit")
        assert rerun() == {(stage, "dp-agr") for stage in stages} | REPORTED
        with edited(path, "values: [50, 90]", "values: [50, 70, 90]"):
            done = run(finished, "--dry-run", "--quiet", "rules")
    output = done.stdout + done.stderr
    assert re.search(r"^train\s+5$", output, flags=re.MULTILINE), output
