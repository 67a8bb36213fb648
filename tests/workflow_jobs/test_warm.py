"""Jobs in forks of one warm process are as jobs of their own, whatever is killed."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from tests.workflow_jobs.test_jobs import wait_until
from workflow_jobs.hand_over import WARM, WORKFLOW, place, refuse_others

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "dpfedbench"
# Seconds in which nothing is left of what was killed. `tests/cluster/kill_workflow.py`
# asserts two, with nothing beside it.
SOON = 20.0
if not hasattr(os, "pidfd_open"):
    pytest.skip("no warm process outside Linux", allow_module_level=True)

# As Snakemake writes a script: the values of the rule, then the text. The process at
# work writes its number, its parent's and the version of the format.
SCRIPT = """
import json, os, pathlib, signal, sys, time
from types import SimpleNamespace
place = pathlib.Path(sys.argv[0]).parent
name = pathlib.Path(sys.argv[0]).stem
snakemake = SimpleNamespace(log=[str(place / "logs" / f"{name}.log")], input=[], output=[], rule="test", params=None)
from dpfedbench.errors import BenchError
from workflow_jobs.rule_job import rule_job
with rule_job(snakemake, "test") as logger:
    from dpfedbench import results_format
    (place / f"{name}.part").write_text(json.dumps([os.getpid(), os.getppid(), results_format.VERSION]))
    (place / f"{name}.part").rename(place / f"{name}.json")
"""
# Finished job: `worker` and `parent` are processes; the parent is the warm one.
Result = namedtuple("Result", "code output errors worker parent version")


class StartedJob(namedtuple("StartedJob", "process file")):
    """The process that waits for a job, and the file of its numbers."""

    def numbers(self):
        """Wait for the numbers of the worker, its parent, and the format's version."""
        wait_until(self.file.exists)
        return json.loads(self.file.read_text(encoding="utf-8"))


class Workflow:
    """A process that starts jobs, their folder, and the package that they import."""

    def __init__(self, folder, package=PACKAGE):
        self.folder = folder
        self.package = package
        self.jobs = []
        self.process = subprocess.Popen(["sleep", "600"])
        began = psutil.Process(self.process.pid).create_time()
        self.mark = f"{place()} {self.process.pid} {began}"

    def start(self, *lines, warm=True, **environment):
        """Start a job with the given lines after its beginning."""
        script = self.folder / f"job{len(self.jobs) + 1}.py"
        body = "".join(f"    {line}\n" for line in lines)
        script.write_text(SCRIPT + body, encoding="utf-8")
        values = {WARM: "yes" if warm else "", WORKFLOW: self.mark}
        values |= {"PYTHONPATH": str(self.package.parent), "OMP_NUM_THREADS": "1"}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(
            [sys.executable, str(script)],
            env=os.environ | values | environment,
            text=True,
            cwd=self.folder,
            start_new_session=True,
            **pipes,
        )
        self.jobs.append(StartedJob(process, script.with_suffix(".json")))
        return self.jobs[-1]

    def run(self, *lines, stdin="", warm=True, **environment):
        """Run a job to its end."""
        job = self.start(*lines, warm=warm, **environment)
        output, errors = job.process.communicate(stdin, timeout=600)
        errors = errors.replace(job.file.stem, "job")
        result = Result(job.process.returncode, output, errors, *job.numbers())
        assert (result.worker != job.process.pid) == warm
        return result

    def log(self):
        """Return the log of the last job."""
        return (self.folder / "logs" / f"job{len(self.jobs)}.log").read_text("utf-8")

    def processes(self):
        """Return all processes with this workflow's mark."""
        marked = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_running = process.status() != psutil.STATUS_ZOMBIE
                if is_running and process.environ().get(WORKFLOW) == self.mark:
                    marked.append(process)
        return marked

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.kill()
        for job in self.jobs:
            with contextlib.suppress(ValueError):  # its pipes are closed
                job.process.communicate(timeout=60)
        wait_until(lambda: not self.processes(), SOON)


def has_ended(process):
    """Return whether a process is gone, or an orphan that nobody has collected yet."""
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def light_package(tmp_path_factory):
    """Write the parts of the packages that a job without computation needs."""
    sources = tmp_path_factory.mktemp("light")
    names = {
        "dpfedbench": ("errors", "files", "manifests", "plugins", "results_format"),
        "dpsum": ("errors", "files"),
        "workflow_jobs": (
            "hand_over",
            "jobs",
            "manifests",
            "rule_job",
            "terminal",
            "warm",
        ),
    }
    for package in names:
        (sources / package).mkdir()
        for name in ("__init__", *names[package]):
            shutil.copy(PACKAGE.parent / package / f"{name}.py", sources / package)
    return sources / "dpfedbench"


