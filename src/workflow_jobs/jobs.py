"""Runs one action of the workflow as a job, with a log, one-line errors and an exit
code.
"""

import contextlib
import copy
import errno
import gc
import io
import logging
import os
import platform
import re
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import psutil

from dpfedbench import files, plugins
from dpfedbench.errors import BenchError
from dpsum.files import number_of


class _Tee(io.TextIOBase):
    """Text goes to the terminal and to the log, at once."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams

    def write(self, text: str) -> int:
        for stream in self._streams:
            with contextlib.suppress(
                OSError
            ):  # a full disk takes no log, and what it says is on the terminal
                stream.write(text)
                stream.flush()
        return len(text)

    def flush(self) -> None:
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.flush()

    def isatty(self) -> bool:
        return self._streams[0].isatty()


_INSTALLED = re.compile("^<|/site-packages/|/lib/python3")
"""File names of Python itself and of installed libraries."""

# Faults of the machine, not of the program, where no file is being written: what to do
# about each.
_OUTSIDE = {
    errno.EACCES: "make it readable and writable",
    errno.EPERM: "make it readable and writable",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space and run the same command again",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def outside(error: Exception, log: Path) -> str | None:
    """Return the message about a fault of the machine; None where it is none."""
    text = " ".join(str(error).split())
    if (
        isinstance(error, MemoryError)
        or "DefaultCPUAllocator" in text
        or type(error).__name__ == "OutOfMemoryError"
    ):
        return (
            f"not enough memory ({text}): make the run smaller, run fewer at once, or"
            " take a larger machine"
        )
    if "No usable temporary directory" in text or "MPLCONFIGDIR" in text:
        return f"{text}: let TMPDIR name a folder with room that can be written to"
    if "no locator available" in text:
        return (
            f"numba has nowhere to keep compiled loops ({text}): let NUMBA_CACHE_DIR"
            " name a folder"
        )
    if isinstance(error, OSError) and (number := number_of(error)) in _OUTSIDE:
        return (
            f"{error.filename or log.parent}: {error.strerror or error}:"
            f" {_OUTSIDE[number]}"
        )
    return None


def last_lines(error: BaseException) -> list[str]:
    """Return the last two lines of a traceback: the place and the error.

    The place is the last one outside of Python's and other libraries.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if not _INSTALLED.search(frame.filename)]
    locations = [
        f'File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        for frame in (ours or frames)[-1:]
    ]
    return [*locations, *traceback.format_exception_only(error)[-1].splitlines()[:1]]


def own_sources_first(sources: Path) -> None:
    """Have every process that is started from here on import the package from
    `sources`, whatever is installed.

    Snakemake puts its own search path last in a script's. In an environment that two
    checkouts share, the package that is installed there is the other's.
    """
    search_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    further = [folder for folder in search_path if folder not in ("", str(sources))]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(sources), *further])


WORKFLOW = "DPFEDBENCH_WORKFLOW"
"""The environment variable by which jobs know the workflow that started them."""


def mark_workflow() -> None:
    """Tell the jobs that this process will start that it is their workflow."""
    os.environ[WORKFLOW] = this_process()


def this_process() -> str:
    """Return the value of `WORKFLOW` for processes that are to end with this one."""
    return f"{place()} {os.getpid()} {psutil.Process().create_time()}"


def place() -> str:
    """Return the name of the place where process numbers mean the same: a machine, or a
    container with numbers of its own.
    """
    space = Path("/proc/self/ns/pid")
    return f"{platform.node()} {os.readlink(space) if space.exists() else '-'}"


def workflow_process() -> psutil.Process | None:
    """The process of Snakemake that started this one; None outside a workflow, and
    where it cannot be seen from here.

    Raises:
        psutil.NoSuchProcess: it is gone.
    """
    here, *marked = os.environ.get(WORKFLOW, "").rsplit(" ", 2)
    if here != place() or len(marked) < 2:
        return None
    process = psutil.Process(int(marked[0]))
    # Another of the same number began later. A clock that is set moves what is said of
    # the beginning.
    if process.create_time() - float(marked[1]) > 60:
        raise psutil.NoSuchProcess(process.pid)
    return process


