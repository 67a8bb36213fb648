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

HERE = Path(__file__).resolve()


@pytest.fixture
def log(tmp_path):
    return tmp_path / "logs" / "job.log"


@pytest.fixture
def fail(log, capsys):
    """Run a job that fails; return its lines on standard error."""

    def run_job(work):
        with pytest.raises(SystemExit) as ended, job(log, "test"):
            work()
        assert ended.value.code == 1
        return capsys.readouterr().err.splitlines()

    return run_job


def raising(error):
    """Return work that raises an error, from another."""

    def work():
        raise error from KeyError("its cause")

    return work


def test_job_shows_and_logs_its_messages(log, capsys):
    with job(log, "test") as logger:
        logger.info("half %d", 2)
        print("a bare line", file=sys.stderr)
    errors = capsys.readouterr().err
    for text in ("test: half 2", "a bare line"):
        assert text in errors
        assert text in log.read_text(encoding="utf-8")


def test_job_reports_a_user_error_in_one_line_and_logs_its_cause(log, fail):
    lines = fail(raising(BenchError("no data:\nput it there")))
    assert lines == ["test: no data: put it there"]
    assert "KeyError: 'its cause'" in log.read_text(encoding="utf-8")


def test_job_logs_a_traceback_and_shows_its_last_lines(log, fail):
    location, message = fail(raising(OSError(errno.EIO, "odd")))
    assert re.fullmatch(rf'test: File "{HERE}", line \d+, in work.*', location)
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
    (line,) = fail(raising(fault))
    assert message in line


# A shell stands in between, as under Snakemake.
WORKFLOW = """
import subprocess, sys
from workflow_jobs.jobs import mark_workflow
mark_workflow()
subprocess.run(["sh", "-c", f"{sys.executable} {sys.argv[1]}; true"])
"""
JOB = """
import pathlib, time
pathlib.Path("STARTED").touch()
time.sleep(SECONDS)
from workflow_jobs.jobs import job
with job("LOG", "test") as logger:
    logger.info("at work")
    time.sleep(120)
"""


@pytest.mark.parametrize("before_import", [False, True])
def test_job_ends_when_its_workflow_is_killed(tmp_path, before_import):
    """Snakemake, killed with -9, does not end its jobs, and a running job would disturb
    the next call.

    The job ends although it has not yet imported the code that watches.
    """
    log = tmp_path / "job.log"
    started = tmp_path / "started"
    code = JOB.replace("LOG", str(log)).replace("STARTED", str(started))
    code = code.replace("SECONDS", "2" if before_import else "0")
    workflow_file = tmp_path / "workflow.py"
    job_file = tmp_path / "job.py"
    workflow_file.write_text(WORKFLOW, encoding="utf-8")
    job_file.write_text(code, encoding="utf-8")
    workflow = subprocess.Popen([sys.executable, workflow_file, job_file])

    def is_at_work():
        return log.exists() and "at work" in log.read_text(encoding="utf-8")

    try:
        wait_until(started.exists if before_import else is_at_work)
        children = psutil.Process(workflow.pid).children(recursive=True)
        jobs = [child for child in children if "job.py" in child.cmdline()[-1]]
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
