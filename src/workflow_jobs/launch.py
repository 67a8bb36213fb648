"""Starts and watches the processes of one training.

torchrun starts them, or srun in a Slurm job of several tasks.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from workflow_jobs.hand_over import WORKFLOW
from workflow_jobs.jobs import this_process

ERROR = "error: "
"""Prefix of the one line with which a process reports why it ends."""

_MEMBER = "workflow_jobs.member"


def train_together(arguments: Mapping[str, Any], *, processes: int, log: Path) -> None:
    """Train one run with several processes, which end when this process ends.

    Args:
        arguments: arguments of `engine.train`, and further ones of `member`; plain
            values.
        processes: number of processes.
        log: log file. It receives the output of torchrun or srun and of the processes
            that is not meant for people.

    Raises:
        BenchError: as for `engine.train`, or a process was lost.
    """
    threads = arguments["threads"]
    command = _by_srun(processes, threads) or [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={processes}",
        "-m",
        _MEMBER,
    ]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        WORKFLOW: this_process(),
    }
    if command[0] == "srun":
        environment |= {
            "MASTER_ADDR": platform.node(),
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(processes),
        }
    errors = []
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(log, "wb") as log_file,
        subprocess.Popen(
            [*command, json.dumps({**arguments, "log": str(log)})],
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
            env=environment,
        ) as started,
    ):
        try:
            assert started.stdout is not None
            for line in started.stdout:
                if line.startswith(ERROR):
                    errors.append(line.removeprefix(ERROR).rstrip())
                else:
                    print(line, end="", file=sys.stderr, flush=True)
        except BaseException:
            started.terminate()
            raise
    if not started.returncode:
        return
    if errors:
        raise BenchError(errors[0])
    if "No module named" in log.read_text(encoding="utf-8", errors="replace"):
        raise BenchError(
            f"python -m torch.distributed.run does not start ({log}): set"
            " machine.processes to 1"
        )
    raise BenchError(
        f"one of the {processes} processes was killed or lost ({log}): run the same"
        " command again; the training continues from its last checkpoint"
    )


def _by_srun(processes: int, threads: int) -> list[str] | None:
    """Return the beginning of the srun command in a Slurm job with as many tasks.

    None: there is no such Slurm job.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job or shutil.which("srun") is None or shutil.which("scontrol") is None:
        return None
    shown_job = subprocess.run(
        ["scontrol", "--oneliner", "show", "job", job],
        capture_output=True,
        text=True,
        check=False,
    )
    tasks = re.search(r"\bNumTasks=(\d+)", shown_job.stdout)
    if tasks is None or int(tasks[1]) < processes:
        return None
    # A failing task ends all tasks. srun reports it on standard error, which goes to
    # the log.
    return [
        "srun",
        f"--ntasks={processes}",
        f"--cpus-per-task={threads}",
        "--kill-on-bad-exit=1",
        "--unbuffered",
        sys.executable,
        "-m",
        _MEMBER,
    ]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
