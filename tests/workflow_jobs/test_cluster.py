"""What is said before anything is submitted; Slurm's commands are stood in for by
scripts that answer as it does.

The answers are those of Slurm 22.05, copied; tests/cluster/slurm.py asks a real one.
"""

import os
from pathlib import Path

import pytest

from dpfedbench.errors import BenchError
from workflow_jobs.cluster import check_slurm

NODES = "main*|(null)\\nfast|gpu:a100:2(S:0)\\n"
NO_DATABASE = (
    "echo 'You are not running a supported accounting_storage plugin' >&2; exit 1"
)


def slurm(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    sinfo: str = f"printf '{NODES}'",
    sacctmgr: str,
) -> None:
    for name, body in (("sinfo", sinfo), ("sacctmgr", sacctmgr)):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_what_is_there_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Slurm's database any account is left to Slurm."""
    slurm(tmp_path, monkeypatch, sacctmgr="printf 'physics\\nphysics\\nbio\\n'")
    check_slurm(None, None)
    check_slurm("main", "Physics")
    check_slurm("fast", "bio,physics", 1)
    slurm(tmp_path, monkeypatch, sacctmgr=NO_DATABASE)
    check_slurm("main", "anything")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("nowhere", None, 0),
            "slurm_partition: there is no partition 'nowhere', only main, fast: edit",
        ),
        (
            (None, "maths", 0),
            (
                "slurm_account: there is no account 'maths' of yours, only bio,"
                " physics: edit"
            ),
        ),
        (
            (None, None, 1),
            "machine.gpu is 1, but no node of partition 'main' has a GPU",
        ),
    ],
)
def test_what_is_not_there_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: tuple[str | None, str | None, int],
    said: str,
) -> None:
    slurm(tmp_path, monkeypatch, sacctmgr="printf 'physics\\nbio\\n'")
    with pytest.raises(BenchError) as caught:
        check_slurm(*asked)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_no_default_partition_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(tmp_path, monkeypatch, sinfo="printf 'main|(null)\\n'", sacctmgr=NO_DATABASE)
    with pytest.raises(
        BenchError,
        match="slurm_partition is empty and Slurm has no default: choose of main",
    ):
        check_slurm("", None)


def test_a_controller_that_is_down_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = "slurm_load_partitions: Unable to contact slurm controller (connect failure)"
    slurm(
        tmp_path, monkeypatch, sinfo=f"echo '{down}' >&2; exit 1", sacctmgr=NO_DATABASE
    )
    with pytest.raises(BenchError, match=r"Slurm does not answer: .*connect failure"):
        check_slurm(None, None)
