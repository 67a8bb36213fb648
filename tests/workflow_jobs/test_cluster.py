"""Checks before a submission to Slurm; scripts print the answers of Slurm 22.05."""

import os

import pytest

from dpfedbench.errors import BenchError
from workflow_jobs.cluster import check_slurm

NODES = "printf 'main*|(null)\\nfast|gpu:a100:2(S:0)\\n'"
NO_DEFAULT = "printf 'main|(null)\\n'"
ACCOUNTS = "printf 'physics\\nphysics\\nbio\\n'"
NO_DATABASE = "echo 'not running a supported accounting_storage plugin' >&2; exit 1"
DOWN = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put commands with the given answers first on the path."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def make_commands(sinfo=NODES, sacctmgr=ACCOUNTS):
        for name, body in (("sinfo", sinfo), ("sacctmgr", sacctmgr)):
            command = tmp_path / name
            command.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
            command.chmod(0o755)

    return make_commands


def test_check_slurm_accepts_partitions_accounts_and_gpus(slurm):
    """Without Slurm's database the check leaves any account to Slurm."""
    slurm()
    check_slurm(None, None)
    check_slurm("main", "Physics")
    check_slurm("fast", "bio,physics", 1)
    slurm(sacctmgr=NO_DATABASE)
    check_slurm("main", "anything")


@pytest.mark.parametrize(
    ("answers", "arguments", "message"),
    [
        ({}, ("nowhere", None), "no partition 'nowhere', only main, fast"),
        ({}, (None, "maths"), "you have no account 'maths', only bio, physics"),
        ({}, (None, None, 1), "no node of partition 'main' has a GPU"),
        ({"sinfo": NO_DEFAULT}, ("", None), "slurm_partition is empty"),
        ({"sinfo": DOWN}, (None, None), "Slurm does not answer: .*connect failure"),
    ],
)
def test_check_slurm_refuses_what_is_not_there(slurm, answers, arguments, message):
    slurm(**answers)
    with pytest.raises(BenchError, match=message):
        check_slurm(*arguments)
