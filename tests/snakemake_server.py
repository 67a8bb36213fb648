"""Process that has imported Snakemake, and forks for each call of it.

Importing Snakemake takes about as long as planning a small workflow. No module of this
repository is imported before the fork, so a call may be one of another copy of it.
"""

import contextlib
import importlib
import json
import os
import sys

# `python -m snakemake` imports these too, before or while it reads our Snakefile.
LIBRARIES = ("jinja2", "numpy", "pandas", "psutil", "pydantic", "snakemake.cli", "yte")


def become_call(
    arguments: list[str], folder: str, environment: dict[str, str], outputs: list[str]
) -> None:
    """Make this process one that a shell started in a folder.

    `outputs` are the files of the standard streams.
    """
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    added = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [folder, *added]
    sys.argv = ["snakemake", *arguments]
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")


def serve() -> None:
    """Answer each request, a line of JSON, by the call's process and its exit code."""
    for name in LIBRARIES:
        __import__(name)
    sys.path.pop(0)  # the folder of this file
    for line in sys.stdin:
        process = os.fork()
        if not process:
            become_call(**json.loads(line))
            sys.modules["snakemake.cli"].main()
            return
        print(process, flush=True)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
