"""Starts the processes of one training by torchrun (in a Slurm job of several tasks by
srun), and watches them.
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
from workflow_jobs.jobs import WORKFLOW, this_process

ERROR = "error: "
"""What a process writes before the one line that says why it ends."""

_MEMBER = "workflow_jobs.member"


def train_together(arguments: Mapping[str, Any], *, processes: int, log: Path) -> None:
    """Train one run by several processes; each of them ends when this one does, however
    that ends.

    The arguments are those of `engine.train`, and what else `member` takes, each a
    plain value. The log gets what torchrun or srun and the processes write besides what
    people are to read.

    Raises:
        BenchError: as `engine.train`; or a process was lost.
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
    """The command's beginning in a Slurm job of as many tasks; None outside of one."""
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
    # A task that ends badly ends all. srun says so on standard error, which is the
    # log's.
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
