"""Calls of Snakemake, as a user makes them, and copies of the checkout to call it in."""

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CallSnakemake = Callable[..., subprocess.CompletedProcess[str]]


def call_snakemake(
    *arguments: str, folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call Snakemake on two cores in a folder, in a fork of one that is imported.

    A `sitecustomize` of the environment's PYTHONPATH is imported too.

    Raises:
        TimeoutError: the call took ten minutes, and was killed.
    """
    server = _snakemake_server()
    assert server.stdin
    assert server.stdout
    with tempfile.TemporaryDirectory() as outputs:
        files = [Path(outputs, name) for name in ("output", "errors")]
        request = {
            "arguments": ["--cores", "2", *map(str, arguments)],
            "folder": str(folder),
            "environment": os.environ | environment,
            "outputs": list(map(str, files)),
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        group = int(server.stdout.readline())
        limit = threading.Timer(600, os.killpg, (group, signal.SIGKILL))
        limit.start()
        code = int(server.stdout.readline())
        if not limit.is_alive():
            raise TimeoutError(f"snakemake {arguments}")
        limit.cancel()
        output, errors = (file.read_text(encoding="utf-8") for file in files)
    return subprocess.CompletedProcess(request["arguments"], code, output, errors)


@functools.cache
def _snakemake_server() -> subprocess.Popen[str]:
    """Start the process that has imported Snakemake; it ends with this one."""
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "snakemake_server.py")],
        env=os.environ | {"PYTHONPATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        server.kill()
        server.communicate()

    atexit.register(end)
    return server


@dataclass(frozen=True)
class PreparedCall:
    """A folder with the files of a page, and the page's call of Snakemake.

    Attributes:
        folder: the folder.
        environment: variables of the call.
        arguments: arguments of the call.
    """

    folder: Path
    environment: dict[str, str]
    arguments: list[str]

    def call(self, *options: str) -> str:
        """Make the call, with further options; return what it prints."""
        done = call_snakemake(
            *self.arguments, *options, folder=self.folder, **self.environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def copy_checkout(target: Path, bytecode: bool = True) -> None:
    """Copy the working tree without the files that git ignores, but with those that
    numba compiled: they fit sources of the same text, and take longest to make. With
    `bytecode` also those that Python compiled, which fit sources of the same time.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.check_output(command, cwd=ROOT, text=True)
    files = [ROOT / name for name in filter(None, listing.split("\0"))]
    suffixes = ("nb[ic]", "pyc") if bytecode else ("nb[ic]",)
    for suffix in suffixes:
        files += ROOT.glob(f"packages/*/src/**/*.{suffix}")
        files += ROOT.glob(f"src/**/*.{suffix}")
    for file in files:
        if file.is_file():
            copy = target / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
