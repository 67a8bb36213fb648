"""Files of other runs that a run needs."""

from collections.abc import Mapping
from pathlib import Path

from dpfedbench.errors import BenchError


def reference(files: Mapping[str, Path], name: str, earlier: str) -> Path:
    """Return a file of an earlier run.

    Args:
        files: files of other runs, by the name in their folder.
        name: name of the file.
        earlier: the other run, for the message.

    Raises:
        BenchError: the file is not among them.
    """
    if name not in files:
        raise BenchError(
            f"this run needs {name} of {earlier}: give its {name} as a reference"
        )
    return files[name]
