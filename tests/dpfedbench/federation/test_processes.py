"""One training by several processes: the bits of one process, whoever dies, and what is
refused.
"""

import csv
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from torch import distributed

from dpfedbench.errors import BenchError
from dpfedbench.federation import engine, together
from dpfedbench.federation.processes import Lost, Processes, joined
from dpfedbench.files import write_text
from workflow_jobs import launch

from .conftest import DIFFERENCE, LOTS, PLAIN, forking, make_config
from .test_search import SEARCH
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
    "search": ("silos", make_config(SEARCH, general=LOTS)),
}


def port():
    """One that nobody listens on."""
    return launch._free_port()


def member(rank, count, at, jobs, out=None):
    """What each process of `start` does: all jobs, with the others; the first keeps
    what it is refused in `out`.
    """
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(at),
    }
    with joined() as processes:
        for config, (data, clients), run_dir, more in jobs:
            given = more if isinstance(more, dict) else more[rank]
            try:
                engine.train(
                    given.get("config", config),
                    data_dir=given.get("data", data),
                    clients_dir=clients,
                    run_dir=run_dir,
                    processes=processes,
                    checkpoint_seconds=given.get("every", 1e9),
                )
            except BenchError as error:
                if processes.first and out:
                    out.write_text(str(error))
                raise SystemExit(1) from error


def start(count, jobs, out=None, target=member):
    """So many processes that take these jobs together."""
    context, at = forking(), port()
    started = [
        context.Process(target=target, args=(rank, count, at, jobs, out))
        for rank in range(count)
    ]
    for process in started:
        process.start()
    return started


def ended(started, seconds=120):
    """Their exit codes."""
    deadline = time.monotonic() + seconds
    for process in started:
        process.join(max(deadline - time.monotonic(), 0))
    codes = [process.exitcode for process in started]
    for process in started:
        process.kill()
    assert None not in codes, "a process did not end"
    return codes


def results(run_dir):
    """What must not depend on who computed it: model, ledger, and the history without
    the clock's column.
    """
    with open(run_dir / "history.csv", newline="") as file:
        history = [
            {key: value for key, value in row.items() if key != "seconds"}
            for row in csv.DictReader(file)
        ]
    return [
        (run_dir / name).read_bytes() for name in ("model.safetensors", "ledger.jsonl")
    ], history


def alone(name, places, run_dir, threads=1):
    config = CASES[name][1]
    engine.train(
        config,
        data_dir=places[0],
        clients_dir=places[1],
        run_dir=run_dir,
        threads=threads,
        checkpoint_seconds=1e9,
    )
    return results(run_dir)


@pytest.fixture(scope="module")
def together_(federation, silos, tmp_path_factory):
    """The folders of every case as two processes have made it, and where its data
    are.
    """
    root, places = (
        tmp_path_factory.mktemp("two"),
        {"federation": federation, "silos": silos},
    )
    jobs = [
        (config, places[held], root / name, {})
        for name, (held, config) in CASES.items()
    ]
    assert ended(start(2, jobs)) == [0, 0]
    return root, {name: places[held] for name, (held, _) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_two_processes_end_with_the_bits_of_one(name, together_, tmp_path):
    root, places = together_
    assert alone(name, places[name], tmp_path / "one") == results(root / name)
    assert json.loads((root / name / "training.json").read_text())["processes"] == 2


def test_two_processes_end_with_the_bits_of_two_threads(together_, tmp_path):
    root, places = together_
    for name in ("tasks", "records", "search"):
        assert alone(name, places[name], tmp_path / name, threads=2) == results(
            root / name
        )


def slowly(rank, count, at, jobs, out):
    step = engine._Training._round
    engine._Training._round = lambda self, index: (time.sleep(0.05), step(self, index))[
        1
    ]
    member(rank, count, at, jobs, out)


@pytest.mark.parametrize("name", ["tasks", "records", "search"])
def test_either_is_killed_and_the_next_go_on_to_the_same_bits(
    name, together_, tmp_path
):
    """By turns the first and the second of two, at random moments; three go on where
    two were, and one ends it.
    """
    root, places = together_
    run_dir, config, moments = tmp_path / "run", CASES[name][1], random.Random(name)
    state, before = run_dir / "checkpoint" / "state.pt", None
    for count, victim in ((2, 1), (3, 0)):
        started = start(
            count, [(config, places[name], run_dir, {"every": 0})], target=slowly
        )
        deadline = time.monotonic() + 120
        while not state.exists() or state.stat().st_mtime_ns == before:
            assert time.monotonic() < deadline and started[0].is_alive()
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.06))
        before = state.stat().st_mtime_ns
        os.kill(started[victim].pid, signal.SIGKILL)
        codes = ended(
            started
            # a survivor notices when it next says something, which a busy machine may delay
        )
        assert codes[victim] == -signal.SIGKILL and all(codes)
        before = state.stat().st_mtime_ns
    assert alone(name, places[name], run_dir) == results(root / name)
    assert json.loads((run_dir / "training.json").read_text())["resumed"] == 2


