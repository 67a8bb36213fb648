"""Jobs: logs, exit codes, one line for the user."""

import errno
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from dpfedbench.errors import BenchError
from workflow_jobs.jobs import job


def test_what_is_said_is_seen_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "logs" / "job.log"
    with job(log, "test") as logger:
        logger.info("half %d", 2)
        print("a bare line", file=sys.stderr)
    seen = capsys.readouterr().err
    for text in ("test: half 2", "a bare line"):
        assert text in seen and text in log.read_text(encoding="utf-8")


def test_a_user_error_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, job(tmp_path / "job.log", "test"):
        raise BenchError("no data:\nput it there")
    assert caught.value.code == 1
    assert capsys.readouterr().err == "test: no data: put it there\n"
    assert "no data" in (tmp_path / "job.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("fault", [ZeroDivisionError("x"), OSError(errno.EIO, "odd")])
def test_job_logs_a_traceback_and_shows_its_last_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: Exception
) -> None:
    log = tmp_path / "job.log"
    with pytest.raises(SystemExit) as caught, job(log, "test"):
        raise fault
    assert caught.value.code == 1
    place, said = capsys.readouterr().err.splitlines()
    here = Path(__file__).resolve()
    assert re.fullmatch(rf'test: File "{here}", line \d+, in test_job_logs_a_.*', place)
    assert said == (
        f"test: {type(fault).__name__}: {fault} (the traceback is in {log})"
    )
    assert "Traceback" in log.read_text(encoding="utf-8")


def test_job_shows_the_last_place_outside_of_libraries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), job(tmp_path / "job.log", "test"):
        np.linalg.inv(np.zeros((2, 3)))
    place, said = capsys.readouterr().err.splitlines()
    assert f'File "{Path(__file__).resolve()}"' in place
    assert said.startswith("test: numpy.linalg.LinAlgError: Last 2 dimensions")


def test_job_logs_the_traceback_of_what_a_user_error_was_raised_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    with pytest.raises(SystemExit), job(log, "test"):
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError as error:
            raise BenchError("the network fails") from error
    assert capsys.readouterr().err == "test: the network fails\n"
    assert "ZeroDivisionError" in log.read_text(encoding="utf-8")


NOT_CACHED = "cannot cache function 'f': no locator available for file 'f.py'"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (MemoryError("Unable to allocate 3 TiB"), "not enough memory (Unable to alloc"),
        (RuntimeError("DefaultCPUAllocator: can't\nallocate"), "can't allocate): make"),
        (RuntimeError(NOT_CACHED), "let NUMBA_CACHE_DIR name a"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "free some space"),
        (OSError("Not enough free space to write 32000000 bytes"), "free some space"),
    ],
)
def test_a_fault_of_the_machine_is_one_line_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: Exception, said: str
) -> None:
    with (
        pytest.raises(SystemExit) as caught,
        job(tmp_path / "logs" / "job.log", "test"),
    ):
        raise fault
    seen = capsys.readouterr().err
    assert (
        caught.value.code == 1
        and said in seen
        and seen.count("\n") == 1
        and "(None)" not in seen
    )


def test_a_log_on_a_full_disk_costs_the_log_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with job("/dev/full", "test") as logger:
        logger.info("at work")
    assert capsys.readouterr().err == "test: at work\n"
    with pytest.raises(SystemExit), job("/dev/full", "test"):
        raise ZeroDivisionError
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "test: ZeroDivisionError (the traceback is in /dev/full)"


STARTER = """
import subprocess, sys
from workflow_jobs.jobs import mark_workflow
mark_workflow()
subprocess.run(["sh", "-c", f"{sys.executable} {sys.argv[1]}; true"])  # a shell in between, as Snakemake has
"""
JOB = """
import pathlib, time
pathlib.Path("STARTED").touch()
time.sleep(IMPORTS)
from workflow_jobs.jobs import job
with job("LOG", "test") as logger:
    logger.info("at work")
    time.sleep(120)
"""


@pytest.mark.parametrize("importing", [False, True])
def test_a_job_ends_when_its_workflow_is_killed(
    tmp_path: Path, importing: bool
) -> None:
    """Killed with -9, Snakemake tells its jobs nothing; one that went on would be in
    the next call's way.

    So too where it is killed before the job has imported what tells it so.
    """
    log, started = tmp_path / "job.log", tmp_path / "started"
    (tmp_path / "workflow.py").write_text(STARTER, encoding="utf-8")
    code = (
        JOB.replace("LOG", str(log))
        .replace("STARTED", str(started))
        .replace("IMPORTS", "2" if importing else "0")
    )
    (tmp_path / "job.py").write_text(code, encoding="utf-8")
    workflow = subprocess.Popen(
        [sys.executable, str(tmp_path / "workflow.py"), str(tmp_path / "job.py")]
    )
    try:
        if importing:
            wait_until(started.exists)
        else:
            wait_until(
                lambda: log.exists() and "at work" in log.read_text(encoding="utf-8")
            )
        jobs = [
            child
            for child in psutil.Process(workflow.pid).children(recursive=True)
            if "job.py" in child.cmdline()[-1]
        ]
        assert jobs
    finally:
        workflow.kill()
        workflow.wait()
    wait_until(lambda: not any(child.is_running() for child in jobs))
    said = log.read_text(encoding="utf-8")
    assert (
        "the workflow that started this job is gone" in said
        and ("at work" in said) != importing
    )


def wait_until(so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
