"""One action of the workflow as a job: its log, its errors, its exit code."""

import contextlib
import errno
import io
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

import psutil

from dpfedbench.errors import BenchError

# Faults of the machine, not of the program: what to do about each.
_OUTSIDE = {
    errno.EACCES: "make it writable",
    errno.EPERM: "make it writable",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space and run the same command again",
}


class _Tee(io.TextIOBase):
    """Text goes to the terminal and to the log, at once."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams

    def write(self, text: str) -> int:
        for stream in self._streams:
            stream.write(text)
            stream.flush()
        return len(text)

    def flush(self) -> None:
        for stream in self._streams:
            stream.flush()

    def isatty(self) -> bool:
        return self._streams[0].isatty()


def _report_fault(handle: TextIO, terminal: TextIO, name: str, path: Path) -> NoReturn:
    handle.write(traceback.format_exc())
    print(f"{name}: a fault of dpfedbench itself; its traceback is in {path}", file=terminal, flush=True)
    sys.exit(1)


def own_sources_first(sources: Path) -> None:
    """Have every process that is started from here on import the package from `sources`, whatever is installed.

    Snakemake puts its own search path last in a script's. In an environment that two checkouts share, the package that
    is installed there is the other's.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [place for place in given if place not in ("", str(sources))]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(sources), *others])


def workflow_processes() -> list[psutil.Process]:
    """The processes of Snakemake that this one was started by; none outside a workflow."""
    return [process for process in psutil.Process().parents() if _is_snakemake(process)]


def _is_snakemake(process: psutil.Process) -> bool:
    try:
        words = [Path(word).name for word in process.cmdline()[:3]]
    except psutil.Error:
        return False
    return bool(words) and words[0].startswith("python") and "snakemake" in words[1:]


def end_with(processes: Sequence[psutil.Process], end: Callable[[], None], every: float = 1.0) -> threading.Thread:
    """Watch processes from a thread, and call `end` as soon as one of them is gone.

    Works wherever psutil does, and through a shell in between, where Linux's own signal for this does not reach.
    """

    def watch() -> None:
        while all(process.is_running() for process in processes):
            time.sleep(every)
        end()

    thread = threading.Thread(target=watch, name="end with the workflow", daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def job(log: str | Path, name: str) -> Iterator[logging.Logger]:
    """Run the body as a job: what it logs or writes to stderr is seen on the terminal and kept in `log`.

    A BenchError becomes one line on stderr and in the log, and exit code 1. Any other exception is a fault of
    ours: its traceback goes to the log, one line that names the log to the terminal, and the exit code is 1.

    A job whose workflow was killed ends within a second or two: the next call would otherwise find it in its way.

    Args:
        log: the rule's log file.
        name: what is being done, put before every line, since several jobs write to one terminal.
    """
    path = Path(log)
    terminal = sys.stderr
    logger = logging.getLogger("dpfedbench")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by the `with` below)
    except OSError as error:
        print(f"{name}: cannot write the log {path} ({error.strerror}): make its folder writable", file=terminal)
        sys.exit(1)
    with handle:
        print(f"---- {name}, {time.strftime('%Y-%m-%d %H:%M:%S')}", file=handle, flush=True)
        tee = _Tee(terminal, handle)
        handler = logging.StreamHandler(tee)
        handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(handler)

        def abandon() -> None:
            with contextlib.suppress(OSError, ValueError):
                print(
                    f"{name}: the workflow that started this job is gone, so the job ends too", file=handle, flush=True
                )
            os._exit(1)  # no clean-up: whatever is killed here is made again, or goes on from its checkpoint

        if started_by := workflow_processes():
            end_with(started_by, abandon)
        try:
            with contextlib.redirect_stderr(tee):
                yield logger
        except BenchError as error:
            print(f"{name}: {error}", file=tee)
            sys.exit(1)
        except OSError as error:
            if error.errno not in _OUTSIDE:
                _report_fault(handle, terminal, name, path)
            print(f"{name}: {error.filename or 'a file'}: {error.strerror}: {_OUTSIDE[error.errno]}", file=tee)
            sys.exit(1)
        except Exception:
            _report_fault(handle, terminal, name, path)
        finally:
            logger.removeHandler(handler)
            logger.propagate = True