@pytest.fixture
def make_workflow(tmp_path):
    """Return a function that makes workflows, which end with the test.

    Tests in the background of a shell ignore interrupts, and so would their processes.
    """
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    workflows = []

    def make(package=PACKAGE):
        workflows.append(Workflow(tmp_path, package))
        return workflows[-1]

    yield make
    signal.signal(signal.SIGINT, handler)
    for workflow in workflows:
        workflow.end()


@pytest.fixture
def workflow(make_workflow, light_package):
    return make_workflow(light_package)


ENDS = {
    "well": "logger.info('half'); print(sys.stdin.read(), os.environ['MINE'], os.getcwd())",
    "code": "sys.exit(7)",
    "text": "sys.exit('why')",
    "user error": "raise BenchError('no data')",
    "fault": "raise ZeroDivisionError",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "thread": "import threading; threading.Timer(0.2, print, ['late']).start()",
    "exit": "import atexit; atexit.register(print, 'at exit')",
}


def test_warm_job_has_output_log_and_code_of_a_job_of_its_own(workflow):
    """The traceback of an interrupt has frames of the process that ran the job."""
    parents = set()
    codes = {}
    for name, line in ENDS.items():
        separate = workflow.run(line, stdin="in", warm=False, MINE=name)
        log = workflow.log().splitlines()[1:2]
        fork = workflow.run(line, stdin="in", MINE=name)
        assert (fork.code, fork.output) == (separate.code, separate.output), name
        start = -1 if name == "interrupted" else 0
        errors = separate.errors.splitlines()[start:]
        assert fork.errors.splitlines()[start:] == errors, name
        assert workflow.log().splitlines()[1:2] == log, name
        parents.add(fork.parent)
        codes[name] = fork.code
    assert len(parents) == 1
    assert (codes["code"], codes["killed"]) == (7, -9)


def test_warm_process_is_started_once_for_jobs_at_the_same_time(workflow):
    jobs = [workflow.start("time.sleep(1)") for _ in range(4)]
    workers, parents, _ = zip(*(job.numbers() for job in jobs), strict=True)
    assert [job.process.wait(60) for job in jobs] == [0] * 4
    assert (len(set(workers)), len(set(parents))) == (4, 1)


@pytest.mark.parametrize("at_work", [True, False])
def test_warm_process_ends_with_the_workflow(workflow, at_work):
    job = workflow.start("time.sleep(120)" if at_work else "pass")
    job.numbers()
    if not at_work:
        job.process.wait(60)
    assert workflow.processes()
    workflow.kill()
    wait_until(lambda: not workflow.processes(), SOON)
    if at_work:
        workflow.end()
        assert job.process.returncode == 1
        assert "the workflow that started this job has ended" in workflow.log()


def test_warm_process_ends_with_a_workflow_that_is_killed_before_it_is_ready(
    make_workflow, tmp_path
):
    workflow = make_workflow()
    workflow.start("time.sleep(120)")
    wait_until(lambda: len(workflow.processes()) > 1)
    time.sleep(0.5)
    workflow.kill()
    wait_until(lambda: not workflow.processes(), SOON)
    assert not list(tmp_path.glob("*.json"))


def test_job_works_itself_when_its_warm_process_is_killed(workflow):
    job = workflow.start("time.sleep(1); print('done')")
    fork, parent, _ = job.numbers()
    job.file.unlink()
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: has_ended(fork), SOON)
    assert job.numbers()[0] == job.process.pid
    assert job.process.communicate(timeout=60) == ("done\n", "")
    assert job.process.returncode == 0


def test_fork_is_killed_with_the_script_that_waits_for_it(workflow):
    job = workflow.start("time.sleep(120)")
    fork, parent, _ = job.numbers()
    job.process.kill()
    job.process.wait()
    wait_until(lambda: has_ended(fork), SOON)
    assert workflow.run("pass").parent == parent


def test_interrupt_of_a_terminal_ends_the_job_and_not_the_warm_process(workflow):
    """On a terminal both processes are of one group."""
    parent = workflow.run("pass").parent
    job = workflow.start("try: time.sleep(120)", "finally: (place / 'cleaned').touch()")
    fork, second_parent, _ = job.numbers()
    assert second_parent == parent
    for process in (fork, job.process.pid):
        os.kill(process, signal.SIGINT)
    assert job.process.wait(60) == -signal.SIGINT
    assert (workflow.folder / "cleaned").exists()
    assert workflow.run("pass").parent == parent


