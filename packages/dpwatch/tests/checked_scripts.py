"""Checks of scripts in forked processes, which have imported the libraries already."""

import contextlib
import json
import os
import runpy
import sys
import warnings
from pathlib import Path

from dpwatch.check import command, hooks
from dpwatch.check.report import read_observations, report

PITFALLS = Path(__file__).with_name("pitfalls")


def check_script(path, folder, *arguments, **settings):
    """Run a script under the hooks, in a fork of this process; return its report."""
    settings = command.default_settings() | {"audit_calls": 0} | settings
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _run(path, folder, arguments)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return report(
        read_observations(folder),
        command=[str(path), *arguments],
        exit_code=os.waitstatus_to_exitcode(status),
        settings=settings,
    )


def _run(path, folder, arguments):
    os.chdir(folder)
    sys.argv = [str(path), *arguments]
    warnings.resetwarnings()  # those of pytest are errors
    warnings.simplefilter("ignore")
    session = hooks.install(folder)
    code = 0
    with (
        Path("output.txt").open("w") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception as error:
            print(repr(error))
            code = 1
        session.finish([path])
    return code
