"""One training by several processes: the bits of one process, whoever dies, and what is
refused.
"""

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
from dpfedbench.federation import engine, together
from dpfedbench.federation.processes import Lost, Processes, joined
from dpfedbench.files import write_text
from workflow_jobs import launch

from .conftest import (
    DIFFERENCE,
    LOTS,
    PLAIN,
    forking,
    history_in,
    make_config,
    training_in,
)
from .test_search import SEARCH
from .test_shared_coordinates import OddFedAvg, config_of
from .test_within_task import AGRLR, LOCAL, SAMPLE

SHORT = {
    "participation": {"rounds": 4},
    "validation": {"every": 3},
    "evaluation": {"every": 0},
}
QUANTILE = {"clipping": {"kind": "private-quantile", "count_noise": 2.0}}
CASES = {
    "tasks": ("federation", make_config(SHORT)),
    "tasks, clipped by tensor": (
        "federation",
        make_config(QUANTILE, {"clipping": {"groups": "tensors"}}, SHORT),
    ),
    "tasks without privacy": ("federation", make_config(PLAIN, SHORT)),
    "tasks, cohorts of any size": (
        "federation",
        make_config(
            QUANTILE, SHORT, {"participation": {"kind": "poisson", "cohort": 2}}
        ),
    ),
    "sums within tasks": ("federation", make_config(AGRLR, SHORT)),
    "examples of tasks": ("federation", make_config(SAMPLE, SHORT)),
    "noised by themselves": ("federation", make_config(LOCAL, SHORT)),
    "records": (
        "silos",
        make_config(SHORT, {"clipping": {"kind": "norm-of-release"}}, general=LOTS),
    ),
    "records without privacy": (
        "silos",
        make_config({"method": "fedavg"}, SHORT, general=LOTS),
    ),
    "model differences": ("silos", make_config(SHORT, general=DIFFERENCE)),
    "control variates": (
        "silos",
        make_config({"method": "dp-scaffold"}, SHORT, general=DIFFERENCE),
    ),
    "shared coordinates": ("silos", config_of(OddFedAvg, SHORT)),
    "search": ("silos", make_config(SEARCH, general=LOTS)),
}


def member(rank, count, at, jobs, refusal=None):
    """Take part in all jobs, as each process of `start` does; the first process keeps
    what it is refused in the file `refusal`.
    """
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(at),
    }
    with joined() as processes:
        for configs, (data, clients), run_dir, seconds in jobs:
            try:
                engine.train(
                    configs[rank] if isinstance(configs, tuple) else configs,
                    data_dir=data,
                    clients_dir=clients,
                    run_dir=run_dir,
                    processes=processes,
                    checkpoint_seconds=seconds,
                )
            except BenchError as error:
                if processes.first and refusal:
                    refusal.write_text(str(error))
                raise SystemExit(1) from error


def start(count, jobs, refusal=None, target=member):
    """Start processes that take these jobs together."""
    context = forking()
    at = launch._free_port()
    processes = [
        context.Process(target=target, args=(rank, count, at, jobs, refusal))
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


def results(run_dir):
    """Return what must not depend on who computed it: model, ledger, and the history
    without the clock's column.
    """
    names = ("model.safetensors", "ledger.jsonl")
    history = history_in(run_dir).drop(columns="seconds").to_csv()
    return [(run_dir / name).read_bytes() for name in names], history


def alone(name, folders, run_dir):
    data, clients = folders
    engine.train(
        CASES[name][1],
        data_dir=data,
        clients_dir=clients,
        run_dir=run_dir,
        checkpoint_seconds=1e9,
    )
    return results(run_dir)


@pytest.fixture(scope="module")
def together_(federation, silos, tmp_path_factory):
    """The folder of every case as two processes have trained it, and its data."""
    root = tmp_path_factory.mktemp("two")
    fixtures = {"federation": federation, "silos": silos}
    folders = {name: fixtures[fixture] for name, (fixture, _) in CASES.items()}
    jobs = [
        (config, folders[name], root / name, 1e9) for name, (_, config) in CASES.items()
    ]
    assert exit_codes(start(2, jobs)) == [0, 0]
    return root, folders


@pytest.mark.parametrize("name", CASES)
def test_two_processes_end_with_the_bits_of_one(name, together_, tmp_path):
    root, folders = together_
    assert alone(name, folders[name], tmp_path / "one") == results(root / name)
    assert training_in(root / name)["processes"] == 2


def train_slowly(*args):
    round_of = engine._Training._round

    def slow(self, index):
        time.sleep(0.05)
        return round_of(self, index)

    engine._Training._round = slow
    member(*args)


@pytest.mark.parametrize("name", ["tasks", "search"])
def test_either_is_killed_and_the_next_go_on_to_the_same_bits(
    name, together_, tmp_path
):
    """The second of two is killed at a random moment, then the first of three; one
    process ends the run.
    """
    root, folders = together_
    run_dir = tmp_path / "run"
    moments = random.Random(name)
    state = run_dir / "checkpoint" / "state.pt"
    job = CASES[name][1], folders[name], run_dir, 0
    before = None
    for count, victim in ((2, 1), (3, 0)):
        processes = start(count, [job], target=train_slowly)
        deadline = time.monotonic() + 120
        while not state.exists() or state.stat().st_mtime_ns == before:
            assert time.monotonic() < deadline and processes[0].is_alive()
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.06))
        os.kill(processes[victim].pid, signal.SIGKILL)
        codes = exit_codes(processes)
        assert codes[victim] == -signal.SIGKILL and all(codes)
        before = state.stat().st_mtime_ns
    assert alone(name, folders[name], run_dir) == results(root / name)
    assert training_in(run_dir)["resumed"] == 2


