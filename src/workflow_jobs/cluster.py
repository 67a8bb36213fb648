"""Checks of the cluster's settings, made before any job is submitted."""

import getpass
import re
import shutil
import subprocess
from collections.abc import Sequence

from dpfedbench.errors import BenchError

_EDIT = "edit profiles/slurm/config.yaml"


def check_slurm(partition: str | None, account: str | None, gpus: int = 0) -> None:
    """Check that Slurm can be reached and has what the profile asks for; a job asks for
    at most so many GPUs.

    None or "" stands for Slurm's default partition, and for the user's default account.

    Raises:
        BenchError: Slurm is absent or does not answer; there is no such partition or
            account, or no default for what was left open; no node of the partition has
            a GPU but one is asked for.
    """
    if shutil.which("sinfo") is None:
        raise BenchError(
            "no Slurm on this machine (sinfo is not found): call it on a login node, or"
            " without --profile"
        )
    answer = _ask("sinfo", "--all", "--noheader", "--format=%P|%G")
    if answer.returncode:
        raise BenchError(
            "Slurm does not answer:"
            f" {(answer.stderr.strip().splitlines() or ['it gave no reason'])[-1]}"
        )
    rows = [
        line.strip().split("|") for line in answer.stdout.splitlines() if "|" in line
    ]
    names = list(dict.fromkeys(row[0].rstrip("*") for row in rows))
    chosen = partition or next(
        (row[0].rstrip("*") for row in rows if row[0].endswith("*")), ""
    )
    if not chosen:
        raise BenchError(
            "slurm_partition is empty and Slurm has no default: choose of"
            f" {_listed(names)}, {_EDIT}"
        )
    if chosen not in names:
        raise BenchError(
            f"slurm_partition: there is no partition {partition!r}, only"
            f" {_listed(names)}: {_EDIT}"
        )
    _check_account(account)
    if gpus and not any(
        "gpu" in row[1] for row in rows if row[0].rstrip("*") == chosen
    ):
        raise BenchError(
            f"machine.gpu is {gpus}, but no node of partition {chosen!r} has a GPU: set"
            f" slurm_partition to one that has ({_EDIT}) or machine.gpu to 0"
        )


def _check_account(account: str | None) -> None:
    """Refuse an account that is not the user's, and none where Slurm insists on one;
    without a database take any.
    """
    command = [
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "associations",
        "where",
        "format=account",
    ]
    answer = _ask(*command, f"user={getpass.getuser()}")
    names = sorted(set(answer.stdout.split()))
    if answer.returncode or not names:
        return  # no accounting database, or it tells a user nothing: sbatch will say
    for name in re.split(r"[,\s]+", account or ""):  # several may be given
        if name and name.lower() not in names:
            raise BenchError(
                f"slurm_account: there is no account {name!r} of yours, only"
                f" {_listed(names)}: {_EDIT}"
            )


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(
            command, 127, "", f"{command[0]} is not found"
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            command, 124, "", f"{command[0]} gave no answer within a minute"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none at all"
