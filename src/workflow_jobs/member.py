"""One process of a training by several processes.

`launch` starts it by torchrun or srun:

    python -m workflow_jobs.member ARGUMENTS

ARGUMENTS are those of `engine.train` as JSON, with the run's config.yaml as `config`
and the job's log as `log`. Output for people goes to standard output: from the first
process only, except for errors. Other output goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path

import psutil

from dpfedbench.errors import BenchError
from dpfedbench.lazy import torch
from dpfedbench.training.distributed import Lost, joined
from workflow_jobs.jobs import end_with, last_lines, outside, workflow_process
from workflow_jobs.launch import ERROR


def main(arguments: str) -> int:
    """Train, and return the exit code."""
    options = json.loads(arguments)
    log = Path(options.pop("log"))
    config = options.pop("config")
    references = {Path(path).name: Path(path) for path in options.pop("references")}
    # The job that started this process marks itself as its workflow, so this process
    # ends with that job.
    try:
        if started_by := workflow_process():
            end_with(started_by, lambda: os._exit(1))
    except psutil.NoSuchProcess:
        return 1
    try:
        with (
            joined() as processes,
            contextlib.redirect_stderr(sys.stdout if processes.is_main else sys.stderr),
        ):
            from dpfedbench.papers import read_run_file
            from dpfedbench.training.engine import train

            if options["device"] != "cpu" and torch.cuda.is_available():
                torch.cuda.set_device(
                    int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
                )
            train(
                read_run_file(config),
                references=references,
                processes=processes,
                **options,
            )
    except Lost:
        return 1
    except BenchError as error:
        message = str(error)
    except Exception as error:
        traceback.print_exc()
        message = outside(error, log) or (
            f"{': '.join(last_lines(error))} (the traceback is in {log})"
        )
    else:
        return 0
    print(f"{ERROR}{message}", flush=True)
    return 1


if __name__ == "__main__":
    # Write whole lines: all processes share the pipe, and a separate write of a line's
    # end would let lines mix.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    # Skip the interpreter's exit handlers: they may wait for other processes, which may
    # have ended.
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
