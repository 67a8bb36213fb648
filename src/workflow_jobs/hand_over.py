"""Let the workflow's warm process run a script.

A script calls `hand_over` before it imports anything slow: `warm` says what the warm
process is. This module imports nothing but Python's own library, because every job of a
workflow begins with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import subprocess

WORKFLOW = "DPFEDBENCH_WORKFLOW"
"""Environment variable that tells jobs which workflow started them."""
WARM = "DPFEDBENCH_WARM"
"""Environment variable with which a workflow allows its jobs a warm process.

It is "no" if the user disables the warm process.
"""
PATIENCE = 30.0
"""Time limit, in seconds, of the two ends.

A warm process has to start in it, and a script has to send its request in it.
"""

_SOURCES = Path(__file__).resolve().parents[1]
_IMPORTED = ("dpfedbench", "dpkernels", "dploss", "dpsum", "drawnsets", "workflow_jobs")
"""Packages that the warm process imports; an edit of one starts a new process."""
START = (
    "import os, sys; sys.path[:] = sys.argv[2:]; from workflow_jobs.warm import serve;"
    " serve(sys.argv[1]); os._exit(0)"
)
# Libraries that start threads on import would start them in the warm process. A fork
# sets its own number of threads.
_ALONE = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
    ),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


def handle_interrupt(handle: Callable[[], None] = lambda: None) -> None:
    """Print no traceback in this process if the user interrupts it.

    Args:
        handle: what is called then. Snakemake catches an interrupt only while it
            executes jobs.
    """
    default = sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            handle()
        else:
            default(kind, error, trace)

    sys.excepthook = hook


def place() -> str:
    """Return the name of the namespace of process numbers.

    It is a machine, or a container with its own process numbers.
    """
    space = Path("/proc/self/ns/pid")
    return f"{platform.node()} {os.readlink(space) if space.exists() else '-'}"


def hand_over() -> None:
    """Let a fork of the warm process run this script, and exit with the fork's status.

    It returns if the script has to run in this process. In either case, and in
    processes that the script starts, numpy's matrix products use one thread: their last
    bits depend on it.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = (
        "1"  # numpy reads it when it is loaded, which is later
    )
    handle_interrupt()
    marked = os.environ.get(WORKFLOW, "").startswith(f"{place()} ")
    if not (os.environ.get(WARM) and marked and hasattr(os, "pidfd_open")):
        return
    for _ in range(
        2
    ):  # a warm process with outdated imports is replaced at the second attempt
        with contextlib.suppress(OSError), _connected(_name()) as connection:
            request = {
                "script": sys.argv[0],
                "folder": os.getcwd(),
                "environment": dict(os.environ),
                "state": source_state(),
            }
            socket.send_fds(connection, [b"{"], [0, 1, 2])
            connection.sendall(json.dumps(request).encode()[1:] + b"\n")
            answers = connection.makefile("rb")
            job = _number(answers)
            if job is not None:
                return _wait(answers, job)


def _wait(answers: BinaryIO, job: int) -> None:
    """Exit with the status of a job.

    It returns if the warm process is lost. It then first waits for the job, which ends
    with the warm process.
    """
    ended = None
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(job)
    # From a terminal the job receives this signal as well. Give it some seconds to
    # clean up.
    signal.signal(signal.SIGINT, lambda *_: signal.alarm(5))
    status = _number(answers)
    if status is None:
        if ended is not None:
            select.select([ended], [], [])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):  # SIGKILL cannot have a handler
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def _name() -> str:
    """Return the socket's name.

    It depends on the workflow, the interpreter, and the namespace of paths and process
    numbers.
    """
    spaces = [os.readlink(f"/proc/self/ns/{space}") for space in ("mnt", "pid", "user")]
    identity = json.dumps(
        [os.environ[WORKFLOW], sys.executable, sys.prefix, sys.version, *spaces]
    )
    return f"\0dpfedbench-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def package_folders() -> dict[str, Path]:
    """Return the folders of the packages of this checkout, or beside this package."""
    folders = [_SOURCES, *sorted(_SOURCES.parent.glob("packages/*/src"))]
    return {
        name: folder / name
        for folder in folders
        for name in _IMPORTED
        if (folder / name).is_dir()
    }


def source_state() -> str:
    """Return a hash of the packages' source files and of the installed packages.

    Plugins do not count: each job imports them in its fork.
    """
    state = []
    packages = package_folders().values()
    for folder, _, names in (level for top in packages for level in os.walk(top)):
        for name in names:
            if name.endswith(".py"):
                stat = os.stat(os.path.join(folder, name))
                state.append((folder, name, stat.st_mtime_ns, stat.st_size))
    for folder in {entry for entry in sys.path if entry.endswith("-packages")}:
        with contextlib.suppress(OSError):
            state.append((folder, "", os.stat(folder).st_mtime_ns, 0))
    return hashlib.sha256(repr(sorted(state)).encode()).hexdigest()


def _connected(name: str) -> socket.socket:
    """Return a connection to the warm process, which is started if there is none.

    Raises:
        OSError: there can be no warm process, or it belongs to another user.
    """
    started: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + PATIENCE
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(name)
            refuse_others(connection)
            return connection
        except ConnectionRefusedError:
            connection.close()
            if time.monotonic() > deadline or (started and started.poll() is not None):
                raise
            started = started or _start(name)
            time.sleep(0.02)
        except BaseException:
            connection.close()
            raise


def _start(name: str) -> subprocess.Popen[bytes]:
    """Start the warm process with a socket of this name."""
    import subprocess  # one script of a workflow needs these two

    from dpfedbench.plugins import VARIABLE

    # A plugin may start threads as well, and an edit of a plugin must reach the next
    # job: the warm process has none.
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            START,
            name[1:],
            *map(os.path.abspath, sys.path[1:]),
        ],
        env=os.environ | _ALONE | {VARIABLE: "no"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def refuse_others(connection: socket.socket) -> None:
    """Refuse a connection to another user's process.

    Raises:
        PermissionError: the other end belongs to another user.
    """
    _, user, _ = struct.unpack(
        "=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    if user != os.getuid():
        raise PermissionError("another user's process")


def _number(answers: BinaryIO) -> int | None:
    """Return the next number from the warm process.

    None: it closed the connection.
    """
    with contextlib.suppress(ConnectionResetError):
        if line := answers.readline():
            return int(line)
    return None
