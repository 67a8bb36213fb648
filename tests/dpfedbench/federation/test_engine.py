"""The training loop: what is released, written down and reported."""

import io
import math
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.few_shot import FewShotMeasures
from dpfedbench.federation import engine
from dpfedbench.models.members import load_members
from dpfedbench.parts.client_updates import maml
from dpfedbench.parts.server.server_step import Step
from dpsum import mechanism
from dpsum.private_sum import PrivateSum

from .conftest import (
    PLAIN,
    history_in,
    ledger_in,
    make_config,
    train,
    training_in,
    watch_releases,
    watch_streams,
)


def test_without_noise_and_clipping_it_is_the_plain_method(
    federation, tmp_path, monkeypatch
):
    """Property 5, bit for bit."""

    class Off(PrivateSum):
        _limit = math.inf

        def _noised(self, total, standard):
            return total

    plain = train(make_config(PLAIN), federation, tmp_path / "plain")
    monkeypatch.setattr(mechanism, "PrivateSum", Off)
    off = train(make_config(), federation, tmp_path / "off")
    assert plain["model.safetensors"] == off["model.safetensors"]


def test_the_ledger_says_what_was_done(federation, tmp_path, monkeypatch):
    """Properties 2 and 6: the ledger has the values of each mechanism that ran, and no
    stream of noise is used twice.
    """
    releases = watch_releases(monkeypatch)
    streams = watch_streams(monkeypatch)
    train(make_config(), federation, tmp_path)
    ledger = ledger_in(tmp_path)
    assert [line.round for line in ledger] == list(range(12))
    assert len(releases) == 12
    for line, (done, _) in zip(ledger, releases, strict=True):
        assert line.noise_multiplier == done.noise_multiplier
        assert line.threshold == line.sensitivity == done.threshold
        assert line.noise_std == done.noise_multiplier * done.threshold
        assert line.sampler["cohort"] == line.denominator == done.count == 4
    thresholds = {line.threshold for line in ledger}
    assert len(thresholds) > 1  # the rule moved it, and the ledger followed
    noises = ["/".join(map(str, name)) for name in streams if name[1] == "noise"]
    assert noises == [line.noise_stream for line in ledger]
    assert len(set(noises)) == 12


def test_the_step_is_the_release_over_the_public_denominator(
    federation, tmp_path, monkeypatch
):
    """Property 8: Poisson cohorts differ in size, the denominator does not, and an
    empty cohort releases noise.
    """
    releases = watch_releases(monkeypatch)
    means = []
    step = Step.step

    def watched(self, theta, mean, *args, **named):
        means.append(mean.clone())
        return step(self, theta, mean, *args, **named)

    monkeypatch.setattr(Step, "step", watched)
    plan = {"participation": {"kind": "poisson", "cohort": 2, "rounds": 12}}
    train(make_config(plan), federation, tmp_path)
    counts = [done.count for done, _ in releases]
    assert 0 in counts and max(counts) > 1
    for (_, released), mean in zip(releases, means, strict=True):
        assert np.array_equal(mean, released / 2.0)
        assert np.abs(released).min() > 0


def test_models_are_kept_by_validation_every_so_many_rounds_and_after_the_last(
    federation, tmp_path, monkeypatch
):
    """Of accuracies 40, 70 and 55 in rounds 5, 10 and 11 the two best are kept, the best
    first.
    """
    accuracies = iter((40.0, 70.0, 55.0))
    models = []

    def validate(self, theta):
        models.append(theta.copy())
        return {"validation_accuracy": next(accuracies), "validation_loss": 1.0}

    monkeypatch.setattr(FewShotMeasures, "validate", validate)
    config = make_config({"validation": {"every": 5}, "participation": {"rounds": 11}})
    train(config, federation, tmp_path)
    history = history_in(tmp_path).set_index("round")["validation_accuracy"].dropna()
    assert history.to_dict() == {5: 40.0, 10: 70.0, 11: 55.0}
    assert training_in(tmp_path)["members"] == [
        {"round": 10, "accuracy": 0.7},
        {"round": 11, "accuracy": 0.55},
    ]
    members = load_members(tmp_path / "model.safetensors", config.net((16, 16, 1), 6))
    assert np.array_equal(members, models[1:])


def test_not_finite_contributions_count_as_zero_and_are_reported(
    federation, tmp_path, monkeypatch, capsys
):
    """Property 15: on a terminal, and in no log."""
    contributions = maml._Tasks.contributions

    def poisoned(self, *args):
        for gradients, losses, accuracies in contributions(self, *args):
            gradients[0, 0] = float("nan")
            gradients[1, 0] = float("inf")
            yield gradients, losses, accuracies

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(maml._Tasks, "contributions", poisoned)
    monkeypatch.setattr(sys, "__stderr__", Terminal())
    train(make_config({"participation": {"rounds": 1}}), federation, tmp_path)
    assert "2 contributions were not finite" in sys.__stderr__.getvalue()
    assert "finite" not in capsys.readouterr().err
    tensors = load_file(tmp_path / "model.safetensors").values()
    assert all(np.isfinite(tensor).all() for tensor in tensors)
    assert len(ledger_in(tmp_path)) == 1


def test_a_missing_gpu_is_named_and_nothing_is_written(
    federation, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    data, clients = federation
    folders = {"data_dir": data, "clients_dir": clients, "run_dir": tmp_path / "run"}
    with pytest.raises(BenchError, match=r"device is cuda, but torch finds no GPU"):
        engine.train(make_config(), device="cuda", **folders)
    assert not (tmp_path / "run").exists()


def test_random_initialisation_trains_nothing(federation, tmp_path):
    files = train(make_config({"method": "random"}), federation, tmp_path)
    assert files["ledger.jsonl"] == b"" and len(history_in(tmp_path)) == 0
