"""Runs one action of the workflow as a job.

A job has a log, reports errors in one line, and has an exit code.
"""

import contextlib
import copy
import errno
import gc
import io
import logging
import os
import re
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from dpfedbench import files, plugins
from dpfedbench.errors import BenchError
from dpsum.files import number_of
from workflow_jobs.hand_over import WORKFLOW, place
from workflow_jobs.terminal import QUIET, OverProgress, Stream, print_over_progress


class _Tee(io.TextIOBase):
    """Stream that writes text to the terminal and to the log at once."""

    def __init__(self, *streams: Stream) -> None:
        self._streams = streams

    def write(self, text: str) -> int:
        for stream in self._streams:
            with contextlib.suppress(
                OSError
            ):  # full disk: the log stays incomplete, the terminal shows the text
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
"""Pattern of file names of Python itself and of installed libraries."""

# Faults of the machine, not of the program, where the error does not come from writing
# a file; and the remedy for each.
_OUTSIDE = {
    errno.EACCES: "make it readable and writable",
    errno.EPERM: "make it readable and writable",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space and run the same command again",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def outside(error: Exception, log: Path) -> str | None:
    """Return the message about a fault of the machine, or None for other errors."""
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
        return f"{text}: set TMPDIR to a writable folder with free space"
    if "no locator available" in text:
        return (
            f"numba cannot cache compiled loops ({text}): set NUMBA_CACHE_DIR to a"
            " writable folder"
        )
    if isinstance(error, OSError) and (number := number_of(error)) in _OUTSIDE:
        return (
            f"{error.filename or log.parent}: {error.strerror or error}:"
            f" {_OUTSIDE[number]}"
        )
    return None


def last_lines(error: BaseException) -> list[str]:
    """Return the last two lines of a traceback: the place and the error.

    The place is the last one outside of Python and its libraries.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if not _INSTALLED.search(frame.filename)]
    locations = [
        f'File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        for frame in (ours or frames)[-1:]
    ]
    return [*locations, *traceback.format_exception_only(error)[-1].splitlines()[:1]]


def own_sources_first(*sources: Path) -> None:
    """Let later processes import the packages in `sources`, whatever is installed.

    Snakemake puts its own search path last in a script's path. In an environment that
    two checkouts share, the installed package belongs to the other checkout.
    """
    first = [str(folder) for folder in sources]
    search_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    further = [folder for folder in search_path if folder not in ("", *first)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*first, *further])


def mark_workflow() -> None:
    """Mark this process as the workflow of the jobs that it will start."""
    os.environ[WORKFLOW] = this_process()


def this_process() -> str:
    """Return the value of `WORKFLOW` for processes that have to end with this one."""
    return f"{place()} {os.getpid()} {psutil.Process().create_time()}"


def workflow_process() -> psutil.Process | None:
    """Return Snakemake's process that started this one.

    None: there is no workflow, or its process is not visible from here.

    Raises:
        psutil.NoSuchProcess: the workflow's process has ended.
    """
    here, *marked = os.environ.get(WORKFLOW, "").rsplit(" ", 2)
    if here != place() or len(marked) < 2:
        return None
    process = psutil.Process(int(marked[0]))
    # A later process may have the same number. The limit allows for clock changes,
    # which move the reported start time.
    if process.create_time() - float(marked[1]) > 60:
        raise psutil.NoSuchProcess(process.pid)
    return process


def end_with(
    process: psutil.Process, end: Callable[[], None], every: float = 1.0
) -> threading.Thread:
    """Watch a process from a thread, and call `end` as soon as it has ended.

    It works wherever psutil does, and also if a shell is in between, where Linux's
    signal for this purpose does not arrive.
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
    """Write what this process and its children cost.

    Costs are counted from the start of the process to the end of the body.

    The format is that of Snakemake's own `benchmark:`. Snakemake would measure the
    script that it started and that script's children: a script that waits for the warm
    process, and nothing of the work. Snakemake takes samples; the peak memory of this
    process and all processor time come from the kernel. For a fork, max_rss includes
    memory shared with the warm process, max_uss does not.
    """
    from snakemake.benchmark import benchmarked, write_benchmark_records

    cost.unlink(missing_ok=True)
    with benchmarked() as sampled:
        yield
    record = copy.copy(sampled)  # a thread may still be writing to the sampled record
    used = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    record.running_time = _age()
    record.cpu_time = sum(usage.ru_utime + usage.ru_stime for usage in used)
    record.cpu_usage = 100 * record.cpu_time
    # Not getrusage's peak: it includes the time before this program replaced a copy of
    # Snakemake.
    with contextlib.suppress(OSError):
        peak = re.findall(
            r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text(encoding="utf-8")
        )
        record.max_rss = max(record.max_rss or 0, int(peak[0]) / 1024)
    with files.atomic_path(cost) as temporary:
        write_benchmark_records([record], str(temporary), False)


def _age() -> float:
    """Return the seconds since this process started."""
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
    ):  # not Linux: psutil's value can be off by one second
        return time.time() - psutil.Process().create_time()


