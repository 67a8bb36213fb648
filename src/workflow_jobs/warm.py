"""Starts jobs quickly: a warm process imports torch and the compiled loops once.

It forks for each job of a workflow. A job's script calls `hand_over.hand_over` before
it loads anything slow, which asks the workflow's warm process to run the script in a fork,
waits, and ends with the fork's exit status. The first script that finds no warm process
starts one. If there can be none, or it is lost, the script does the work itself: only
time depends on the warm process.

Both sides communicate through a socket with a name and no file, so a full disk does not
matter and nothing is left behind. Its name identifies workflow, interpreter and
machine, and both ends refuse other users. With its request a script sends the state of
the source tree. A warm process that imported another state ends, and a new one starts.

The warm process imports and never computes. It has one thread, no OpenMP and no CUDA,
because forks would inherit these in a broken state. A fork is killed with the script
that requested it, and with the warm process, which ends with its workflow.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from workflow_jobs.hand_over import (
    PATIENCE,
    WARM,
    handle_interrupt,
    package_folders,
    refuse_others,
    source_state,
)
from workflow_jobs.jobs import workflow_process

FEWEST = 4
"""Least number of jobs for which starting a warm process pays off."""

_LEAVE = 1.4
"""Time, in seconds, in which jobs can notice and log that their workflow has ended."""
_GONE = select.POLLHUP | select.POLLRDHUP if sys.platform == "linux" else 0


class _Job:
    """A running fork, and the connection to the script that waits for it."""

    def __init__(self, process: int, connection: socket.socket) -> None:
        self.process = process
        self.connection = connection
        self.wanted = True
        self.ended = os.pidfd_open(process)

    def close(self) -> None:
        self.connection.close()
        os.close(self.ended)


def serve(name: str) -> None:
    """Run the warm process with a socket of this name.

    It ends when the workflow ends or the sources change, and at once if another process
    already has the socket.
    """
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal's interrupt goes to the jobs too
    started_by = workflow_process()
    assert started_by is not None
    workflow = os.pidfd_open(started_by.pid)
    state = source_state()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"\0{name}")
    except OSError:
        return
    listener.listen(1024)  # scripts can connect and wait from here on

    def look(*_: object) -> None:
        if select.select([workflow], [], [], 0)[0]:
            os._exit(0)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    _import_all()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    jobs: list[_Job] = []
    leave = math.inf  # time at which the remaining jobs are killed
    while listener.fileno() >= 0 or jobs:
        poll = select.poll()
        for descriptor in (
            workflow if leave == math.inf else -1,
            listener.fileno(),
            *(job.ended for job in jobs),
        ):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        for job in jobs:
            if job.wanted:
                poll.register(job.connection, _GONE)
        ready = {
            descriptor
            for descriptor, _ in poll.poll(None if leave == math.inf else 100)
        }
        if workflow in ready:
            listener.close()
            leave = time.monotonic() + _LEAVE
        if time.monotonic() > leave:
            return
        for job in list(jobs):
            if job.ended in ready:
                _, status = os.waitpid(job.process, 0)
                with contextlib.suppress(OSError):
                    job.connection.sendall(b"%d\n" % status)
                job.close()
                jobs.remove(job)
            elif job.wanted and job.connection.fileno() in ready:
                job.wanted = False
                os.kill(job.process, signal.SIGKILL)
        if listener.fileno() in ready:
            connection = listener.accept()[0]
            descriptors: list[int] = []
            try:
                refuse_others(connection)
                connection.settimeout(PATIENCE)
                request, descriptors = _request(connection)
                if request["state"] == state:
                    jobs.append(
                        _Job(
                            _fork(request, descriptors, [listener, connection, *jobs]),
                            connection,
                        )
                    )
                    connection.sendall(b"%d\n" % jobs[-1].process)
                else:
                    # Close the listener first: a refused script then finds no warm
                    # process.
                    listener.close()
                    connection.close()
            except (OSError, ValueError):  # the script ended, or does its work itself
                if not jobs or jobs[-1].connection is not connection:
                    connection.close()
            for descriptor in descriptors:
                os.close(descriptor)


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive a script's request and its standard input, output and error."""
    head, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as rest:
        return json.loads(head + rest.readline()), descriptors


def _import_all() -> None:
    """Import all packages and load the compiled loops.

    Existing objects are excluded from garbage collection, so that a fork has nothing to
    free.
    """
    gc.disable()
    named = [
        "snakemake.benchmark",
        "snakemake.io",
        "snakemake.logging",
        "matplotlib.backends.backend_agg",
    ]
    for package, folder in package_folders().items():
        modules = pkgutil.walk_packages([str(folder)], f"{package}.")
        named += [module.name for module in modules]
    for module in named:
        with contextlib.suppress(
            Exception
        ):  # a job that needs the module reports its import error
            importlib.import_module(module)
    with contextlib.suppress(Exception):
        importlib.import_module("dpfedbench.models.kernels").load_compiled()
    gc.collect()
    gc.freeze()


def _fork(given: dict[str, Any], descriptors: list[int], held: list[Any]) -> int:
    """Start the job of a request in a fork, and return the fork's process number.

    The fork closes the objects in `held`, which stay open here.
    """
    warm = os.getpid()
    if process := os.fork():
        return process
    code = 1
    try:
        ctypes.CDLL(None).prctl(
            1, signal.SIGKILL
        )  # PR_SET_PDEATHSIG: the fork is killed with the warm process
        if os.getppid() == warm:
            for descriptor in held:
                descriptor.close()
            code = _run(given, descriptors)
    finally:
        os._exit(code)


def _run(given: dict[str, Any], descriptors: list[int]) -> int:
    """Run a script as a new interpreter would, and return its exit code."""
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(
        {name: value for name, value in given["environment"].items() if name != WARM}
    )
    os.chdir(given["folder"])
    script = given["script"]
    Path("/proc/self/comm").write_text(
        Path(script).name.partition(".")[2], encoding="utf-8"
    )
    sys.argv[:], sys.path[:0], tempfile.tempdir = (
        [script],
        [os.path.dirname(os.path.abspath(script))],
        None,
    )
    threads = int(os.environ.get("OMP_NUM_THREADS", 1))
    if threads > 1:  # torch was imported with one thread
        sys.modules["torch"].set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handle_interrupt()
    gc.enable()
    code: Any = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    # Exit like an interpreter, but without freeing memory that is shared with the warm
    # process.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return (code or 0) & 0xFF
