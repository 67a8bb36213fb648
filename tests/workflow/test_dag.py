"""The DAG of every preset and target, and the form of the workflow's files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRESETS = ROOT / "config" / "presets"
SMOKE = ["--configfile", str(PRESETS / "smoke.yaml")]
RULES = ROOT / "workflow" / "rules"


def jobs(output: str) -> dict[str, int]:
    """Return the number of jobs of each rule, from Snakemake's table."""
    table = output[output.index("Job stats:") :].split("\n\n")[0]
    rows = re.findall(r"^(\w+)\s+(\d+)$", table, flags=re.MULTILINE)
    return {name: int(count) for name, count in rows}


@pytest.fixture
def plan(snakemake):
    """Return the output of a dry run of targets."""

    def dry_run(*arguments):
        done = snakemake("--dry-run", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return dry_run


@pytest.fixture
def plan_jobs(plan):
    """Return the planned jobs of targets, by rule."""

    def dry_run(*targets, preset=None):
        chosen = ["--configfile", str(PRESETS / f"{preset}.yaml")] if preset else []
        return jobs(plan(*targets, "--quiet", "rules", *chosen))

    return dry_run


@pytest.mark.parametrize("preset", [None, "smoke", "real", "paper"])
def test_dag_of_a_preset_has_each_stage_of_a_run_once(plan_jobs, preset):
    """A job makes several audits; smoke has few runs of a method."""
    counts = plan_jobs(preset=preset)
    stages = ("configure", "train", "meta_test", "account")
    assert len({counts[stage] for stage in stages}) == 1
    for rule in ("provenance", "page", "privacy", "collect"):
        assert counts[rule] == 1
    assert counts["table"] >= 5
    assert counts["figure"] >= 9
    assert counts["prepare"] >= 2
    factor = 1.35 if preset == "smoke" else 1.5
    assert counts["audited"] >= factor * counts["audit"]


def test_dag_of_the_scale_preset_has_its_runs_once(plan_jobs):
    """MAML by two settings, and DP-AGR as published and repaired, flat and by tensor.

    One setting of MAML turns the classes, which is a partition of its own.
    """
    counts = plan_jobs("dp_fedmeta", preset="scale")
    assert counts["train"] == counts["meta_test"] == counts["account"] == 6
    assert counts["prepare"] == 1
    assert counts["partition"] == 2
    assert counts["audited"] == 4


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
    assert f"results/smoke/{paper}.html" in output
    assert f"results/smoke/tables/{paper}/privacy.csv" in output
    assert counts["audited"] > counts["audit"]
    assert counts["account"] < 25
    assert counts["account"] <= counts["train"] <= counts["account"] + 1


def test_dag_of_the_frontier_has_no_audit(plan):
    output = plan("frontier", *SMOKE)
    counts = jobs(output)
    assert counts["frontier"] == counts["frontier_table"] == counts["figure"] == 1
    assert counts["train"] > 4
    assert counts.keys().isdisjoint({"audit", "privacy", "page", "table"})
    assert "results/smoke/figures/dp-fedmeta/frontier.png" in output
    assert "results/smoke/tables/frontier.csv" in output


def test_dag_of_an_audit_has_trainings_and_no_account(plan, plan_jobs):
    """The table of privacy need not have the audit."""
    output = plan("results/smoke/audits/dp-agr-1", *SMOKE)
    counts = jobs(output)
    folders = re.findall(r"results/runs/(dp-agr/\S+?)/ledger\.jsonl", output)
    assert counts["train"] == counts["configure"] == len(set(folders)) > 1
    stages = {"configure", "partition", "prepare", "train"}
    assert counts.keys() == {"audit", "total"} | stages
    plain_runs = re.findall(r"results/runs/(maml/\S+?/seed\d+)/", plan(*SMOKE))
    target = f"results/runs/{min(plain_runs)}/audit.json"
    expected = dict.fromkeys({"audit", "audited"} | stages, 1) | {"total": 6}
    assert plan_jobs(target, preset="smoke") == expected


OWN = """
experiments:
  mine:
    title: Mine
    tasks: {letters: {dataset: omniglot}}
    tables:
      one: {title: one, tasks: [letters], seeds: [0], series: {maml: {method: maml}, dp-agr: {method: dp-agr}}}
"""


@pytest.mark.parametrize("by_folder", [False, True])
def test_dag_has_an_experiment_outside_the_repository(plan, tmp_path, by_folder):
    path = tmp_path / "own" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(OWN, encoding="utf-8")
    chosen = ["--configfile", str(path)]
    if by_folder:
        chosen = ["--config", "experiments_folder=own"]
    counts = jobs(plan("mine", "--quiet", "rules", *chosen))
    assert counts["table"] == 1
    assert counts["train"] == 2


def test_dag_of_a_median_threshold_waits_for_the_run_without_privacy(plan):
    """The plan has three private runs and the run without privacy."""
    output = plan("results/smoke/figures/dp-maml/figure6a.png", *SMOKE)
    inputs = re.findall(r"^rule train:\n    input: (.*)\n", output, flags=re.MULTILINE)
    assert len(inputs) == 4
    (waiting,) = [line for line in inputs if "history.csv" in line]
    assert "results/runs/maml/" in waiting


def test_dag_of_initialisations_trains_each_once_and_tests_it_at_every_shot(
    plan_jobs,
):
    """Six initialisations, three shots, clients of 5-way tasks, and one holder of all
    images.

    The second figures share three initialisations; MAML and DP-MAML are meta-trained at
    1 and at 5 shots.
    """
    counts = plan_jobs("results/figures/dp-fedmeta/figure5.png")
    assert counts["train"] == counts["meta_test"] == counts["account"] == 6
    assert counts["meta_test_at"] == 6 * 3
    assert counts["prepare"] == counts["figure"] == 1
    assert counts["partition"] == 2
    targets = [f"results/figures/dp-maml/figure13{letter}.png" for letter in "ab"]
    counts = plan_jobs(*targets)
    assert counts["train"] == 3 + 2 * 2
    assert counts["meta_test_at"] == 7 * 3


def test_snakemake_lint_is_clean(snakemake):
    done = snakemake("--lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflow_files_have_the_format_of_snakefmt():
    pytest.importorskip("snakefmt")
    command = [sys.executable, "-m", "snakefmt", "--check"]
    command += [str(ROOT / "Snakefile"), str(ROOT / "workflow")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rules_have_a_docstring_a_log_and_resources():
    for path in RULES.glob("*.smk"):
        rules = re.split(
            r"^rule ", path.read_text(encoding="utf-8"), flags=re.MULTILINE
        )[1:]
        for rule in rules:
            assert re.match(r'\w+:\n    """', rule), rule
            for part in ("log:", "conda:", "threads:", "mem_mb=", "runtime=", "gpu="):
                assert part in rule, (path.name, rule.split(":")[0], part)
