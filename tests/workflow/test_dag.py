"""The DAG of every preset, what a user's mistake looks like, and the workflow's own
form.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRESETS = ROOT / "config" / "presets"
SMOKE = ["--configfile", str(PRESETS / "smoke.yaml")]
Call = Callable[..., subprocess.CompletedProcess[str]]


def jobs(output: str) -> dict[str, int]:
    """Snakemake's table of jobs."""
    table = output[output.index("Job stats:") :].split("\n\n")[0]
    return {
        name: int(count)
        for name, count in re.findall(r"^(\w+)\s+(\d+)$", table, flags=re.M)
    }


@pytest.mark.parametrize("preset", [None, "smoke", "real", "paper"])
def test_every_preset_has_a_dag(snakemake: Call, preset: str | None) -> None:
    """A run is configured, trained, tested and accounted for once, whatever shows it."""
    found = planned(snakemake, preset=preset)
    stages = ("configure", "train", "meta_test", "account")
    assert len({found[stage] for stage in stages}) == 1
    for rule in ("provenance", "page", "privacy", "collect"):
        assert found[rule] == 1
    assert found["table"] >= 5 and found["figure"] >= 9 and found["prepare"] >= 2
    # Audits are made several a job; smoke has few runs of a method.
    assert found["audited"] >= (1.35 if preset == "smoke" else 1.5) * found["audit"]


def test_the_scale_preset_trains_three_runs_of_one_partition(snakemake: Call) -> None:
    found = planned(snakemake, "dp_fedmeta", preset="scale")
    assert found["train"] == found["meta_test"] == found["account"] == 3
    assert found["prepare"] == found["partition"] == 1 and found["audited"] == 2


def planned(
    snakemake: Call, *targets: str, preset: str | None = None
) -> dict[str, int]:
    """Return the jobs that a dry run plans, by rule."""
    chosen = ["--configfile", str(PRESETS / f"{preset}.yaml")] if preset else []
    done = snakemake(*targets, "--dry-run", "--quiet", "rules", *chosen)
    assert done.returncode == 0, done.stderr
    return jobs(done.stdout + done.stderr)


def dry_run(snakemake: Call, *targets: str) -> str:
    """Return what a dry run of the smoke preset says."""
    done = snakemake(*targets, "--dry-run", *SMOKE)
    assert done.returncode == 0, done.stderr
    return str(done.stdout + done.stderr)


@pytest.mark.parametrize("target", ["dp_fedmeta", "adap_dp_fl"])
def test_a_paper_is_a_target(snakemake: Call, target: str) -> None:
    """No run is trained, and none audited, that the paper does not show, but for the
    model that rows of a public start begin from.
    """
    plan = dry_run(snakemake, target)
    paper = target.replace("_", "-")
    found = jobs(plan)
    assert "provenance" not in found and found["page_of_paper"] == found["privacy"] == 1
    made = re.findall(r"output: results/smoke/(?:tables|figures)/([\w-]+)/", plan)
    assert made and set(made) == {paper}
    assert f"results/smoke/{paper}.html" in plan
    assert f"results/smoke/tables/{paper}/privacy.csv" in plan
    assert found["audited"] > found["audit"] and found["account"] < 25
    assert found["account"] <= found["train"] <= found["account"] + 1


def test_the_frontier_is_a_target_and_audits_nothing(snakemake: Call) -> None:
    plan = dry_run(snakemake, "frontier")
    found = jobs(plan)
    assert found["frontier"] == found["frontier_table"] == found["figure"] == 1
    assert found["train"] > 4
    assert found.keys().isdisjoint({"audit", "privacy", "page", "table"})
    made = set(re.findall(r"results/smoke/[\w./-]+", plan))
    assert "results/smoke/figures/dp-fedmeta/frontier.png" in made
    assert "results/smoke/tables/frontier.csv" in made


def test_audits_take_trained_runs_ledgers_and_no_account(snakemake: Call) -> None:
    plan = dry_run(snakemake, "results/smoke/audits/dp-agr-1")
    found = jobs(plan)
    folders = re.findall(r"results/runs/(dp-agr/\S+?)/ledger\.jsonl", plan)
    assert found["train"] == found["configure"] == len(set(folders)) > 1
    before = {"configure", "partition", "prepare", "train"}
    assert found.keys() == {"audit", "total"} | before
    # One that the table of privacy does not need, by itself.
    plain = re.findall(r"results/runs/(maml/\S+?/seed\d+)/", dry_run(snakemake))
    single = planned(snakemake, f"results/runs/{min(plain)}/audit.json", preset="smoke")
    assert single == dict.fromkeys({"audit", "audited"} | before, 1) | {"total": 6}


OWN = """
experiments:
  mine:
    title: Mine
    tasks: {letters: {dataset: omniglot}}
    tables:
      one: {title: one, tasks: [letters], seeds: [0], series: {maml: {method: maml}, dp-agr: {method: dp-agr}}}
"""


@pytest.mark.parametrize("folder", [False, True])
def test_an_experiment_may_lie_outside_the_repository(
    snakemake: Call, tmp_path: Path, folder: bool
) -> None:
    """Given by --configfile, or in a folder that the configuration names."""
    path = tmp_path / "own" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(OWN, encoding="utf-8")
    chosen = ["--configfile", str(path)]
    if folder:
        chosen = ["--config", "experiments_folder=own"]
    found = planned(snakemake, "mine", *chosen)
    assert found["table"] == 1 and found["train"] == 2


def test_a_median_threshold_waits_for_its_run_without_privacy(snakemake: Call) -> None:
    """A constant threshold at that run's median trains both, the run without privacy
    first.
    """
    plan = dry_run(snakemake, "results/smoke/figures/dp-maml/figure6a.png")
    inputs = re.findall(r"^rule train:\n    input: (.*)\n", plan, flags=re.M)
    assert len(inputs) == 4  # three private ones, and the run without
    (waiting,) = [line for line in inputs if "history.csv" in line]
    assert "results/runs/maml/" in waiting


def test_a_figure_of_initialisations_trains_each_once_and_tests_it_at_every_shot(
    snakemake: Call,
) -> None:
    """Six initialisations, three shots. In the second figures three are shared, and MAML
    and DP-MAML are meta-trained at 1 and at 5 shots.
    """
    found = planned(snakemake, "results/figures/dp-fedmeta/figure5.png")
    assert found["train"] == found["meta_test"] == found["account"] == 6
    assert found["meta_test_at"] == 6 * 3
    # The clients of 5-way tasks, and the one holder of all images.
    assert found["prepare"] == 1 and found["partition"] == 2 and found["figure"] == 1
    both = [f"results/figures/dp-maml/figure13{letter}.png" for letter in "ab"]
    found = planned(snakemake, *both)
    assert found["train"] == 3 + 2 * 2 and found["meta_test_at"] == 7 * 3


def test_lint_is_clean(snakemake: Call) -> None:
    done = snakemake("--lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_format_is_snakefmts() -> None:
    pytest.importorskip("snakefmt")
    command = [sys.executable, "-m", "snakefmt", "--check"]
    paths = [str(ROOT / "Snakefile"), str(ROOT / "workflow")]
    done = subprocess.run([*command, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_rule_says_what_it_does_and_keeps_a_log() -> None:
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in re.split(r"^rule ", path.read_text(encoding="utf-8"), flags=re.M)[
            1:
        ]:
            assert re.match(r'\w+:\n    """', rule), rule
            for part in ("log:", "conda:", "threads:", "mem_mb=", "runtime=", "gpu="):
                assert part in rule, (path.name, rule.split(":")[0], part)