def test_warm_process_never_runs_old_code(make_workflow, light_package, tmp_path):
    """It is started anew after an edit of any package, and only then."""
    sources = shutil.copytree(light_package.parent, tmp_path / "edited")
    workflow = make_workflow(sources / "dpfedbench")
    before = workflow.run("pass")
    assert workflow.run("pass").parent == before.parent
    source = workflow.package / "results_format.py"
    text = source.read_text("utf-8")
    source.write_text(text.replace(f'"{before.version}"', '"edited"'), "utf-8")
    after = workflow.run("pass")
    assert after.version == "edited"
    assert after.parent != before.parent
    wait_until(lambda: has_ended(before.parent), SOON)
    (sources / "dpkernels").mkdir()
    (sources / "dpkernels" / "__init__.py").write_text("# added\n", "utf-8")
    assert workflow.run("pass").parent != after.parent


def test_warm_process_refuses_the_process_of_another_user(monkeypatch):
    first, second = socket.socketpair()
    with first, second:
        refuse_others(first)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(PermissionError):
            refuse_others(first)


def test_warm_process_imports_everything_and_computes_nothing(make_workflow):
    """It has one thread and has not started the GPU. A fork has the threads that its
    job asks for.
    """
    workflow = make_workflow()
    for count in ("1", "2"):
        result = workflow.run(
            "names = {'torch', 'dpfedbench.audit.report'} <= set(sys.modules)",
            "import torch, numpy, dpkernels.fused_cnn, dpkernels.compiled",
            "state = pathlib.Path(f'/proc/{os.getppid()}/status').read_text()",
            "rows = [row.split() for row in state.splitlines()]",
            "threads = [row[1] for row in rows if row[0] == 'Threads:']",
            "begun = torch.cuda.is_initialized()",
            "print(names, *threads, begun, torch.get_num_threads())",
            "ones = torch.ones(400, 400, dtype=torch.float64)",
            "print(float((ones @ ones).sum()), (ones.numpy() @ ones.numpy()).sum())",
            OMP_NUM_THREADS=count,
            OPENBLAS_NUM_THREADS=count,
        )
        output = f"True 1 False {count}\n64000000.0 64000000.0\n"
        assert (result.code, result.errors, result.output) == (0, "", output)


def test_warm_job_has_the_bits_of_one_thread_of_openblas(make_workflow):
    """The last bits of a product of this size depend on the number of threads."""
    workflow = make_workflow()
    lines = (
        "import hashlib, numpy; rng = numpy.random.default_rng(0)",
        "left = rng.standard_normal((256, 1000))",
        "product = left @ rng.standard_normal((10, 1000)).T",
        "threads = os.environ['OPENBLAS_NUM_THREADS']",
        "print(threads, hashlib.sha256(product).hexdigest())",
    )
    outputs = set()
    for warm, count in itertools.product((False, True), ("1", "2")):
        threads = {"OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
        outputs.add(workflow.run(*lines, warm=warm, **threads).output)
    assert len(outputs) == 1
    assert outputs.pop().startswith("1 ")


def test_warm_job_trains_to_the_same_bits(make_workflow, federation, tmp_path):
    workflow = make_workflow()
    contents = []
    for warm in (False, True):
        run = tmp_path / f"run-{warm}"
        overlay = {"participation": {"rounds": 3}, "model": {"filters": 16}}
        result = workflow.run(
            f"sys.path.insert(0, {str(ROOT)!r})",
            "from tests.dpfedbench.training.conftest import make_config, train",
            f"config = make_config({overlay!r})",
            f"places = {[str(path) for path in federation]!r}",
            f"train(config, places, pathlib.Path({str(run)!r}), threads=2)",
            warm=warm,
            OMP_NUM_THREADS="2",
        )
        assert result.code == 0, result.errors
        names = ("model.safetensors", "ledger.jsonl", "metrics.json")
        contents.append([(run / name).read_bytes() for name in names])
    assert contents[0] == contents[1]


def test_a_script_that_is_handed_over_imports_pythons_own_library_alone():
    # Each job of a workflow pays for it: with the package it would be six times as much.
    code = (
        "import sys; before = set(sys.modules); import workflow_jobs.rule_job;"
        " print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) - sys.stdlib_module_names == {"workflow_jobs"}
