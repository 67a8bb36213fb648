"""Jobs that start warm: run by a fork of one process, they are as jobs of their own,
whatever is killed.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.dpfedbench.federation.conftest import federation
from workflow_jobs.jobs import WORKFLOW, place
from workflow_jobs.warm import WARM, _refuse_others

__all__ = ["federation"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "dpfedbench"
SOON = 2.0  # seconds in which nothing is left of what was killed
if not hasattr(os, "pidfd_open"):
    pytest.skip("no warm process outside Linux", allow_module_level=True)

# As Snakemake writes a script: what the rule gives it, then its text. Whoever is at
# work writes down its numbers.
SCRIPT = """
import json, os, pathlib, signal, sys, time
from types import SimpleNamespace
place = pathlib.Path(sys.argv[0]).parent
name = pathlib.Path(sys.argv[0]).stem
snakemake = SimpleNamespace(log=[str(place / "logs" / f"{name}.log")], input=[], output=[], rule="test", params=None)
from dpfedbench.errors import BenchError
from workflow_jobs.manifests import rule_job
with rule_job(snakemake, "test") as logger:
    from dpfedbench.results import format
    (place / f"{name}.part").write_text(json.dumps([os.getpid(), os.getppid(), format.VERSION]))
    (place / f"{name}.part").rename(place / f"{name}.json")
"""


class Workflow:
    """A process that has started jobs, a folder of theirs, and the package that they
    import.
    """

    def __init__(self, folder: Path, package: Path) -> None:
        self.folder, self.package, self.count = folder, package, 0
        self.started = list[subprocess.Popen[str]]()
        self.process = subprocess.Popen(["sleep", "600"])
        began = psutil.Process(self.process.pid).create_time()
        self.marked = f"{place()} {self.process.pid} {began}"

    def start(
        self, *lines: str, warm: bool = True, **environment: str
    ) -> tuple[subprocess.Popen[str], Path]:
        """Start a job; what it does beyond its beginning. The second is where it writes
        its numbers.
        """
        self.count += 1
        script = self.folder / f"job{self.count}.py"
        script.write_text(
            SCRIPT + "".join(f"    {line}\n" for line in lines), encoding="utf-8"
        )
        given = {key: value for key, value in os.environ.items() if key != WARM}
        given |= {
            WORKFLOW: self.marked,
            "PYTHONPATH": str(self.package.parent),
            "OMP_NUM_THREADS": "1",
        } | environment
        given |= {WARM: "yes"} if warm else {}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, str(script)],
            env=given,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            cwd=self.folder,
            start_new_session=True,
        )
        self.started.append(process)
        return process, script.with_suffix(".json")

    def run(
        self, *lines: str, said: str = "", **given: Any
    ) -> tuple[int, str, str, list[Any]]:
        """Run a job to its end: its exit code, what it printed and wrote to standard
        error, and its numbers.
        """
        process, numbers = self.start(*lines, **given)
        out, errors = process.communicate(said, timeout=120)
        found = json.loads(numbers.read_text(encoding="utf-8"))
        assert (found[0] != process.pid) == given.get("warm", True)  # a fork, or not
        return process.returncode, out, errors.replace(numbers.stem, "job"), found

    def processes(self) -> list[psutil.Process]:
        """All that are marked as this workflow's."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if (
                    process.environ().get(WORKFLOW) == self.marked
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for process in self.started:
            with contextlib.suppress(ValueError):  # its pipes are closed
                process.communicate(timeout=60)