def _report(
    error: Exception,
    name: str,
    path: Path,
    *,
    log: Stream,
    shown: Stream,
    terminal: Stream,
) -> None:
    """Report the error that ends a job.

    Args:
        error: the error.
        name: name of the job.
        path: path of the job's log.
        log: stream of the log.
        shown: stream of the log and the terminal.
        terminal: stream of the terminal.
    """
    if isinstance(error, BenchError):
        print(f"{name}: {error}", file=shown)
        if error.__cause__ is not None:
            print("".join(traceback.format_exception(error.__cause__)), file=log)
    elif message := outside(error, path):
        print(f"{name}: {message}", file=shown)
    else:
        print("".join(traceback.format_exception(error)), file=log)
        *location, message = last_lines(error)
        for line in [*location, f"{message} (the traceback is in {path})"]:
            print_over_progress(f"{name}: {line}", terminal)


@contextlib.contextmanager
def job(
    log: str | Path, name: str, *, is_answer: bool = False
) -> Iterator[logging.Logger]:
    """Run the body as a job, with terminal output and a log file.

    Where the workflow shows its progress, only warnings and errors of the job go to the
    terminal.

    Args:
        log: path of the log file.
        name: name of the job in messages.
        is_answer: whether the records of the logger are what the user asked for, so
            that the terminal always shows them.

    Log records of the body and its output to stderr go to the terminal and to `log`. A
    BenchError becomes one line on stderr and in the log, and exit code 1. For any other
    exception, the traceback goes to the log, its last lines and the name of the log go
    to the terminal, and the exit code is 1. The traceback of a BenchError's cause goes
    to the log as well.

    If the workflow is killed, the job ends within a second or two; otherwise the next
    call of the workflow would meet it. Every line begins with the name of the job,
    because several jobs write to one terminal.
    """
    # torch alone loads very many permanent objects. Searching them for garbage at the
    # usual rate takes a tenth of the time that a job needs to start.
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
    is_quiet = os.environ.get(QUIET) == "yes"
    tee = _Tee(OverProgress(terminal, "warning:") if is_quiet else terminal, handle)
    shown = _Tee(OverProgress(terminal) if is_quiet else terminal, handle)
    # The log has no time: the start of the job after a private training would reveal
    # how long that training took.
    print(f"---- {name}", file=log_only)
    handler = logging.StreamHandler(shown if is_answer else tee)
    handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)

    def abandon() -> None:
        with contextlib.suppress(ValueError):
            print(
                f"{name}: the workflow that started this job has ended, so the job"
                " ends too",
                file=log_only,
            )
        os._exit(
            1
            # No clean-up: a killed output is made again, or a training continues from
            # its checkpoint.
        )

    try:
        if started_by := workflow_process():
            end_with(started_by, abandon)
    except psutil.NoSuchProcess:
        abandon()
    try:
        with contextlib.redirect_stderr(tee):
            plugins.load()  # the warm process has not imported plugins
            yield logger
    except KeyboardInterrupt:
        print(f"{name}: stopped by the user", file=log_only)
        raise
    except Exception as error:
        _report(error, name, path, log=log_only, shown=shown, terminal=terminal)
        sys.exit(1)
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
        with contextlib.suppress(OSError):
            handle.close()
