"""Jobs: logs, exit codes, one line for the user."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.jobs import job, workflow_processes


def test_what_is_said_is_seen_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "logs" / "job.log"
    with job(log, "test") as logger:
        logger.info("half %d", 2)
        print("a bare line", file=sys.stderr)
    seen = capsys.readouterr().err
    for text in ("test: half 2", "a bare line"):
        assert text in seen and text in log.read_text(encoding="utf-8")


def test_a_user_error_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, job(tmp_path / "job.log", "test"):
        raise BenchError("no data:\nput it there")
    assert caught.value.code == 1
    assert capsys.readouterr().err == "test: no data: put it there\n"
    assert "no data" in (tmp_path / "job.log").read_text(encoding="utf-8")


def test_a_full_disk_is_one_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), job(tmp_path / "job.log", "test"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model")
    assert capsys.readouterr().err == (
        f"test: model: {os.strerror(errno.ENOSPC)}: free some space and run the same command again\n"
    )


@pytest.mark.parametrize("fault", [ZeroDivisionError("x"), OSError(errno.EIO, "odd")])
def test_our_own_fault_leaves_its_traceback_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: Exception
) -> None:
    log = tmp_path / "job.log"
    with pytest.raises(SystemExit) as caught, job(log, "test"):
        raise fault
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"test: a fault of dpfedbench itself; its traceback is in {log}\n"
    assert "Traceback" in log.read_text(encoding="utf-8")


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file, not a folder", encoding="utf-8")
    with pytest.raises(SystemExit), job(tmp_path / "logs" / "job.log", "test"):
        pass
    seen = capsys.readouterr().err
    assert "cannot write the log" in seen and seen.count("\n") == 1


WORKFLOW = """
import subprocess, sys
subprocess.run(["sh", "-c", f"{sys.executable} {sys.argv[1]}; true"])  # a shell in between, as Snakemake has
"""
JOB = """
import time
from dpfedbench.jobs import job
with job("LOG", "test") as logger:
    logger.info("at work")
    time.sleep(120)
"""


def test_a_job_ends_when_its_workflow_is_killed(tmp_path: Path) -> None:
    """Killed with -9, Snakemake tells its jobs nothing; one that went on would be in the next call's way."""
    log = tmp_path / "job.log"
    (tmp_path / "snakemake").write_text(WORKFLOW, encoding="utf-8")
    (tmp_path / "job.py").write_text(JOB.replace("LOG", str(log)), encoding="utf-8")
    workflow = subprocess.Popen([sys.executable, str(tmp_path / "snakemake"), str(tmp_path / "job.py")])
    try:
        wait_until(lambda: log.exists() and "at work" in log.read_text(encoding="utf-8"))
        jobs = [
            child for child in psutil.Process(workflow.pid).children(recursive=True) if "job.py" in child.cmdline()[-1]
        ]
        assert jobs
    finally:
        workflow.kill()
        workflow.wait()
    wait_until(lambda: not any(child.is_running() for child in jobs))
    assert "the workflow that started this job is gone" in log.read_text(encoding="utf-8")


def wait_until(so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_outside_a_workflow_nothing_is_watched() -> None:
    assert workflow_processes() == []
