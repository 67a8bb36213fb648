"""Calls of Snakemake, as a user makes them, by forks of a process that has imported it."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CallSnakemake = Callable[..., subprocess.CompletedProcess[str]]

SERVE = """
import atexit, gc, json, os, runpy, sys, threading, traceback
import jsonschema, nbformat, smart_open, snakemake.cli
snakemake.cli.get_argument_parser()  # which looks for plugins
installed = sys.path[1:]
sys.path.insert(0, sys.argv[1])
import dpfedbench.experiments.expand, dpfedbench.experiments.targets
from dpfedbench.experiments import code_hash
[code_hash.code_hash(rule) for rule in code_hash.PACKAGES]
gc.freeze()
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if not child:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(os.open(request["out"], os.O_WRONLY), 1)
            os.dup2(os.open(request["errors"], os.O_WRONLY), 2)
            os.environ.clear()
            os.environ.update(request["environment"])
            os.chdir(request["folder"])
            python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            sys.path[:] = [request["folder"], *filter(None, python_path), *installed]
            if request["fresh"]:
                for name in list(sys.modules):
                    if name.split(".")[0] in ("dpfedbench", "dpkernels", "dploss", "dpsum", "dpwatch", "drawnsets"):
                        del sys.modules[name]
            sys.argv[1:] = request["arguments"]
            runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as ended:
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Snakemake:
    """Process that has imported Snakemake and the planner, and forks for each call."""

    def __init__(self, sources: Path) -> None:
        environment = dict(os.environ)
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(sources)],
            env=environment,
            text=True,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(
        self,
        *arguments: str,
        folder: Path,
        fresh: bool = False,
        timeout: float = 600,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Call `python -m snakemake` in a folder, without the user's profile.

        With `fresh`, the call imports the packages anew: its sources lie elsewhere.
        """
        variables = os.environ | environment
        variables.pop("SNAKEMAKE_PROFILE", None)
        with tempfile.TemporaryDirectory() as streams:
            out = Path(streams, "out")
            errors = Path(streams, "errors")
            out.touch()
            errors.touch()
            request: dict[str, Any] = {
                "arguments": arguments,
                "folder": str(folder),
                "environment": variables,
                "fresh": fresh,
                "out": str(out),
                "errors": str(errors),
            }
            assert self._process.stdin
            assert self._process.stdout
            print(json.dumps(request), file=self._process.stdin, flush=True)
            ready, _, _ = select.select([self._process.stdout], [], [], timeout)
            if not ready:
                self.end()
                raise subprocess.TimeoutExpired(list(arguments), timeout)
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(
                list(arguments),
                code,
                out.read_text(encoding="utf-8"),
                errors.read_text(encoding="utf-8"),
            )

    def end(self) -> None:
        """End the process and its forks."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.communicate()
