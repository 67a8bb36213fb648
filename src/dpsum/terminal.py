"""Standard output of a command: UTF-8, and a quiet exit when the pipe is closed."""

import os
import sys
from collections.abc import Callable

CLOSED = 141
"""Exit code when the reader closed the pipe, the same as after SIGPIPE."""


def write_utf8() -> None:
    """Make standard output and standard error write UTF-8, whatever the locale is.

    The same command then writes the same bytes everywhere.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def written(command: Callable[[], int]) -> int:
    """Run a command that prints, and return its exit code.

    If standard output cannot be written, the command ends: quietly if the reader closed
    the pipe, else with a one-line error (for instance of a full disk).
    """
    try:
        code = command()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        _discard_output()
        return CLOSED
    except OSError as error:
        if error.filename is not None:  # another file than standard output
            raise
        _discard_output()
        print(f"error: output cannot be written: {error.strerror}", file=sys.stderr)
        return 1


def _discard_output() -> None:
    """Redirect standard output to the null device: Python flushes it again at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