def end_with(
    process: psutil.Process, end: Callable[[], None], every: float = 1.0
) -> threading.Thread:
    """Watch a process from a thread, and call `end` as soon as it is gone.

    Works wherever psutil does, and through a shell in between, where Linux's own signal
    for this does not reach.
    """

    def watch() -> None:
        while process.is_running():
            time.sleep(every)
        end()

    thread = threading.Thread(target=watch, name="end with the workflow", daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def measured(cost: Path) -> Iterator[None]:
    """Write down what this process, and those that it has started, cost from its start
    to the end of the body.

    In the form of Snakemake's own `benchmark:`, which looks at the script that it
    started and at that one's children: it would see a script that waits for the warm
    process, and nothing of the work. Snakemake samples; the peak of this process's
    memory and all processor time are the kernel's. A fork's max_rss has what it shares
    with the warm process, its max_uss has not.
    """
    from snakemake.benchmark import benchmarked, write_benchmark_records

    cost.unlink(missing_ok=True)
    with benchmarked() as sampled:
        yield
    record = copy.copy(sampled)  # a thread may still be writing to the other
    used = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    record.running_time = _age()
    record.cpu_time = sum(usage.ru_utime + usage.ru_stime for usage in used)
    record.cpu_usage = 100 * record.cpu_time
    # Not getrusage's: that is also of what the process was before it was this program,
    # a copy of Snakemake.
    with contextlib.suppress(OSError):
        peak = re.findall(
            r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text(encoding="utf-8")
        )
        record.max_rss = max(record.max_rss or 0, int(peak[0]) / 1024)
    with files.atomic_path(cost) as temporary:
        write_benchmark_records([record], str(temporary), False)


def _age() -> float:
    """Seconds since this process began."""
    try:
        began = (
            Path("/proc/self/stat")
            .read_text(encoding="utf-8")
            .rpartition(")")[2]
            .split()[19]
        )
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(began) / os.sysconf(
            "SC_CLK_TCK"
        )
    except (
        OSError,
        AttributeError,
    ):  # not Linux; psutil, which counts from a boot in whole seconds, is up to one off
        return time.time() - psutil.Process().create_time()


@contextlib.contextmanager
def job(log: str | Path, name: str) -> Iterator[logging.Logger]:
    """Run the body as a job: what it logs or writes to stderr is seen on the terminal
    and kept in `log`.

    A BenchError becomes one line on stderr and in the log, and exit code 1. The
    traceback of any other exception goes to the log, its last lines and the name of the
    log go to the terminal, and the exit code is 1. So does the traceback of what a
    BenchError was raised from.

    A job whose workflow was killed ends within a second or two: the next call would
    otherwise find it in its way. The name of the job stands before every line, since
    several jobs write to one terminal.
    """
    # Torch alone loads very many objects that stay: to look through them for garbage as
    # often as usual takes a tenth of the time that a job needs to start.
    gc.set_threshold(100_000, 20, 20)
    path = Path(log)
    terminal = sys.stderr
    logger = logging.getLogger("dpfedbench")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(path, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        print(
            f"{name}: cannot write the log {path} ({error.strerror}): make its folder"
            " writable",
            file=terminal,
        )
        sys.exit(1)
    log_only = _Tee(handle)
    tee = _Tee(terminal, handle)
    # Without the time: when the job after a private training began tells how long that
    # took.
    print(f"---- {name}", file=log_only)
    handler = logging.StreamHandler(tee)
    handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)

    def abandon() -> None:
        with contextlib.suppress(ValueError):
            print(
                f"{name}: the workflow that started this job is gone, so the job"
                " ends too",
                file=log_only,
            )
        os._exit(
            1
            # no clean-up: whatever is killed here is made again, or goes on from its
            # checkpoint
        )

    try:
        if started_by := workflow_process():
            end_with(started_by, abandon)
    except psutil.NoSuchProcess:
        abandon()
    try:
        with contextlib.redirect_stderr(tee):
            plugins.load()  # the warm process has imported none
            yield logger
    except BenchError as error:
        print(f"{name}: {error}", file=tee)
        if error.__cause__ is not None:
            print("".join(traceback.format_exception(error.__cause__)), file=log_only)
        sys.exit(1)
    except Exception as error:
        if message := outside(error, path):
            print(f"{name}: {message}", file=tee)
        else:
            print(traceback.format_exc(), file=log_only)
            *location, message = last_lines(error)
            for line in [*location, f"{message} (the traceback is in {path})"]:
                print(f"{name}: {line}", file=_Tee(terminal))
        sys.exit(1)
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
        with contextlib.suppress(OSError):
            handle.close()
