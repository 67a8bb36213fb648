"""One training by several processes: the bits of one process, kills, and refusals."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
from torch import distributed

from dpfedbench.errors import BenchError
from dpfedbench.files import write_text
from dpfedbench.training.distributed import Lost, Processes, joined
from workflow_jobs import launch

from . import conftest
from .conftest import (
    forking,
    lots_config,
    make_config,
    personal_in,
    train_model,
    training_in,
)
from .test_restart import CASES as RUNS
from .test_restart import slow_down, wait_for_write, with_rounds, write_time

CASES = {
    name: (RUNS[name][0], with_rounds(RUNS[name][1], 4))
    for name in (
        "dp-agr",
        "dp-agr, quantile by layer",
        "dp-agr, poisson",
        "maml",
        "dp-agrlr",
        "dp-maml-sample",
        "local-reptile",
        "adap-dp-fl, norm of release",
        "fedavg",
        "dp-fedavg",
        "shared coordinates",
        "personal heads",
        "dp-fnas",
    )
} | {"random": ("federation", make_config({"method": "random"}))}


def join_group(rank, count, port):
    """Set the variables that torchrun sets for a process of a group."""
    numbers = {"RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ.update({name: str(number) for name, number in numbers.items()})


def take_part(rank, count, port, jobs, round_seconds):
    """Train all jobs as one process. The first one writes a refusal to a file."""
    join_group(rank, count, port)
    slow_down(round_seconds)
    with joined() as processes:
        for configs, folders, run_dir, seconds in jobs:
            config = configs[rank] if isinstance(configs, tuple) else configs
            options = {"checkpoint_seconds": seconds, "processes": processes}
            try:
                train_model(config, folders, run_dir, **options)
            except BenchError as error:
                if processes.is_main:
                    run_dir.with_name("refusal").write_text(str(error))
                raise SystemExit(1) from error


def start_processes(count, jobs, round_seconds=0.0):
    """Start processes that train these jobs together."""
    port = launch._free_port()
    processes = []
    for rank in range(count):
        arguments = (rank, count, port, jobs, round_seconds)
        processes.append(forking().Process(target=take_part, args=arguments))
        processes[-1].start()
    return processes


def exit_codes(processes, seconds=600):
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert None not in codes, "a process did not end"
    return codes


def results_in(run_dir):
    """Return model, ledger, and the history without the times."""
    names = ("model.safetensors", "ledger.jsonl")
    history = conftest.history_in(run_dir).drop(columns="seconds").to_csv()
    return [(run_dir / name).read_bytes() for name in names], history


def train_alone(config, folders, run_dir):
    train_model(config, folders, run_dir)
    return results_in(run_dir)


@pytest.fixture(scope="module")
def by_two(request, tmp_path_factory):
    """Train all cases with two processes: (folder, job of each case)."""
    root = tmp_path_factory.mktemp("two")
    jobs = {
        name: (config, request.getfixturevalue(fixture), root / name, 1e9)
        for name, (fixture, config) in CASES.items()
    }
    assert exit_codes(start_processes(2, list(jobs.values()))) == [0, 0]
    return root, jobs


@pytest.mark.parametrize("name", CASES)
def test_two_processes_end_with_the_bits_of_one(name, by_two, tmp_path):
    root, jobs = by_two
    config, folders, *_ = jobs[name]
    assert train_alone(config, folders, tmp_path) == results_in(root / name)
    assert personal_in(root / name) == personal_in(tmp_path)
    assert training_in(root / name)["processes"] == 2


@pytest.mark.parametrize("name", ["dp-agr", "personal heads", "dp-fnas"])
def test_killed_processes_are_followed_by_others_to_the_same_bits(
    name, by_two, tmp_path
):
    """The second of two processes is killed, then the first of three."""
    root, jobs = by_two
    config, folders, *_ = jobs[name]
    run_dir = tmp_path / "run"
    moments = random.Random(name)
    state = run_dir / "checkpoint" / "state.pt"
    for count, victim in ((2, 1), (3, 0)):
        before = write_time(state)
        processes = start_processes(count, [(config, folders, run_dir, 0)], 0.05)
        wait_for_write(state, before, processes[0].is_alive)
        time.sleep(moments.uniform(0, 0.06))
        processes[victim].kill()
        codes = exit_codes(processes)
        assert codes[victim] == -signal.SIGKILL
        assert all(codes)
    assert train_alone(config, folders, run_dir) == results_in(root / name)
    assert training_in(run_dir)["resumed"] == 2


def test_process_that_lost_another_does_not_leave_the_group(monkeypatch):
    """Leaving the group can wait for a process that is gone; exiting does not."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    join_group(0, 1, launch._free_port())
    with pytest.raises(Lost), joined():
        raise Lost
    assert distributed.is_initialized()
    distributed.destroy_process_group()


