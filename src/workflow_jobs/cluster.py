"""Checks of the cluster's settings, before any job is submitted."""

import getpass
import re
import shutil
import subprocess
from collections.abc import Sequence

from dpfedbench.errors import BenchError

_EDIT = "edit profiles/slurm/config.yaml"


def check_slurm(partition: str | None, account: str | None, gpus: int = 0) -> None:
    """Check that Slurm is reachable and has what the profile requests.

    Args:
        partition: partition of the jobs. None or "": Slurm's default partition.
        account: account of the jobs. None or "": the user's default account.
        gpus: largest number of GPUs that a job requests.

    Raises:
        BenchError: Slurm is absent or does not answer; the partition or account does
            not exist, or there is no default for one that is not named; or a GPU is
            requested and no node of the partition has one.
    """
    if shutil.which("sinfo") is None:
        raise BenchError(
            "no Slurm on this machine (sinfo is not found): run the workflow on a"
            " login node, or without --profile"
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
            "slurm_partition is empty and Slurm has no default: choose one of"
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
    """Refuse an account that the user does not have, or none if Slurm requires one.

    Without an accounting database, any account is accepted.
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
        return  # no accounting database, or none for users: sbatch will report it
    for name in re.split(r"[,\s]+", account or ""):  # may list several accounts
        if name and name.lower() not in names:
            raise BenchError(
                f"slurm_account: you have no account {name!r}, only {_listed(names)}:"
                f" {_EDIT}"
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
