"""The DAG of every preset and target, and the form of the workflow's files."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.calls import ROOT
from tests.workflow.conftest import SMOKE


def jobs(output: str) -> dict[str, int]:
    """Return the number of jobs of each rule, from Snakemake's table."""
    table = output[output.index("Job stats:") :].split("\n\n")[0]
    rows = re.findall(r"^(\w+)\s+(\d+)$", table, flags=re.MULTILINE)
    return {name: int(count) for name, count in rows}


# The two small ones guard the rules; of the large ones, tests/dpfedbench/test_planned_cells.py
# guards the cells.
LARGE = [pytest.param(name, marks=pytest.mark.slow) for name in ("real", "paper")]


@pytest.mark.parametrize("preset", [None, "smoke", *LARGE])
def test_dag_of_a_preset_has_each_stage_of_a_run_once(plan, preset):
    path = ROOT / "config" / "presets" / f"{preset}.yaml"
    counts = jobs(plan("--quiet", "rules", *(["--configfile", path] if preset else ())))
    stages = ("configure", "train", "meta_test", "account")
    assert len({counts[stage] for stage in stages}) == 1
    for rule in ("provenance", "page", "collect"):
        assert counts[rule] == 1
    # The page of the papers that are finished has the table of privacy of each paper.
    assert counts["privacy"] == 1 + counts["page_so_far"]
    assert 0 < counts["audit"] < counts["account"]


@pytest.mark.parametrize("target", ["dp_fedmeta", "adap_dp_fl"])
def test_dag_of_a_paper_has_the_runs_that_it_shows(plan, target):
    """It also has the model that rows with a public start begin from."""
    output = plan(target, *SMOKE)
    paper = target.replace("_", "-")
    counts = jobs(output)
    assert "provenance" not in counts
    assert counts["page_of_paper"] == counts["privacy"] == 1
    folders = re.findall(r"output: results/smoke/(?:tables|figures)/([\w-]+)/", output)
    assert set(folders) == {paper}
    assert 0 < counts["audit"] < counts["account"]
    assert counts["account"] < 25
    assert counts["account"] <= counts["train"] <= counts["account"] + 1


def test_dag_of_a_folder_follows_its_configuration(snakemake, tmp_path):
    """The configuration of .test is the preset smoke."""
    shutil.copytree(ROOT / ".test" / "config", tmp_path / "config")
    done = snakemake("--dry-run", "dp_fnas")
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    folders = re.findall(r"output: results/smoke/(?:tables|figures)/([\w-]+)/", output)
    assert "dp-fnas" in folders
    assert "results/tables" not in output


def test_dag_of_the_frontier_and_of_the_libraries_has_no_audit(plan):
    for target in ("frontier", "libraries"):
        counts = jobs(plan(target, "--quiet", "rules", *SMOKE))
        assert counts[f"{target}_table"] == counts[target] == 1
        assert counts.keys().isdisjoint({"audit", "privacy", "page"})


def test_dag_of_an_audit_has_trainings_and_no_account(plan):
    """The table of privacy need not have the audit."""
    plain_runs = re.findall(r"results/runs/(maml/\S+?/seed\d+)/", plan(*SMOKE))
    target = f"results/runs/{min(plain_runs)}/audit.json"
    rules = ("configure", "partition", "prepare", "train", "audit")
    assert jobs(plan(target, *SMOKE)) == dict.fromkeys(rules, 1) | {"total": 5}


def test_dag_of_a_median_threshold_waits_for_the_run_without_privacy(plan):
    """The plan has three private runs and the run without privacy."""
    output = plan("results/smoke/figures/dp-maml/figure6a.png", *SMOKE)
    inputs = re.findall(r"^rule train:\n    input: (.*)\n", output, flags=re.MULTILINE)
    assert len(inputs) == 4
    (waiting,) = [line for line in inputs if "history.csv" in line]
    assert "results/runs/maml/" in waiting


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("figures/dp-fedmeta/table2.png", "No rule to produce"),
        ("tables/dp-fedmeta/figure4a.csv", "No rule to produce"),
        ("tables/dp-fnas/baselines.csv", "dp-fnas has no baselines: its tables"),
    ],
)
def test_item_that_does_not_exist_is_refused_before_a_run(snakemake, target, message):
    """A table that was asked for as a figure ended in a KeyError, after its trainings."""
    done = snakemake("--dry-run", f"results/smoke/{target}", *SMOKE)
    assert done.returncode == 1
    assert message in done.stdout + done.stderr


def test_dag_of_a_table_has_the_meta_tests_of_its_rows(plan, tmp_path):
    """A table whose row has a meta-test of its own ended without it, after its trainings."""
    overlay = tmp_path / "steps.yaml"
    overlay.write_text(
        "experiments: {dp-fedmeta: {tables: {table2: {series: {maml: {test: {steps: 3}}}}}}}"
    )
    target = "results/smoke/tables/dp-fedmeta/table2.csv"
    counts = jobs(plan(target, "--quiet", "rules", *SMOKE, str(overlay)))
    assert counts["meta_test_at"] == 1  # of the one seed
    assert counts["meta_test"] == counts["train"]


def test_snakemake_lint_is_clean(snakemake):
    done = snakemake("--lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflow_files_have_the_format_of_snakefmt():
    pytest.importorskip("snakefmt")
    command = [sys.executable, "-m", "snakefmt", "--check", "Snakefile", "workflow"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
