"""Snakemake, called as a user calls it, by forks of a process that has imported it
already.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

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
    given, child = json.loads(line), os.fork()
    if not child:
        code = 1
        try:
            for number, path in enumerate([os.devnull, *given["said"]]):
                os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY), number)
            os.environ.clear()
            os.environ.update(given["environment"])
            os.chdir(given["folder"])
            own = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
            sys.path[:] = [given["folder"], *own, *installed]
            for name in list(sys.modules) if given["fresh"] else ():
                if name.split(".")[0] in ("dpfedbench", "dpkernels", "dpsum", "dpwatch"):
                    del sys.modules[name]
            sys.argv[1:] = given["arguments"]
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
    """A process that has imported Snakemake, and the package as far as a plan needs it,
    and forks for each call.
    """

    def __init__(self, sources: Path) -> None:
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(sources)],
            env=kept,
            text=True,
            start_new_session=True,
            **pipes,
        )

    def __call__(
        self,
        *arguments: str,
        folder: Path,
        fresh: bool = False,
        timeout: float = 600,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Call `python -m snakemake` in a folder, without a profile of the user's;
        `fresh`: with sources elsewhere.
        """
        given = {
            key: value
            for key, value in (os.environ | environment).items()
            if key != "SNAKEMAKE_PROFILE"
        }
        with tempfile.TemporaryDirectory() as place:
            said = [Path(place, name) for name in ("out", "errors")]
            for path in said:
                path.touch()
            request = {
                "arguments": arguments,
                "folder": str(folder),
                "environment": given,
                "fresh": fresh,
            }
            request["said"] = [*map(str, said)]
            assert self._process.stdin
            assert self._process.stdout
            print(json.dumps(request), file=self._process.stdin, flush=True)
            ready, _, _ = select.select([self._process.stdout], [], [], timeout)
            if not ready:
                self.end()
                raise subprocess.TimeoutExpired(list(arguments), timeout)
            code = int(self._process.stdout.readline())
            out, errors = (path.read_text(encoding="utf-8") for path in said)
        return subprocess.CompletedProcess(list(arguments), code, out, errors)

    def end(self) -> None:
        """End it, and what it has forked."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.communicate()