def test_a_survivor_waits_for_nobody(monkeypatch):
    """To leave the group can wait for what is under way with a process that is gone; a
    process that exits does not.
    """
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(launch._free_port()))
    with pytest.raises(Lost), joined():
        raise Lost
    assert distributed.is_initialized()
    distributed.destroy_process_group()


def test_processes_that_would_not_train_the_same_are_refused(federation, tmp_path):
    config = CASES["tasks"][1]
    job = (config, config.replace(seed=1)), federation, tmp_path / "run", 1e9
    assert exit_codes(start(2, [job], tmp_path / "refusal")) == [1, 1]
    refusal = (tmp_path / "refusal").read_text()
    assert "another configuration than process 0" in refusal
    assert not (tmp_path / "run").exists()


def test_other_data_and_other_code_are_named(federation):
    class Two(Processes):
        def collected(self, value):
            changed = value[1] | {str(federation[0]): "other", "torch": "0"}
            return [value, ("far", changed)]

    config = CASES["tasks"][1]
    with pytest.raises(BenchError, match=r"far has another torch, .*data than process"):
        together.check_agree(Two(0, 2), config, "cpu", federation)
    together.check_agree(Processes(), config, "cpu", federation)


@pytest.mark.parametrize(
    ("name", "most"),
    [("tasks", 4), ("records", 4), ("model differences", 2), ("search", 4)],
)
def test_more_processes_than_clients_of_a_round_are_refused(name, most):
    config = CASES[name][1]
    config.check_processes(most)
    with pytest.raises(
        BenchError,
        match=(
            rf"machine\.processes is {most + 1}, but a round of .* has {most} clients"
        ),
    ):
        config.check_processes(most + 1)
    make_config({"method": "random"}).check_processes(64)


@pytest.mark.parametrize(
    ("length", "size", "count"), [(0, 8, 2), (3, 8, 2), (100, 8, 3), (1, 8, 4)]
)
def test_blocks_are_a_cohort_in_its_order_and_even(length, size, count):
    places = list(range(length))
    for fixed in (False, True):
        blocks = Processes(0, count).blocks(length, size, fixed=fixed)
        assert [at for block in blocks for at in places[block]] == places
        assert all(len(places[block]) <= size for block in blocks)
    blocks = Processes(0, count).blocks(length, size, fixed=False)
    shares = [
        sum(len(places[block]) for block in blocks[rank::count])
        for rank in range(count)
    ]
    assert max(shares) - min(shares) <= -(-length // (size * count))


def test_fixed_blocks_do_not_depend_on_the_number_of_processes():
    alone, eight = (
        Processes(0, count).blocks(600, 256, fixed=True) for count in (1, 8)
    )
    assert alone == eight


JOB = """
import json, sys
from pathlib import Path
from workflow_jobs.jobs import job
from workflow_jobs.launch import train_together
with job(Path(sys.argv[2], "train.log"), "train"):
    train_together(json.loads(sys.argv[1]), processes=2, log=Path(sys.argv[2], "others.log"))
"""


class Job:
    """A job that has two processes train, as the workflow's has."""

    def __init__(self, config, places, folder, **more):
        self.run_dir = folder / "results" / "runs" / config.folder
        write_text(self.run_dir / "config.yaml", config.to_yaml())
        given = {
            "data_dir": str(places[0]),
            "clients_dir": str(places[1]),
            "run_dir": str(self.run_dir),
            "threads": 1,
            "checkpoint_seconds": 0.01,
            "device": "cpu",
            "kernels": True,
            "references": [],
            "config": str(self.run_dir / "config.yaml"),
        }
        command = [sys.executable, "-c", JOB, json.dumps(given | more), str(folder)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def members(self):
        """The training's processes by their number, as soon as there is a checkpoint
        that they have written.
        """
        state, deadline = (
            self.run_dir / "checkpoint" / "state.pt",
            time.monotonic() + 120,
        )
        before = state.stat().st_mtime_ns if state.exists() else None
        while not state.exists() or state.stat().st_mtime_ns == before:
            assert time.monotonic() < deadline and self.process.poll() is None, (
                self.end()
            )
            time.sleep(0.01)
        found = psutil.Process(self.process.pid).children(recursive=True)
        return {
            int(each.environ()["RANK"]): each
            for each in found
            if "RANK" in each.environ()
        }

    def end(self):
        """Its exit code, and the lines that are no progress."""
        said = self.process.communicate(timeout=120)[1]
        kept = ("notice", "train adap", "going on", "train dp-agr")
        return self.process.returncode, [
            line for line in said.splitlines() if not line.startswith(kept)
        ]


def test_a_job_of_two_processes_is_killed_in_parts_and_goes_on(silos, tmp_path):
    """torchrun starts them. A process that is killed ends the job by one line; a job
    that is killed ends them all.
    """
    config = make_config(
        {"participation": {"rounds": 200}, "validation": {"every": 0}}, general=LOTS
    )
    job = Job(config, silos, tmp_path)
    members = job.members()
    members[1].kill()
    code, lines = job.end()
    assert code == 1 and len(lines) == 1, lines
    assert lines[0].startswith("train: one of the 2 processes was killed or lost (")
    assert psutil.wait_procs(members.values(), timeout=10)[1] == []
    job = Job(config, silos, tmp_path)
    members = job.members()
    job.process.kill()
    assert psutil.wait_procs(members.values(), timeout=20)[1] == []
    job.end()
    job = Job(config, silos, tmp_path)
    assert job.end() == (0, [])
    engine.train(
        config,
        data_dir=silos[0],
        clients_dir=silos[1],
        run_dir=tmp_path / "one",
        checkpoint_seconds=1e9,
    )
    assert results(job.run_dir) == results(tmp_path / "one")
    assert "going on after" in (tmp_path / "train.log").read_text(encoding="utf-8")
