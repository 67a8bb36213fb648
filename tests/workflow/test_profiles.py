"""The profiles: each gives a DAG, and what a job asks for is what the rules state."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., subprocess.CompletedProcess[str]]
SMOKE = ["--configfile", str(ROOT / "config" / "presets" / "smoke.yaml")]


def asked(said: str) -> dict[str, dict[str, str]]:
    """For each rule, what one of its jobs asks for."""
    found = {}
    for rule, text in re.findall(
        r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", said, flags=re.M
    ):
        resources = re.search(r"resources: (.*)", text)
        threads = re.search(r"threads: (\d+)", text)
        pairs = dict(re.findall(r"(\w+)=(\w+)", resources[1] if resources else ""))
        found[rule] = pairs | {"threads": threads[1] if threads else "1"}
    return found


def gpus(said: str) -> dict[str, str]:
    """For each method, what its trainings ask for."""
    texts = re.findall(r"^rule train:\n((?:    .*\n)+)", said, flags=re.M)
    return {
        re.search(r"method=([\w-]+)", text)[1]: re.search(r"gpu=(\d)", text)[1]
        for text in texts
    }  # type: ignore[index]


@pytest.mark.parametrize("name", ["default", "slurm", "cluster"])
def test_every_profile_has_a_dag(snakemake: Call, name: str) -> None:
    chosen = [] if name == "default" else ["--profile", str(ROOT / "profiles" / name)]
    done = snakemake(
        "--dry-run", *SMOKE, *chosen, "--config", "machine={threads: 2, gpu: 1}"
    )
    assert done.returncode == 0, done.stderr
    assert "profiles/default" in done.stderr  # laid over the other one
    found = asked(done.stdout)
    assert (
        "mpi" not in found["train"] and "tasks" not in found["train"]
    )  # which Slurm's plugin takes for one of several
    # Every method trains on a GPU where one is asked for.
    assert set(gpus(done.stdout).values()) == {"1"}
    for rule, memory, minutes, threads, gpu in (
        ("prepare", "4000", "120", "1", "0"),
        ("partition", "2000", "30", "1", "0"),
        ("train", "3000", "1440", "2", "1"),
        ("meta_test", "3000", "240", "2", "0"),
        ("account", "3000", "60", "1", "0"),
        ("audit", "2000", found["audit"]["runtime"], "1", "0"),
        ("table", "1000", "10", "1", "0"),
        ("figure", "1000", "10", "1", "0"),
        ("provenance", "500", "5", "1", "0"),
    ):
        wanted = {"mem_mb": memory, "runtime": minutes, "threads": threads, "gpu": gpu}
        assert {key: found[rule][key] for key in wanted} == wanted, rule


def test_a_training_by_several_processes_is_one_job_of_as_many_tasks(
    snakemake: Call,
) -> None:
    slurm = ("--profile", str(ROOT / "profiles" / "slurm"), "--resources", "gpu=3")
    done = snakemake(
        "--dry-run",
        *SMOKE,
        *slurm,
        "--config",
        "machine={threads: 2, processes: 3, gpu: 1}",
    )
    assert done.returncode == 0, done.stderr
    found = asked(done.stdout)
    wanted = {
        "mpi": "srun",
        "tasks": "3",
        "cpus_per_task": "2",
        "tasks_per_gpu": "1",
        "gpu": "3",
    }
    assert {key: found["train"][key] for key in wanted} == wanted
    assert "mpi" not in found["meta_test"] and found["meta_test"]["threads"] == "2"


def test_a_partition_and_an_account_reach_every_job_that_is_sent(
    snakemake: Call, tmp_path: Path
) -> None:
    copy = tmp_path / "profile"
    copy.mkdir()
    text = (ROOT / "profiles" / "slurm" / "config.yaml").read_text(encoding="utf-8")
    text, edited = re.subn(r"(slurm_(partition|account):)  ", r"\1 my-\2 ", text)
    assert edited == 2  # the two lines that a user edits, and no others
    (copy / "config.yaml").write_text(text, encoding="utf-8")
    done = snakemake("--dry-run", *SMOKE, "--profile", str(copy))
    assert done.returncode == 0, done.stderr
    assert (
        "slurm_partition=my-partition" in done.stdout
        and "slurm_account=my-account" in done.stdout
    )


def test_the_slurm_profile_names_every_rule_that_is_sent_and_agrees_with_it() -> None:
    """The profile repeats the rules' own values for people to edit; a value that
    drifted would mislead them.
    """
    text = (ROOT / "profiles" / "slurm" / "config.yaml").read_text(encoding="utf-8")
    found = yaml.safe_load(text)["set-resources"]
    stated = {}
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for text in re.split(r"^rule ", path.read_text(encoding="utf-8"), flags=re.M)[
            1:
        ]:
            name = text.split(":")[0]
            # Of a batch of audits, an hour for each.
            numbers = {
                key: re.search(rf"{key}=(?:lambda wildcards: )?(\d+)", text)
                for key in ("mem_mb", "runtime")
            }
            stated[name] = {
                key: int(number[1]) for key, number in numbers.items() if number
            }
    local = {"configure", "cost", "verify", "audited"}
    assert found == {
        name: values for name, values in stated.items() if name not in local
    }
