"""One call of the workflow at a time in a folder.

Snakemake deletes the outputs of a job before it starts the job. A second call whose
plan is older than an output would therefore delete it under a job of the first call,
which reads it. So the second call waits before it makes its plan.

The lock is the operating system's: it ends with its process, however that ends. A file
system without such locks has none.
"""

import contextlib
import fcntl
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

_READS = re.compile(
    r"-[a-zA-Z]*n[a-zA-Z]*|--(dry-?run|lint|list.*|report|.*summary|.*dag|.*graph)"
)
"""Options of Snakemake with which a call starts no job."""

_held: dict[Path, TextIO] = {}
"""The locks of this process, by their files."""


def wait_for_other_calls(folder: Path, arguments: Sequence[str]) -> None:
    """Wait until no other call works in a folder, and keep later ones waiting.

    The lock is kept until this process ends.

    Args:
        folder: Snakemake's folder of the call, created if missing.
        arguments: arguments of the call. One that only reads does not wait.
    """
    path = folder.resolve() / "call.lock"
    if path in _held or any(_READS.fullmatch(word) for word in arguments):
        return
    with contextlib.suppress(OSError):  # not writable, or without locks
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(path, "a+", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            print(
                f"{handle.read().strip() or 'another process'} works in"
                f" {folder.resolve().parent}; waiting for it to end",
                file=sys.stderr,
                flush=True,
            )
            fcntl.flock(handle, fcntl.LOCK_EX)
        _held[path] = handle
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {platform.node()}")
        handle.flush()
