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
from dpfedbench.training import engine, together
from dpfedbench.training.processes import Lost, Processes, joined
from workflow_jobs import launch

from .conftest import (
    forking,
    history_in,
    lots_config,
    personal_in,
    train_model,
    training_in,
)
from .test_restart import CASES as RUNS
from .test_restart import with_rounds

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
        "dp-scaffold",
        "shared coordinates",
        "personal heads",
        "dp-fnas",
    )
}


def take_part(rank, count, port, jobs, refusal=None):
    """Train all jobs as one process of `start_processes` does.

    The first process writes a refusal to the file `refusal`.
    """
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    with joined() as processes:
        for configs, folders, run_dir, seconds in jobs:
            config = configs[rank] if isinstance(configs, tuple) else configs
            options = {"checkpoint_seconds": seconds, "processes": processes}
            try:
                train_model(config, folders, run_dir, **options)
            except BenchError as error:
                if processes.first and refusal:
                    refusal.write_text(str(error))
                raise SystemExit(1) from error


def start_processes(count, jobs, refusal=None, target=take_part):
    """Start processes that train these jobs together."""
    context = forking()
    port = launch._free_port()
    processes = [
        context.Process(target=target, args=(rank, count, port, jobs, refusal))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    return processes


def exit_codes(processes, seconds=120):
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
    history = history_in(run_dir).drop(columns="seconds").to_csv()
    return [(run_dir / name).read_bytes() for name in names], history


def train_alone(config, folders, run_dir):
    train_model(config, folders, run_dir)
    return results_in(run_dir)


@pytest.fixture(scope="module")
def by_two(federation, silos, tmp_path_factory):
    """Train all cases with two processes; return the folder and the data."""
    root = tmp_path_factory.mktemp("two")
    fixtures = {"federation": federation, "silos": silos}
    folders = {name: fixtures[fixture] for name, (fixture, _) in CASES.items()}
    jobs = [
        (config, folders[name], root / name, 1e9) for name, (_, config) in CASES.items()
    ]
    assert exit_codes(start_processes(2, jobs)) == [0, 0]
    return root, folders


@pytest.mark.parametrize("name", CASES)
def test_two_processes_end_with_the_bits_of_one(name, by_two, tmp_path):
    root, folders = by_two
    alone = train_alone(CASES[name][1], folders[name], tmp_path)
    assert alone == results_in(root / name)
    assert personal_in(root / name) == personal_in(tmp_path)
    assert training_in(root / name)["processes"] == 2


def take_part_slowly(*args):
    take_round = engine._Training._round

    def slow(self, index):
        time.sleep(0.05)
        return take_round(self, index)

    engine._Training._round = slow
    take_part(*args)


def wait_for_checkpoint(state, before, is_alive):
    """Wait until a checkpoint was written after the time `before` (None: ever)."""
    deadline = time.monotonic() + 120
    while not state.exists() or state.stat().st_mtime_ns == before:
        assert time.monotonic() < deadline
        assert is_alive()
        time.sleep(0.005)


@pytest.mark.parametrize("name", ["dp-agr", "personal heads", "dp-fnas"])
def test_killed_processes_are_followed_by_others_to_the_same_bits(
    name, by_two, tmp_path
):
    """The second of two processes is killed at a random moment, then the first of
    three. One process ends the run.
    """
    root, folders = by_two
    run_dir = tmp_path / "run"
    moments = random.Random(name)
    state = run_dir / "checkpoint" / "state.pt"
    job = CASES[name][1], folders[name], run_dir, 0
    before = None
    for count, victim in ((2, 1), (3, 0)):
        processes = start_processes(count, [job], target=take_part_slowly)
        wait_for_checkpoint(state, before, processes[0].is_alive)
        time.sleep(moments.uniform(0, 0.06))
        os.kill(processes[victim].pid, signal.SIGKILL)
        codes = exit_codes(processes)
        assert codes[victim] == -signal.SIGKILL
        assert all(codes)
        before = state.stat().st_mtime_ns
    alone = train_alone(CASES[name][1], folders[name], run_dir)
    assert alone == results_in(root / name)
    assert training_in(run_dir)["resumed"] == 2


def test_process_that_lost_another_does_not_leave_the_group(monkeypatch):
    """Leaving the group can wait for a process that is gone; exiting does not."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(launch._free_port()))
    with pytest.raises(Lost), joined():
        raise Lost
    assert distributed.is_initialized()
    distributed.destroy_process_group()


def test_processes_with_other_configurations_are_refused(federation, tmp_path):
    config = CASES["dp-agr"][1]
    job = (config, config.replace(seed=1)), federation, tmp_path / "run", 1e9
    refusal = tmp_path / "refusal"
    assert exit_codes(start_processes(2, [job], refusal)) == [1, 1]
    assert "another configuration than process 0" in refusal.read_text()
    assert not (tmp_path / "run").exists()


def test_processes_with_other_data_or_code_are_refused(federation):
    class TwoHosts(Processes):
        def gather(self, value):
            changed = value[1] | {str(federation[0]): "other", "torch": "0"}
            return [value, ("far", changed)]

    config = CASES["dp-agr"][1]
    with pytest.raises(BenchError, match=r"far has another torch, .*data than process"):
        together.check_agree(TwoHosts(0, 2), config, "cpu", federation)
    together.check_agree(Processes(), config, "cpu", federation)


JOB = """
import json, sys
from pathlib import Path
from workflow_jobs.jobs import job
from workflow_jobs.launch import train_together
with job(Path(sys.argv[2], "train.log"), "train"):
    train_together(json.loads(sys.argv[1]), processes=2, log=Path(sys.argv[2], "others.log"))
"""


class Job:
    """Job of the workflow that trains with two processes."""

    def __init__(self, config, folders, folder):
        self.run_dir = folder / "results" / "runs" / config.folder
        self.state = self.run_dir / "checkpoint" / "state.pt"
        write_text(self.run_dir / "config.yaml", config.to_yaml())
        arguments = {
            "data_dir": str(folders[0]),
            "clients_dir": str(folders[1]),
            "run_dir": str(self.run_dir),
            "threads": 1,
            "checkpoint_seconds": 0.01,
            "device": "cpu",
            "kernels": True,
            "references": [],
            "config": str(self.run_dir / "config.yaml"),
        }
        command = [sys.executable, "-c", JOB, json.dumps(arguments), str(folder)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def members(self):
        """Return the training's processes by rank, once they wrote a checkpoint."""
        before = self.state.stat().st_mtime_ns if self.state.exists() else None
        wait_for_checkpoint(self.state, before, lambda: self.process.poll() is None)
        children = psutil.Process(self.process.pid).children(recursive=True)
        return {
            int(child.environ()["RANK"]): child
            for child in children
            if "RANK" in child.environ()
        }

    def end(self):
        """Return the exit code and the error lines."""
        lines = self.process.communicate(timeout=120)[1].splitlines()
        return self.process.returncode, lines


def test_job_of_two_processes_is_killed_in_parts_and_goes_on(silos, tmp_path):
    """torchrun starts the processes. A killed process ends the job with one line, and a
    killed job ends all processes.
    """
    config = lots_config({"participation": {"rounds": 200}, "validation": {"every": 0}})
    job = Job(config, silos, tmp_path)
    members = job.members()
    members[1].kill()
    code, lines = job.end()
    assert code == 1
    assert lines[-1].startswith("train: one of the 2 processes was killed or lost (")
    assert psutil.wait_procs(members.values(), timeout=10)[1] == []
    job = Job(config, silos, tmp_path)
    members = job.members()
    job.process.kill()
    assert psutil.wait_procs(members.values(), timeout=20)[1] == []
    job.end()
    job = Job(config, silos, tmp_path)
    code, lines = job.end()
    assert code == 0, lines
    alone = train_alone(config, silos, tmp_path / "one")
    assert results_in(job.run_dir) == alone
    assert training_in(job.run_dir)["resumed"] == 2
