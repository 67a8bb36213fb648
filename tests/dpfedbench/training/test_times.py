"""Files of a run have no times where time would tell who took part."""

import itertools
import json

import numpy as np
import pytest

from dpfedbench.training import engine
from workflow_jobs import jobs

from .conftest import PLAIN, lots_config, make_config, stop_before, train

BALLS_AND_BINS = {"participation": {"kind": "balls-and-bins"}}
POISSON = {"participation": {"kind": "poisson"}}
SAMPLED = {"client_update": {"inner_steps": 3, "batches": "poisson"}}
SECURE_SUM = {"method": "dp-agr-secagg", "noise": {"multiplier": 2.0}}
SECRET = {
    "balls-and-bins": make_config(BALLS_AND_BINS),
    "poisson": make_config(POISSON),
    "lots": lots_config({"validation": {"every": 4}}),
    "sampled examples": make_config({"method": "dp-reptile"}, SAMPLED),
    # The cohort is public, but how often each client draws its rounding is not.
    "secure sum": make_config(SECURE_SUM),
}
PUBLIC = {"one pass": make_config(), "no privacy": make_config(PLAIN, POISSON)}
FILES = ("history.csv", "training.json", "ledger.jsonl")


def files_of(run, folders, run_dir, monkeypatch, capsys, *, seed):
    """Return all files and messages of a run that is stopped once, by a random clock."""
    paces = np.random.default_rng(seed).uniform(0.1, 9.0, 100_000)
    clock = itertools.accumulate(paces.tolist())
    with monkeypatch.context() as patch:
        patch.setattr(engine.time, "monotonic", lambda: next(clock))
        with patch.context() as stopped, pytest.raises(stop_before(stopped, 9)):
            train(run, folders, run_dir, checkpoint_seconds=0.01)
        train(run, folders, run_dir, checkpoint_seconds=0.01)
    assert not (run_dir / "checkpoint").exists()
    # The test reads the model alone, which was released.
    messages = [
        line
        for line in capsys.readouterr().err.splitlines()
        if not line.startswith("meta-test")
    ]
    files = {name: (run_dir / name).read_text() for name in FILES}
    return files | {"messages": "\n".join(messages)}


@pytest.mark.parametrize("name", [*SECRET, *PUBLIC])
def test_times_are_written_only_where_participation_is_public(
    federation, silos, tmp_path, monkeypatch, capsys, name
):
    """Two clocks, one run: where cohorts, lots or a client's draws are secret, all
    files are equal.
    """
    run = (SECRET | PUBLIC)[name]
    folders = silos if run.client_data == "records" else federation
    first = files_of(run, folders, tmp_path / "1", monkeypatch, capsys, seed=1)
    second = files_of(run, folders, tmp_path / "2", monkeypatch, capsys, seed=2)
    training = json.loads(first["training.json"])
    times = {key: training[key] for key in training if "second" in key}
    assert len(times) == 3
    if name in SECRET:
        assert first == second
        assert "/s," not in first["messages"]
        assert set(times.values()) == {None}
    else:
        assert first["history.csv"] != second["history.csv"]
        assert first["messages"] != second["messages"]
        assert first["ledger.jsonl"] == second["ledger.jsonl"]
        assert all(value > 0 for value in times.values())


def test_job_log_does_not_have_the_time_of_its_start(tmp_path, monkeypatch):
    """A training ends when the next job begins, and logs are files of the run."""
    logs = []
    for hour in (1, 2):
        time = f"2026-01-01 {hour:02}:00:00"
        monkeypatch.setattr(jobs.time, "strftime", lambda *_, time=time: time)
        with jobs.job(tmp_path / "train.log", "train"):
            pass
        logs.append((tmp_path / "train.log").read_text(encoding="utf-8"))
    assert logs[0] == logs[1] == "---- train\n"
