"""Interrupted trainings: stopped between rounds, or killed at random moments, they end
with the bits of an undisturbed training.
"""

import os
import random
import re
import signal
import time

import pytest

from dpfedbench.federation import engine

from .conftest import (
    DIFFERENCE,
    LOTS,
    PLAIN,
    forking,
    history_in,
    ledger_in,
    make_config,
    stop_before,
    train,
    training_in,
)
from .test_lots import DECAY, RAW, SCALAR, VECTOR
from .test_record_quantile import QUANTILE as RECORD_QUANTILE
from .test_search import SEARCH, cells
from .test_sizes import CLIENTS, unequal  # noqa: F401
from .test_within_task import AGRLR, LOCAL, PLAIN_REPTILE, REPTILE, SAMPLE

QUANTILE = {"clipping": {"kind": "private-quantile", "count_noise": 2.0}}
BY_LAYER = {"clipping": {"groups": "layers", "threshold": 0.5, "count_noise": 3.0}}
FOUR = {"participation": {"rounds": 4}, "validation": {"every": 0}}
SCAFFOLD = {"client_update": {"kind": "scaffold"}}
FORGETFUL = {"client_update": {"keep_state": False, "inner_steps": 2}}
TASKS = {
    "dp-agr": [],
    "dp-agr, sgd": [{"server": {"optimizer": "sgd"}}],
    "dp-agr, momentum": [{"server": {"optimizer": {"kind": "sgd", "momentum": 0.9}}}],
    "dp-agr, cosine": [
        {"server": {"schedule": {"kind": "cosine", "final_rate": 0.001}}}
    ],
    "dp-agr, quantile": [QUANTILE],
    "dp-agr, quantile by layer": [QUANTILE, BY_LAYER, FOUR],
    "maml": [PLAIN],
    "dp-agrlr": [AGRLR, FOUR],
    "dp-maml-sample": [SAMPLE, FOUR],
    "dp-reptile": [REPTILE, FOUR],
    "local-reptile": [LOCAL, FOUR],
    "reptile": [PLAIN_REPTILE, FOUR],
}
RECORDS = {
    "adap-dp-fl, norm of release": [VECTOR],
    "adap-dp-fl, norm query": [SCALAR, DECAY],
    "adap-dp-fl, raw norms": [RAW],
    "adap-dp-fl, quantile": [RECORD_QUANTILE, DECAY],
    "dp-fl, fresh optimisers": [FORGETFUL],
    "fedavg": [{"method": "fedavg"}],
}
DIFFERENCES = {
    "dp-fedavg": [],
    "dp-scaffold": [{"method": "dp-scaffold"}, SCAFFOLD],
    "fedavg, scaffold": [{"method": "fedavg"}, SCAFFOLD],
}
CASES = {
    **{name: ("federation", make_config(*each)) for name, each in TASKS.items()},
    **{
        name: ("silos", make_config(*each, general=LOTS))
        for name, each in RECORDS.items()
    },
    **{
        name: ("silos", make_config(*each, general=DIFFERENCE))
        for name, each in DIFFERENCES.items()
    },
    "dp-fl, unequal clients": (
        "unequal",
        make_config({"method": "dp-fl", "clients": CLIENTS}, general=LOTS),
    ),
    "dp-fnas": ("silos", make_config(SEARCH, general=LOTS)),
    "dp-cells": ("silos", cells()),
}


def tear(ledger):
    """Add a line of the next round and half a line, as a kill leaves them."""
    last = ledger.read_text().splitlines()[-1]
    index = int(re.search(r'"round": (\d+)', last)[1])
    following = last.replace(f'"round": {index}', f'"round": {index + 1}')
    with open(ledger, "a", encoding="utf-8") as file:
        file.write(following + '\n{"round": 9, "na')


@pytest.mark.parametrize("name", CASES)
def test_restart_keeps_bits_also_with_other_threads(
    name, request, tmp_path, monkeypatch
):
    """A private run's files have nothing that no noise protects."""
    fixture, config = CASES[name]
    folders = request.getfixturevalue(fixture)
    whole = train(config, folders, tmp_path / "whole")
    stop = 5 if config.participation.rounds > 6 else 2
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, stop)):
        train(config, folders, tmp_path / "resumed", checkpoint_seconds=0)
    if config.private:
        tear(tmp_path / "resumed" / "checkpoint" / "ledger.jsonl")
    assert train(config, folders, tmp_path / "resumed", threads=2) == whole
    assert training_in(tmp_path / "resumed")["resumed"] == 1

    history = history_in(tmp_path / "whole").drop(columns="seconds")
    assert history.equals(history_in(tmp_path / "resumed").drop(columns="seconds"))
    norms = [column for column in history if column.startswith("norm_")]
    if config.private:
        assert history["loss"].isna().all() and norms == []
    else:
        assert history["loss"].notna().all() and norms != []
    assert bool(ledger_in(tmp_path / "whole")) == config.private


def train_slowly(config, folders, run_dir):
    """Train with a checkpoint after every round, and rounds long enough to be killed
    in.
    """
    round_of = engine._Training._round

    def slow(self, index):
        time.sleep(0.06)
        return round_of(self, index)

    engine._Training._round = slow
    train(config, folders, run_dir, checkpoint_seconds=0.05)


def lock_time(run_dir):
    lock = run_dir / "checkpoint" / "lock"
    return lock.stat().st_mtime_ns if lock.exists() else 0


@pytest.mark.parametrize("name", ["dp-agr", "dp-fnas"])
def test_killed_at_random_moments_it_ends_with_the_same_bits(name, request, tmp_path):
    fixture, config = CASES[name]
    folders = request.getfixturevalue(fixture)
    config = config.replace(participation=config.participation.replace(rounds=12))
    whole = train(config, folders, tmp_path / "undisturbed")
    context = forking()
    moments = random.Random(1)
    run_dir = tmp_path / "killed"
    kills = 0
    for _ in range(60):
        before = lock_time(run_dir)
        process = context.Process(target=train_slowly, args=(config, folders, run_dir))
        process.start()
        # Kills count from the moment that the training holds its lock.
        deadline = time.monotonic() + 60
        while lock_time(run_dir) == before and time.monotonic() < deadline:
            time.sleep(0.005)
        if kills < 6:
            time.sleep(moments.uniform(0.0, 0.12))
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        process.join()
        if process.exitcode == 0:
            break
    assert process.exitcode == 0 and kills >= 5
    names = ("model.safetensors", "ledger.jsonl", "metrics.json")
    assert {name: (run_dir / name).read_bytes() for name in names} == whole
    assert not (run_dir / "checkpoint").exists()
    assert [path for path in run_dir.rglob("*") if ".part" in path.name] == []