def test_processes_with_other_configurations_data_or_code_are_refused(
    federation, tmp_path, monkeypatch
):
    config = CASES["dp-agr"][1]
    job = (config, config.replace(seed=1)), federation, tmp_path / "run", 1e9
    assert exit_codes(start_processes(2, [job])) == [1, 1]
    refusal = (tmp_path / "refusal").read_text()
    assert "another configuration than process 0" in refusal
    assert not (tmp_path / "run").exists()
    Processes().check_agree(config, "cpu", federation)
    changed = {str(federation[0]): "other", "torch": "0"}
    monkeypatch.setattr(
        Processes, "gather", lambda self, value: [value, ("far", value[1] | changed)]
    )
    with pytest.raises(BenchError, match=r"far has another torch, .*data than process"):
        Processes(0, 2).check_agree(config, "cpu", federation)


JOB = """
import json, sys
from pathlib import Path
from workflow_jobs.jobs import job
from workflow_jobs.launch import train_together
with job(Path(sys.argv[2], "train.log"), "train"):
    train_together(json.loads(sys.argv[1]), processes=2, log=Path(sys.argv[2], "others.log"))
"""


def start_job(config, folders, run_dir):
    """Start a job of the workflow that trains with two processes."""
    write_text(run_dir / "config.yaml", config.to_yaml())
    arguments = {
        "data_dir": folders[0],
        "clients_dir": folders[1],
        "run_dir": run_dir,
        "threads": 1,
        "checkpoint_seconds": 0.01,
        "device": "cpu",
        "kernels": True,
        "references": [],
        "config": run_dir / "config.yaml",
    }
    command = [sys.executable, "-c", JOB, json.dumps(arguments, default=str)]
    command.append(str(run_dir.parent))
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def members_of(job, run_dir):
    """Return the training's processes by rank, once they wrote a checkpoint."""
    state = run_dir / "checkpoint" / "state.pt"
    wait_for_write(state, write_time(state), lambda: job.poll() is None)
    children = psutil.Process(job.pid).children(recursive=True)
    ranks = {child: child.environ().get("RANK") for child in children}
    return {int(rank): child for child, rank in ranks.items() if rank}


# Faster: test_killed_processes_are_followed_by_others_to_the_same_bits, by forks, and
# test_train_script_passes_the_machines_settings, by torchrun.
@pytest.mark.slow
def test_job_of_two_processes_is_killed_in_parts_and_goes_on(silos, tmp_path):
    """torchrun starts the processes. A killed job ends all of them."""
    config = lots_config({"participation": {"rounds": 200}, "validation": {"every": 0}})
    run_dir = tmp_path / config.folder
    for victim in ("member", "job"):
        job = start_job(config, silos, run_dir)
        members = members_of(job, run_dir)
        (members[1] if victim == "member" else job).kill()
        assert psutil.wait_procs(members.values(), timeout=20)[1] == []
        errors = job.communicate(timeout=600)[1].splitlines()
        if victim == "member":
            assert job.returncode == 1
            lost = "train: one of the 2 processes was killed or lost ("
            assert errors[-1].startswith(lost)
    job = start_job(config, silos, run_dir)
    errors = job.communicate(timeout=600)[1]
    assert job.returncode == 0, errors
    assert results_in(run_dir) == train_alone(config, silos, tmp_path / "one")
    assert training_in(run_dir)["resumed"] == 2
