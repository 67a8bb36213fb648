"""What the files of a run say of time: nothing, where time would tell who took part."""

import itertools
import json

import numpy as np
import pytest

from dpfedbench.federation import engine
from workflow_jobs import jobs

from .conftest import LOTS, PLAIN, make_config, stop_before, train

SECRET = {
    "balls-and-bins": make_config({"participation": {"kind": "balls-and-bins"}}),
    "Poisson": make_config({"participation": {"kind": "poisson"}}),
    "lots": make_config({"validation": {"every": 4}}, general=LOTS),
    "sampled examples": make_config(
        {
            "method": "dp-reptile",
            "client_update": {"inner_steps": 3, "batches": "poisson"},
        }
    ),
    # Who takes part is public, but how often each of them draws its rounding is not.
    "secure sum": make_config(
        {"method": "dp-agr-secagg", "noise": {"multiplier": 2.0}}
    ),
}
PUBLIC = {
    "one pass": make_config(),
    "no privacy": make_config(PLAIN, {"participation": {"kind": "poisson"}}),
}
FILES = ("history.csv", "training.json", "ledger.jsonl")


def files_of(run, places, folder, monkeypatch, capsys, *, seed):
    """All that is written, and what is said, of a run that is stopped once and whose
    time goes by as it likes.
    """
    paces = np.random.default_rng(seed).uniform(0.1, 9.0, 100_000)
    clock = itertools.accumulate(paces.tolist())
    with monkeypatch.context() as patch:
        patch.setattr(engine.time, "monotonic", lambda: next(clock))
        with patch.context() as stopped, pytest.raises(stop_before(stopped, 9)):
            train(run, places, folder, checkpoint_seconds=0.01)
        train(run, places, folder, checkpoint_seconds=0.01)
    assert not (folder / "checkpoint").exists()
    # The test reads the model alone, which was released.
    said = [
        line
        for line in capsys.readouterr().err.splitlines()
        if not line.startswith("meta-test")
    ]
    return {name: (folder / name).read_text() for name in FILES} | {
        "said": "\n".join(said)
    }


@pytest.mark.parametrize("name", [*SECRET, *PUBLIC])
def test_files_tell_time_only_where_everybody_knows_who_takes_part(
    federation, silos, tmp_path, monkeypatch, capsys, name
):
    """Two clocks, one run: where cohorts, lots or a client's own draws are secret
    nothing that is kept differs.
    """
    run = (SECRET | PUBLIC)[name]
    places = silos if run.client_data == "records" else federation
    one, other = (
        files_of(run, places, tmp_path / str(seed), monkeypatch, capsys, seed=seed)
        for seed in (1, 2)
    )
    training = json.loads(one["training.json"])
    timed = {key: training[key] for key in training if "second" in key}
    assert len(timed) == 3
    if name in SECRET:
        assert (
            one == other and "/s," not in one["said"] and set(timed.values()) == {None}
        )
    else:
        assert one["history.csv"] != other["history.csv"] and all(
            value > 0 for value in timed.values()
        )
        assert (
            one["said"] != other["said"]
            and one["ledger.jsonl"] == other["ledger.jsonl"]
        )


def test_a_log_does_not_say_when_its_job_began(tmp_path, monkeypatch):
    """A training's ends when the next job's begins, and logs are files of the run."""
    said = []
    for hour in (1, 2):
        monkeypatch.setattr(
            jobs.time,
            "strftime",
            lambda *given, hour=hour: f"2026-01-01 {hour:02}:00:00",
        )
        with jobs.job(tmp_path / "train.log", "train"):
            pass
        said.append((tmp_path / "train.log").read_text(encoding="utf-8"))
    assert said[0] == said[1] == "---- train\n"