def until(so: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(process: int) -> bool:
    """Whether a process is at its end; when an orphan's entry is taken away is up to
    who collects orphans.
    """
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def numbers(path: Path) -> list[Any]:
    until(path.exists)
    found: list[Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As much of the package as a job needs that computes nothing: soon imported."""
    sources = tmp_path_factory.mktemp("light")
    for package, names in (
        ("dpfedbench", ("errors", "files", "plugins")),
        ("dpfedbench/results", ("format", "manifests")),
        ("dpsum", ("errors", "files")),
        ("workflow_jobs", ("jobs", "manifests", "warm")),
    ):
        (sources / package).mkdir()
        for name in ("__init__", *names):
            shutil.copy(PACKAGE.parent / package / f"{name}.py", sources / package)
    return sources / "dpfedbench"


@pytest.fixture
def workflow(light: Path, tmp_path: Path) -> Iterator[Workflow]:
    # Tests in the background of a shell ignore interrupts, and so would the processes
    # that they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    found = Workflow(tmp_path, light)
    yield found
    signal.signal(signal.SIGINT, before)
    found.end()
    until(lambda: not found.processes(), SOON)


ENDS = {
    "well": (
        "logger.info('half'); print('out', sys.stdin.read(), os.environ['MINE'],"
        " os.getcwd(), __name__)"
    ),
    "code": "sys.exit(7)",
    "text": "sys.exit('why')",
    "user": "raise BenchError('no data')",
    "fault": "raise ZeroDivisionError",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "thread": (
        "import threading; threading.Thread(target=lambda: (time.sleep(0.2),"
        " print('late'))).start()"
    ),
    "exit": "import atexit; atexit.register(print, 'at exit')",
}


def test_output_logs_and_codes_are_those_of_a_job_of_its_own(
    workflow: Workflow,
) -> None:
    warm = set()
    for name, line in ENDS.items():
        found = [
            workflow.run(line, said="in", warm=which, MINE=name)
            for which in (False, True)
        ]
        (code, out, errors, _), (forks_code, forks_out, forks_errors, forks) = found
        assert (forks_code, forks_out) == (code, out), name
        if name == "interrupted":  # its traceback has the frames of who ran it
            errors, forks_errors = (
                errors.splitlines()[-1],
                forks_errors.splitlines()[-1],
            )
        assert forks_errors == errors, name
        texts = [
            (workflow.folder / "logs" / f"job{workflow.count - i}.log").read_text(
                "utf-8"
            )
            for i in (1, 0)
        ]
        assert texts[0].splitlines()[1:2] == texts[1].splitlines()[1:2], name
        warm.add(forks[1])
    assert len(warm) == 1
    assert {
        name: workflow.run(ENDS[name], MINE="")[0] for name in ("code", "killed")
    } == {"code": 7, "killed": -9}


def test_two_at_once_start_one_warm_process(workflow: Workflow) -> None:
    started = [workflow.start("time.sleep(1)") for _ in range(4)]
    found = [numbers(path) for _, path in started]
    assert [process.wait(60) for process, _ in started] == [0] * 4
    assert (
        len({parent for _, parent, _ in found}) == 1
        and len({job for job, _, _ in found}) == 4
    )


@pytest.mark.parametrize("at_work", [True, False])
def test_nothing_outlives_the_workflow(workflow: Workflow, at_work: bool) -> None:
    started = workflow.start("time.sleep(120)" if at_work else "pass")
    numbers(started[1])
    if not at_work:
        started[0].wait(60)
    assert workflow.processes()
    workflow.process.kill()
    workflow.process.wait()
    until(lambda: not workflow.processes(), SOON)
    workflow.end()
    if at_work:
        assert started[0].returncode == 1
        assert "the workflow that started this job is gone" in (
            workflow.folder / "logs" / "job1.log"
        ).read_text("utf-8")


def test_nothing_outlives_a_workflow_that_is_killed_before_the_warm_process_is_ready(
    tmp_path: Path,
) -> None:
    workflow = Workflow(tmp_path, PACKAGE)
    workflow.start("time.sleep(120)")
    until(lambda: len(workflow.processes()) > 1)
    time.sleep(0.5)
    workflow.process.kill()
    workflow.process.wait()
    until(lambda: not workflow.processes(), SOON)
    workflow.end()
    assert not list(tmp_path.glob("*.json"))


def test_a_job_whose_warm_process_is_killed_does_its_work_itself(
    workflow: Workflow,
) -> None:
    started, path = workflow.start("time.sleep(1); print('done')")
    fork, warm, _ = numbers(path)
    path.unlink()
    os.kill(warm, signal.SIGKILL)
    until(lambda: ended(fork), SOON)
    assert numbers(path)[0] == started.pid  # after the fork was gone
    assert started.communicate(timeout=60) == ("done\n", "") and started.returncode == 0


def test_a_fork_is_killed_with_the_script_that_waits_for_it(workflow: Workflow) -> None:
    started, path = workflow.start("time.sleep(120)")
    fork, warm, _ = numbers(path)
    started.kill()
    started.wait()
    until(lambda: ended(fork), SOON)
    assert workflow.run("pass")[3][1] == warm


def test_a_terminals_interrupt_reaches_the_job_and_leaves_the_warm_process(
    workflow: Workflow,
) -> None:
    first = workflow.run("pass")[3]
    lines = ("try: time.sleep(120)", "finally: (place / 'cleaned').touch()")
    started, path = workflow.start(*lines)
    fork, warm, _ = numbers(path)
    assert warm == first[1]
    for process in (fork, started.pid):  # of one group, where a terminal is
        os.kill(process, signal.SIGINT)
    assert started.wait(60) == -signal.SIGINT and (workflow.folder / "cleaned").exists()
    assert workflow.run("pass")[3][1] == warm


def test_an_edited_source_never_runs_old_code(light: Path, tmp_path: Path) -> None:
    package = shutil.copytree(light.parent, tmp_path / "edited") / "dpfedbench"
    workflow = Workflow(tmp_path, package)
    try:
        _, warm, version = workflow.run("pass")[3]
        source = package / "results/format.py"
        source.write_text(
            source.read_text("utf-8").replace(
                f'VERSION = "{version}"', 'VERSION = "edited"'
            ),
            "utf-8",
        )
        _, other, found = workflow.run("pass")[3]
        assert found == "edited" and other != warm
        until(lambda: ended(warm), SOON)
        assert workflow.run("pass")[3][1:] == [other, "edited"]
    finally:
        workflow.end()


def test_an_edit_of_a_package_beside_starts_a_new_warm_process(
    light: Path, tmp_path: Path
) -> None:
    package = shutil.copytree(light.parent, tmp_path / "edited") / "dpfedbench"
    workflow = Workflow(tmp_path, package)
    try:
        warm = workflow.run("pass")[3][1]
        assert workflow.run("pass")[3][1] == warm
        source = package.parent / "dpkernels/calls.py"
        source.parent.mkdir(exist_ok=True)
        before = source.read_text("utf-8") if source.exists() else ""
        source.write_text(f"{before}# edited\n", "utf-8")
        assert workflow.run("pass")[3][1] != warm
    finally:
        workflow.end()


def test_what_a_job_costs_is_its_own(workflow: Workflow) -> None:
    """Half a second of processor time and 300 MB, whoever ran it; what it started
    counts too.
    """
    work = "held = bytearray(b'x') * 300_000_000; began = time.process_time()"
    more = "while time.process_time() < began + 0.5: pass"
    child = (
        "import subprocess; subprocess.run([sys.executable, '-c', 'import time\\nwhile"
        " time.process_time() < 0.4: 0'])"
    )

    def cost(*lines: str, warm: bool) -> dict[str, str]:
        workflow.run(*lines, warm=warm)
        text = (workflow.folder / "benchmark" / f"job{workflow.count}.tsv").read_text(
            "utf-8"
        )
        head, row = (line.split("\t") for line in text.splitlines())
        return dict(zip(head, row, strict=True))

    larger = (
        bytearray(b"x") * 300_000_000
    )  # the job's memory is not of whoever starts it
    assert float(cost("pass", warm=False)["max_rss"]) < 150
    del larger
    for warm in (False, True):
        found = cost(work, more, child, warm=warm)
        assert (
            0.9 <= float(found["cpu_time"]) < 2.5
            and 300 * 1e6 / 2**20 < float(found["max_rss"]) < 450
        )
        assert 0.9 <= float(found["s"]) < 60


def test_another_users_process_is_not_talked_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import socket

    ends = socket.socketpair()
    _refuse_others(ends[0])
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError):
        _refuse_others(ends[0])
    for end in ends:
        end.close()


def test_the_warm_process_imports_all_and_computes_nothing(
    federation: tuple[Path, Path], tmp_path: Path
) -> None:
    """One thread, no GPU begun; a fork has the threads that its job asks for, and
    trains and tests to the same bits.
    """
    workflow = Workflow(tmp_path, PACKAGE)
    lines = (
        "import torch, numpy, dpkernels.fused_cnn, dpkernels.compiled",
        "state = pathlib.Path(f'/proc/{os.getppid()}/status').read_text()",
        (
            "threads = [line.split()[1] for line in state.splitlines() if"
            " line.startswith('Threads')]"
        ),
        (
            "print(at_first, *threads, torch.cuda.is_initialized(),"
            " torch.get_num_threads())"
        ),
        (
            "made = torch.ones(400, 400, dtype=torch.float64) @ torch.ones(400, 400,"
            " dtype=torch.float64)"
        ),
        (
            "print(float(made.sum()), float((numpy.ones((400, 400)) @ numpy.ones((400,"
            " 400))).sum()))"
        ),
    )
    try:
        for count in ("1", "2"):
            code, out, errors, _ = workflow.run(
                "at_first = 'torch' in sys.modules and 'dpfedbench.audit.report' in"
                " sys.modules",
                *lines,
                OMP_NUM_THREADS=count,
                OPENBLAS_NUM_THREADS=count,
            )
            assert (code, errors) == (0, "")
            assert out == f"True 1 False {count}\n64000000.0 64000000.0\n"
        # The last bits of a product of this size depend on the threads of OpenBLAS.
        product = (
            "import hashlib, numpy; rng = numpy.random.default_rng(0)",
            (
                "made = rng.standard_normal((256, 1000)) @ rng.standard_normal((10,"
                " 1000)).T"
            ),
            (
                "print(os.environ['OPENBLAS_NUM_THREADS'],"
                " hashlib.sha256(made).hexdigest())"
            ),
        )
        products = {
            workflow.run(
                *product, warm=warm, OMP_NUM_THREADS=count, OPENBLAS_NUM_THREADS=count
            )[1]
            for warm in (False, True)
            for count in ("1", "2")
        }
        assert len(products) == 1 and products.pop().startswith("1 ")
        made = []
        for warm in (False, True):
            run = tmp_path / f"run-{warm}"
            code, _, errors, _ = workflow.run(
                f"sys.path.insert(0, {str(ROOT)!r})",
                "from tests.dpfedbench.federation.conftest import make_config, train",
                "config = make_config({'participation': {'rounds': 3}, 'model':"
                " {'filters': 16}})",
                f"train(config, {[str(path) for path in federation]},"
                f" pathlib.Path({str(run)!r}), threads=2)",
                warm=warm,
                OMP_NUM_THREADS="2",
            )
            assert code == 0, errors
            names = ("model.safetensors", "ledger.jsonl", "metrics.json")
            made.append([(run / name).read_bytes() for name in names])
        assert made[0] == made[1]
    finally:
        workflow.end()
    until(lambda: not workflow.processes(), SOON)
