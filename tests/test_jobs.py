"""Jobs: logs, exit codes, one line for the user."""

import errno
import os
import sys
from pathlib import Path

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.jobs import job


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