def test_a_survivor_waits_for_nobody(monkeypatch):
    """To leave the group can wait for what is under way with a process that is gone; a
    process that exits does not.
    """
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port()),
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(Lost), joined():
        raise Lost
    assert distributed.is_initialized()
    distributed.destroy_process_group()


def test_processes_that_would_not_train_the_same_are_refused(federation, tmp_path):
    config = CASES["tasks"][1]
    jobs = [
        (config, federation, tmp_path / "run", ({}, {"config": config.replace(seed=1)}))
    ]
    assert ended(start(2, jobs, tmp_path / "said")) == [1, 1]
    said = (tmp_path / "said").read_text()
    assert "process 1 on " in said and "another configuration than process 0" in said
    assert not (tmp_path / "run").exists()


def test_other_data_and_other_code_are_named(federation, tmp_path, monkeypatch):
    class Two(Processes):
        def collected(self, value):
            own = value[1]
            return [value, ("far", own | {str(federation[0]): "other", "torch": "0"})]

    with pytest.raises(
        BenchError,
        match=r"process 1 on far has another torch, .*data than process 0 on",
    ):
        together.check_agree(Two(0, 2), CASES["tasks"][1], "cpu", federation)
    together.check_agree(Processes(), CASES["tasks"][1], "cpu", federation)


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


def test_blocks_are_a_cohort_in_its_order_and_even():
    def blocks_of(length, size, count):
        return Processes(0, count).blocks(length, size, fixed=False)

    for length, size, count in ((0, 8, 2), (3, 8, 2), (100, 8, 3), (1, 8, 4)):
        for fixed in (False, True):
            blocks = Processes(0, count).blocks(length, size, fixed=fixed)
            assert np.concatenate(
                [np.arange(length)[b] for b in blocks] or [[]]
            ).tolist() == list(range(length))
            assert all(b.stop - b.start <= size for b in blocks)
        parts = [
            sum(
                b.stop - b.start
                for b in Processes(0, count).blocks(length, size, fixed=False)[r::count]
            )
            for r in range(count)
        ]
        assert max(parts) - min(parts) <= -(-length // (size * count))
    fixed = [Processes(0, count).blocks(600, 256, fixed=True) for count in (1, 8)]
    assert fixed[0] == fixed[1]


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


def test_a_line_of_a_process_is_one_write(tmp_path):
    """All processes share a pipe: where a line's end is written by itself, the line of
    another comes between.
    """
    given = {
        "config": str(tmp_path / "nowhere.yaml"),
        "references": [],
        "device": "cpu",
        "log": str(tmp_path / "log"),
    }
    # Of a datagram socket each write is a message of its own.
    reader, writer = socket.socketpair(type=socket.SOCK_DGRAM)
    environment = os.environ | {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port()),
    }
    environment["PYTHONUNBUFFERED"] = "1"
    with reader, writer:
        command = [sys.executable, "-m", "workflow_jobs.member", json.dumps(given)]
        run = subprocess.run(
            command, stdout=writer, env=environment, timeout=120, check=False
        )
        reader.setblocking(False)
        said = []
        while True:
            try:
                said.append(reader.recv(1 << 16).decode())
            except BlockingIOError:
                break
    assert (
        run.returncode == 1
        and said[-1].startswith(launch.ERROR)
        and "nowhere" in said[-1]
    )
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in said)


def test_what_the_processes_are_refused_is_one_line(federation, tmp_path):
    job = Job(
        CASES["tasks"][1], federation, tmp_path, clients_dir=str(tmp_path / "nowhere")
    )
    code, lines = job.end()
    assert (
        code == 1
        and len(lines) == 1
        and lines[0].startswith("train: ")
        and "nowhere" in lines[0]
    ), lines
