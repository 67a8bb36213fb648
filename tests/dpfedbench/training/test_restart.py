"""Interrupted trainings end with the bits of an undisturbed training."""

import dataclasses
import random
import re
import time

import pytest

from dpfedbench.training import engine

from . import conftest
from .conftest import difference_config, lots_config, make_config, personal_in, train
from .test_batch_steps import CELLS as BATCH_STEPS
from .test_clipping_rules import RECORD_QUANTILE
from .test_cohort_clients import FEDREP
from .test_linear_head import HEAD
from .test_lots import DECAY, RAW, SCALAR, VECTOR
from .test_search import cells_config, search_config
from .test_shared_coordinates import OddFedAvg, config_of
from .test_within_task import AGRLR, LOCAL, PLAIN_REPTILE, REPTILE, SAMPLE

QUANTILE = {"clipping": {"kind": "private-quantile", "count_noise": 2.0}}
BY_LAYER = {"clipping": {"groups": "layers", "threshold": 0.5, "count_noise": 3.0}}
FOUR = {"participation": {"rounds": 4}, "validation": {"every": 0}}
POISSON = {"participation": {"kind": "poisson", "cohort": 2}}
EVERYONE = dataclasses.replace(FEDREP.participation, cohort=4)
MOMENTUM = {"server": {"optimizer": {"kind": "sgd", "momentum": 0.9}}}
COSINE = {"server": {"schedule": {"kind": "cosine", "final_rate": 0.001}}}
FORGETFUL = {"client_update": {"keep_state": False, "inner_steps": 2}}
FEDAVG = {"method": "fedavg"}
UNEQUAL_CLIENTS = {"method": "dp-fl", "clients": conftest.UNEQUAL}
SPENT_EARLY = {
    "budget": {"epsilon": 2.0, "profile": "proven"},
    "participation": {"rounds": 60},
}
SLOW_DECAY = {
    "noise": {"kind": "decaying", "multiplier": 1.4, "decay": 0.99, "falls": 3}
}
CASES = {
    "dp-agr": ("federation", make_config()),
    "dp-agr, sgd": ("federation", make_config({"server": {"optimizer": "sgd"}})),
    "dp-agr, momentum": ("federation", make_config(MOMENTUM)),
    "dp-agr, cosine": ("federation", make_config(COSINE)),
    "dp-agr, quantile": ("federation", make_config(QUANTILE)),
    "dp-agr, poisson": ("federation", make_config(QUANTILE, POISSON)),
    "dp-agr, quantile by layer": ("federation", make_config(QUANTILE, BY_LAYER, FOUR)),
    "maml": ("federation", make_config(conftest.PLAIN)),
    "dp-agrlr": ("federation", make_config(AGRLR, FOUR)),
    "dp-maml-sample": ("federation", make_config(SAMPLE, FOUR)),
    "dp-reptile": ("federation", make_config(REPTILE, FOUR)),
    "local-reptile": ("federation", make_config(LOCAL, FOUR)),
    "reptile": ("federation", make_config(PLAIN_REPTILE, FOUR)),
    "adap-dp-fl, norm of release": ("silos", lots_config(VECTOR)),
    "adap-dp-fl, norm query": ("silos", lots_config(SCALAR, DECAY)),
    "adap-dp-fl, raw norms": ("silos", lots_config(RAW)),
    "adap-dp-fl, quantile": ("silos", lots_config(RECORD_QUANTILE, DECAY)),
    "dp-fl, fresh optimisers": ("silos", lots_config({"method": "dp-fl"}, FORGETFUL)),
    "dp-fl, unequal clients": ("unequal", lots_config(UNEQUAL_CLIENTS)),
    "fedavg": ("silos", lots_config(FEDAVG)),
    "dp-fedavg": ("silos", difference_config()),
    "shared coordinates": ("silos", config_of(OddFedAvg)),
    "personal heads": ("silos", FEDREP.replace(participation=EVERYONE)),
    "linear head": ("silos", lots_config(HEAD)),
    # A budget that forgot what was spent would allow as many lots again.
    "budget, decaying": ("silos", lots_config(SLOW_DECAY, SPENT_EARLY)),
    "budget, released twice": ("silos", lots_config(SCALAR, SPENT_EARLY)),
    "dp-fnas": ("silos", search_config()),
    "cells, batch steps": ("silos", lots_config(BATCH_STEPS)),
    "dp-cells": ("silos", cells_config()),
}


