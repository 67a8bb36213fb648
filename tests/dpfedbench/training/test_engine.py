"""The training loop: what it releases, writes and reports."""

import io
import itertools
import json
import math
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.few_shot import FewShotMeasures
from dpfedbench.models.members import load_members
from dpfedbench.parts.server.server_step import Step
from dpfedbench.training import engine
from dpfedbench.training.client_updates import maml
from dpsum.private_sum import PrivateSum
from workflow_jobs import jobs

from .conftest import (
    PLAIN,
    history_in,
    ledger_in,
    lots_config,
    make_config,
    remove_noise,
    stop_before,
    train,
    train_model,
    training_in,
)

ONE_ROUND = {"participation": {"rounds": 1}}


SAME_METHOD = [
    ("federation", make_config(), make_config(PLAIN)),
    ("silos", lots_config({"method": "dp-fl"}), lots_config({"method": "fedavg"})),
]


@pytest.mark.parametrize(("fixture", "private", "plain"), SAME_METHOD)
def test_private_training_without_noise_and_clipping_is_the_plain_method(
    fixture, private, plain, request, tmp_path, monkeypatch
):
    """Property 5, to the bit."""
    folders = request.getfixturevalue(fixture)
    expected = train(plain, folders, tmp_path / "plain")
    remove_noise(monkeypatch)
    monkeypatch.setattr(PrivateSum, "_limit", math.inf)
    off = train(private, folders, tmp_path / "off")
    assert off["model.safetensors"] == expected["model.safetensors"]


def test_best_models_of_the_validations_are_kept(federation, tmp_path, monkeypatch):
    """Accuracies are 40, 70 and 55 after rounds 5, 10 and 11. Two models are kept, the
    best first.
    """
    accuracies = iter((40.0, 70.0, 55.0))
    models = []

    def validate(self, theta):
        models.append(theta.copy())
        return {"validation_accuracy": next(accuracies), "validation_loss": 1.0}

    monkeypatch.setattr(FewShotMeasures, "validate", validate)
    config = make_config({"validation": {"every": 5}, "participation": {"rounds": 11}})
    train_model(config, federation, tmp_path)
    history = history_in(tmp_path).set_index("round")["validation_accuracy"].dropna()
    assert history.to_dict() == {5: 40.0, 10: 70.0, 11: 55.0}
    best = [{"round": 10, "accuracy": 0.7}, {"round": 11, "accuracy": 0.55}]
    assert training_in(tmp_path)["members"] == best
    members = load_members(
        tmp_path / "model.safetensors", config.trained_net((16, 16, 1), 6)
    )
    assert np.array_equal(members, models[1:])


def spoil(monkeypatch, rows, value=math.nan):
    """Make some rows of each chunk of contributions not finite."""
    contributions = maml.WholeTasks.contributions

    def spoilt(self, *arguments):
        for gradients, losses in contributions(self, *arguments):
            gradients[rows, 0] = value
            yield gradients, losses

    monkeypatch.setattr(maml.WholeTasks, "contributions", spoilt)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("overlay", "place"), [({}, "terminal"), (PLAIN, "log")])
def test_not_finite_contributions_count_as_zero_and_are_reported(
    federation, tmp_path, monkeypatch, capsys, value, overlay, place
):
    """Property 15. The count is no release: a private run prints it on a terminal, and
    writes it to no log.
    """
    spoil(monkeypatch, slice(0, 2), value)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "__stderr__", terminal)
    run = make_config(ONE_ROUND, overlay)
    train_model(run, federation, tmp_path)
    texts = {"terminal": terminal.getvalue(), "log": capsys.readouterr().err}
    assert "2 contributions were not finite" in texts.pop(place)
    assert "finite" not in "".join(texts.values())
    tensors = load_file(tmp_path / "model.safetensors").values()
    assert all(np.isfinite(tensor).all() for tensor in tensors)
    assert len(ledger_in(tmp_path)) == run.private


def test_training_stops_where_the_model_or_all_plain_contributions_are_not_finite(
    federation, tmp_path, monkeypatch
):
    """A private training goes on without contributions, since their count is no
    release.
    """
    private = make_config(ONE_ROUND)
    with monkeypatch.context() as patch:
        spoil(patch, slice(None))
        with pytest.raises(BenchError, match="in round 1, since none of its contrib"):
            train_model(make_config(PLAIN), federation, tmp_path / "plain")
        train_model(private, federation, tmp_path / "private")
    mean = Step.mean
    monkeypatch.setattr(Step, "mean", lambda *arguments: mean(*arguments) * torch.inf)
    with pytest.raises(BenchError, match="in round 1, since the model is no longer"):
        train_model(private, federation, tmp_path / "infinite")
    for name in ("plain", "infinite"):
        assert not (tmp_path / name / "model.safetensors").exists()


POISSON = {"participation": {"kind": "poisson"}}
SAMPLED = {"client_update": {"inner_steps": 3, "batches": "poisson"}}
SECRET = {
    "balls-and-bins": make_config({"participation": {"kind": "balls-and-bins"}}),
    "poisson": make_config(POISSON),
    "lots": lots_config({"validation": {"every": 4}}),
    "sampled examples": make_config({"method": "dp-reptile"}, SAMPLED),
}
PUBLIC = {"one pass": make_config(), "no privacy": make_config(PLAIN, POISSON)}


def files_of(run, folders, run_dir, monkeypatch, capsys, *, seed):
    """Return all files and messages of a run that is stopped once, by a random clock."""
    paces = np.random.default_rng(seed).uniform(0.1, 9.0, 100_000)
    clock = itertools.accumulate(paces.tolist())
    with monkeypatch.context() as patch:
        patch.setattr(engine.time, "monotonic", lambda: next(clock))
        with patch.context() as stopped, pytest.raises(stop_before(stopped, 9)):
            train_model(run, folders, run_dir, checkpoint_seconds=0.01)
        train_model(run, folders, run_dir, checkpoint_seconds=0.01)
    assert not (run_dir / "checkpoint").exists()
    names = ("history.csv", "training.json", "ledger.jsonl")
    files = {name: (run_dir / name).read_text() for name in names}
    return files | {"messages": capsys.readouterr().err}


@pytest.mark.parametrize("name", [*SECRET, *PUBLIC])
def test_times_are_written_only_where_participation_is_public(
    federation, silos, tmp_path, monkeypatch, capsys, name
):
    """Two clocks, one run: where cohorts, lots or a client's draws are secret, all
    files are equal, and say nothing of who took part.
    """
    run = (SECRET | PUBLIC)[name]
    folders = silos if run.client_data == "records" else federation
    check_times(run, folders, tmp_path, monkeypatch, capsys, secret=name in SECRET)


def check_times(run, folders, tmp_path, monkeypatch, capsys, *, secret):
    """Train a run by two clocks, and compare all files and messages."""
    first = files_of(run, folders, tmp_path / "1", monkeypatch, capsys, seed=1)
    second = files_of(run, folders, tmp_path / "2", monkeypatch, capsys, seed=2)
    training = json.loads(first["training.json"])
    times = {key: training[key] for key in training if "second" in key}
    assert len(times) == 3
    if secret:
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
    log = tmp_path / "train.log"
    for hour in (1, 2):
        time = f"2026-01-01 {hour:02}:00:00"
        monkeypatch.setattr(jobs.time, "strftime", lambda *_, time=time: time)
        with jobs.job(log, "train"):
            pass
        assert log.read_text(encoding="utf-8") == "---- train\n"
