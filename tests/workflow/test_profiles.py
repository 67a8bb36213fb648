"""Profiles: each gives a DAG, and jobs ask for what the rules state."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SMOKE = ["--configfile", str(ROOT / "config" / "presets" / "smoke.yaml")]
SLURM = ROOT / "profiles" / "slurm"


@pytest.fixture
def plan(snakemake):
    """Return the output of a dry run of the smoke preset."""

    def dry_run(*arguments, machine=""):
        config = ["--config", f"machine={{threads: 2, gpu: 1{machine}}}"]
        done = snakemake("--dry-run", *SMOKE, *arguments, *config)
        assert done.returncode == 0, done.stderr
        return done

    return dry_run


def rules_of(output):
    """Yield the name and the text of each planned job."""
    yield from re.findall(
        r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", output, flags=re.MULTILINE
    )


def resources_of(output):
    """Return the resources of one job of each rule."""
    resources = {}
    for rule, text in rules_of(output):
        line = re.search(r"resources: (.*)", text)
        threads = re.search(r"threads: (\d+)", text)
        values = dict(re.findall(r"(\w+)=(\w+)", line[1] if line else ""))
        resources[rule] = values | {"threads": threads[1] if threads else "1"}
    return resources


@pytest.mark.parametrize("name", ["default", "slurm", "cluster"])
def test_profile_has_a_dag_with_the_resources_of_the_rules(plan, name):
    """Every method trains on a GPU where one is asked for. `mpi` or `tasks` would make
    a job one of several for Slurm's plugin.
    """
    chosen = [] if name == "default" else ["--profile", str(ROOT / "profiles" / name)]
    done = plan(*chosen)
    assert "profiles/default" in done.stderr  # below the chosen one
    resources = resources_of(done.stdout)
    assert not {"mpi", "tasks"} & set(resources["train"])
    trainings = [text for rule, text in rules_of(done.stdout) if rule == "train"]
    assert all("gpu=1" in text for text in trainings)
    train = {"mem_mb": "3000", "runtime": "1440", "threads": "2", "gpu": "1"}
    audit = {"mem_mb": "2000", "threads": "1", "gpu": "0"}
    assert resources["train"].items() >= train.items()
    assert resources["audit"].items() >= audit.items()


def test_slurm_profile_trains_by_several_processes_as_one_job_of_tasks(plan):
    options = ("--profile", str(SLURM), "--resources", "gpu=3")
    resources = resources_of(plan(*options, machine=", processes: 3").stdout)
    tasks = {"mpi": "srun", "tasks": "3", "cpus_per_task": "2"}
    tasks |= {"tasks_per_gpu": "1", "gpu": "3"}
    assert resources["train"].items() >= tasks.items()
    assert "mpi" not in resources["meta_test"]
    assert resources["meta_test"]["threads"] == "2"


def test_slurm_profile_repeats_the_values_of_every_rule_that_is_sent():
    """A batch of audits has an hour for each audit."""
    text = (SLURM / "config.yaml").read_text(encoding="utf-8")
    stated = {}
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        rules = re.split(
            r"^rule ", path.read_text(encoding="utf-8"), flags=re.MULTILINE
        )[1:]
        for rule in rules:
            pattern = r"(mem_mb|runtime)=(?:lambda wildcards: )?(\d+)"
            values = re.findall(pattern, rule)
            stated[rule.split(":")[0]] = {key: int(value) for key, value in values}
    for rule in ("configure", "cost", "verify", "audited"):  # run locally
        del stated[rule]
    assert yaml.safe_load(text)["set-resources"] == stated