def append_torn_lines(ledger):
    """Append a line of the next round and half a line, as a killed process leaves them."""
    last = ledger.read_text().splitlines()[-1]
    index = int(re.search(r'"index": (\d+)', last)[1])
    following = last.replace(f'"index": {index}', f'"index": {index + 1}')
    with open(ledger, "a", encoding="utf-8") as file:
        file.write(following + '\n{"round": 9, "na')


@pytest.mark.parametrize("name", CASES)
def test_restart_keeps_bits_also_with_other_threads(
    name, request, tmp_path, monkeypatch
):
    fixture, config = CASES[name]
    folders = request.getfixturevalue(fixture)
    check_restart(config, folders, tmp_path, monkeypatch)
    training = conftest.training_in(tmp_path / "resumed")
    assert (training["stopped_by"] == "budget") == name.startswith("budget")
    personal = personal_in(tmp_path / "whole")
    assert personal == personal_in(tmp_path / "resumed")
    assert bool(personal) == (name == "personal heads")


def check_restart(config, folders, tmp_path, monkeypatch):
    """Check that a run that is stopped and goes on with two threads keeps its bits.

    All numbers in a private run's files are protected by noise.
    """
    whole = train(config, folders, tmp_path / "whole")
    stop = 5 if config.participation.rounds > 6 else 2
    with (
        monkeypatch.context() as patch,
        pytest.raises(conftest.stop_before(patch, stop)),
    ):
        train(config, folders, tmp_path / "resumed", checkpoint_seconds=0)
    if config.private:
        append_torn_lines(tmp_path / "resumed" / "checkpoint" / "ledger.jsonl")
    assert train(config, folders, tmp_path / "resumed", threads=2) == whole
    assert conftest.training_in(tmp_path / "resumed")["resumed"] == 1
    history = conftest.history_in(tmp_path / "whole").drop(columns="seconds")
    assert history.equals(
        conftest.history_in(tmp_path / "resumed").drop(columns="seconds")
    )
    losses = history["loss"]
    assert losses.isna().all() if config.private else losses.notna().all()
    if config.private:
        assert not any(column.startswith("norm_") for column in history)
    assert bool(conftest.ledger_in(tmp_path / "whole")) == config.private


def slow_down(seconds):
    """Make the rounds of this process long enough for a kill."""
    take_round = engine._Training._round

    def slow(*args):
        time.sleep(seconds)
        return take_round(*args)

    engine._Training._round = slow


def train_slowly(*args):
    slow_down(0.06)
    train(*args, checkpoint_seconds=0.05)


def write_time(path):
    return path.stat().st_mtime_ns if path.exists() else 0


def wait_for_write(path, before, is_alive):
    """Wait until a file was written after the time `before`, or a process ended."""
    deadline = time.monotonic() + 120
    while write_time(path) == before and is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def with_rounds(config, rounds):
    participation = dataclasses.replace(config.participation, rounds=rounds)
    return config.replace(participation=participation)


# Faster: DP-FNAS.
@pytest.mark.parametrize(
    "name", [pytest.param("dp-agr", marks=pytest.mark.slow), "dp-fnas"]
)
def test_training_killed_at_random_moments_ends_with_the_same_bits(
    name, request, tmp_path
):
    fixture, config = CASES[name]
    folders = request.getfixturevalue(fixture)
    config = with_rounds(config, 12)
    whole = train(config, folders, tmp_path / "undisturbed")
    moments = random.Random(1)
    run_dir = tmp_path / "killed"
    lock = run_dir / "checkpoint" / "lock"
    kills = 0
    for _ in range(60):
        before = write_time(lock)
        process = conftest.forking().Process(
            target=train_slowly, args=(config, folders, run_dir)
        )
        process.start()
        # Kills count from the moment that the training holds its lock.
        wait_for_write(lock, before, process.is_alive)
        if kills < 6:
            time.sleep(moments.uniform(0.0, 0.12))
            if process.is_alive():
                process.kill()
                kills += 1
        process.join()
        if process.exitcode == 0:
            break
    assert process.exitcode == 0
    assert kills >= 5
    assert conftest.files_in(run_dir) == whole
    assert not (run_dir / "checkpoint").exists()
    assert [path for path in run_dir.rglob("*") if ".part" in path.name] == []
