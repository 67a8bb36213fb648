"""Jobs: logs, exit codes, and one line for the user."""

import errno
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dpfedbench.errors import BenchError
from workflow_jobs.jobs import job


@pytest.fixture
def log(tmp_path):
    return tmp_path / "logs" / "job.log"


@pytest.fixture
def fail(log, capsys):
    """Run a job that raises an error from another; return its lines for the user."""

    def run_job(error):
        with pytest.raises(SystemExit, match=r"^1$"), job(log, "test"):
            raise error from KeyError("its cause")
        return capsys.readouterr().err.splitlines()

    return run_job


def test_job_shows_and_logs_its_messages(log, capsys):
    with job(log, "test") as logger:
        logger.info("half %d", 2)
        print("a bare line", file=sys.stderr)
    errors = capsys.readouterr().err
    for text in ("test: half 2", "a bare line"):
        assert text in errors
        assert text in log.read_text(encoding="utf-8")


def test_job_reports_a_user_error_in_one_line_and_logs_its_cause(log, fail):
    lines = fail(BenchError("no data:\nput it there"))
    assert lines == ["test: no data: put it there"]
    assert "KeyError: 'its cause'" in log.read_text(encoding="utf-8")


def test_job_logs_a_traceback_and_shows_its_last_lines(log, fail):
    location, message = fail(OSError(errno.EIO, "odd"))
    file = Path(__file__).resolve()
    assert re.fullmatch(rf'test: File "{file}", line \d+, in run_job.*', location)
    assert message == f"test: OSError: [Errno 5] odd (the traceback is in {log})"
    assert "Traceback" in log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (MemoryError("Unable to allocate 3 TiB"), "not enough memory (Unable to alloc"),
        (RuntimeError("DefaultCPUAllocator: can't\nallocate"), "can't allocate): make"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "free some space"),
    ],
)
def test_job_reports_a_fault_of_the_machine_in_one_line(fail, fault, message):
    (line,) = fail(fault)
    assert message in line


# A shell stands in between, as under Snakemake.
WORKFLOW = """
import subprocess, sys
from workflow_jobs.jobs import mark_workflow
mark_workflow()
subprocess.run(["sh", "-c", f"{sys.executable} job.py {sys.argv[1]}; true"])
"""
JOB = """
import pathlib, sys, time
pathlib.Path("started").touch()
time.sleep(int(sys.argv[1]))
from workflow_jobs.jobs import job
with job(pathlib.Path("job.log"), "test") as logger:
    logger.info("at work")
    time.sleep(120)
"""


@pytest.mark.parametrize("before_import", [False, True])
def test_job_ends_when_its_workflow_is_killed(tmp_path, before_import):
    """Snakemake, killed with -9, does not end its jobs. One of them has not yet imported
    the code that watches.
    """
    log = tmp_path / "job.log"
    (tmp_path / "workflow.py").write_text(WORKFLOW, encoding="utf-8")
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    command = [sys.executable, "workflow.py", "2" if before_import else "0"]
    workflow = subprocess.Popen(command, cwd=tmp_path)
    try:
        wait_until((tmp_path / "started").exists)
        if not before_import:
            wait_until(lambda: log.exists() and "at work" in log.read_text("utf-8"))
        children = psutil.Process(workflow.pid).children(recursive=True)
        jobs = [child for child in children if "job.py" in child.cmdline()]
        assert jobs
    finally:
        workflow.kill()
        workflow.wait()
    wait_until(lambda: not any(child.is_running() for child in jobs))
    text = log.read_text(encoding="utf-8")
    assert "the workflow that started this job has ended" in text
    assert ("at work" in text) != before_import


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
