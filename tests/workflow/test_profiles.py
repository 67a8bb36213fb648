"""Profiles: each gives a DAG, and jobs ask for what the rules state."""

import re

import pytest

from tests.calls import ROOT
from tests.shipped import parsed
from tests.workflow.conftest import SMOKE, planned_rules

SLURM = ROOT / "profiles" / "slurm"


MACHINE = "machine={{threads: 2, gpu: 1{}}}"


def resources_of(output):
    """Return the resources of one job of each rule."""
    resources = {}
    for rule, text in planned_rules(output):
        values = re.findall(r"(\w+)=(\w+)", re.search("resources: (.*)|$", text)[0])
        threads = re.search(r"threads: (\d+)", text)
        resources[rule] = dict(values) | {"threads": threads[1] if threads else "1"}
    return resources


@pytest.mark.parametrize("name", ["default", "slurm", "cluster"])
def test_profile_has_a_dag_with_the_resources_of_the_rules(plan, name):
    """Every method trains on a GPU where one is asked for. `mpi` or `tasks` would make
    a job one of several for Slurm's plugin.
    """
    chosen = [] if name == "default" else ["--profile", str(ROOT / "profiles" / name)]
    output = plan(*SMOKE, *chosen, "--config", MACHINE.format(""))
    assert "profiles/default" in output  # below the chosen one
    resources = resources_of(output)
    assert not {"mpi", "tasks"} & set(resources["train"])
    trainings = [text for rule, text in planned_rules(output) if rule == "train"]
    assert all("gpu=1" in text for text in trainings)
    train = {"mem_mb": "3000", "runtime": "1440", "threads": "2", "gpu": "1"}
    audit = {"mem_mb": "2000", "threads": "1", "gpu": "0"}
    assert resources["train"].items() >= train.items()
    assert resources["audit"].items() >= audit.items()


def test_slurm_profile_trains_by_several_processes_as_one_job_of_tasks(plan):
    options = ("--profile", str(SLURM), "--resources", "gpu=3")
    machine = ("--config", MACHINE.format(", processes: 3"))
    resources = resources_of(plan(*SMOKE, *options, *machine))
    tasks = {"mpi": "srun", "tasks": "3", "cpus_per_task": "2"}
    tasks |= {"tasks_per_gpu": "1", "gpu": "3"}
    assert resources["train"].items() >= tasks.items()
    assert "mpi" not in resources["meta_test"]
    assert resources["meta_test"]["threads"] == "2"


def test_slurm_profile_repeats_the_values_of_every_rule_that_is_sent():
    stated = {}
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        text = path.read_text(encoding="utf-8")
        for rule in re.split(r"^rule ", text, flags=re.MULTILINE)[1:]:
            pattern = r"(mem_mb|runtime)=(\d+)"
            values = re.findall(pattern, rule)
            stated[rule.split(":")[0]] = {key: int(value) for key, value in values}
    for rule in ("configure", "cost", "verify"):  # run locally
        del stated[rule]
    assert parsed(SLURM / "config.yaml")["set-resources"] == stated
