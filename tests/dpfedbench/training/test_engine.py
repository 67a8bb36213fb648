"""The training loop: what it releases, writes and reports."""

import io
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
from dpfedbench.training.client_updates import maml
from dpsum.private_sum import PrivateSum

from .conftest import (
    PLAIN,
    history_in,
    ledger_in,
    lots_config,
    make_config,
    remove_noise,
    train,
    training_in,
    watch_releases,
    watch_streams,
)

ONE_ROUND = {"participation": {"rounds": 1}}


@pytest.mark.parametrize(
    ("fixture", "private", "plain"),
    [
        ("federation", make_config(), make_config(PLAIN)),
        ("silos", lots_config({"method": "dp-fl"}), lots_config({"method": "fedavg"})),
    ],
)
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


def test_ledger_has_the_values_of_each_release(federation, tmp_path, monkeypatch):
    """Properties 2 and 6: no stream of noise is used twice."""
    releases = watch_releases(monkeypatch)
    streams = watch_streams(monkeypatch)
    train(make_config(), federation, tmp_path)
    ledger = ledger_in(tmp_path)
    assert [line.round for line in ledger] == list(range(12))
    for line, (total, _) in zip(ledger, releases, strict=True):
        assert line.noise_multiplier == total.noise_multiplier
        assert line.threshold == line.sensitivity == total.threshold
        assert line.noise_std == total.noise_multiplier * total.threshold
        assert line.sampler["cohort"] == 4
        assert line.denominator == total.count == 4
    assert len({line.threshold for line in ledger}) > 1  # the clipping rule moved it
    noises = ["/".join(map(str, name)) for name in streams if name[1] == "noise"]
    assert noises == [line.noise_stream for line in ledger]
    assert len(set(noises)) == 12


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
    train(config, federation, tmp_path)
    history = history_in(tmp_path).set_index("round")["validation_accuracy"].dropna()
    assert history.to_dict() == {5: 40.0, 10: 70.0, 11: 55.0}
    assert training_in(tmp_path)["members"] == [
        {"round": 10, "accuracy": 0.7},
        {"round": 11, "accuracy": 0.55},
    ]
    members = load_members(tmp_path / "model.safetensors", config.net((16, 16, 1), 6))
    assert np.array_equal(members, models[1:])


# Contributions and models that are not finite


def spoil(monkeypatch, rows, value=math.nan):
    """Make some rows of each chunk of contributions not finite."""
    contributions = maml._Tasks.contributions

    def spoilt(self, *arguments):
        for gradients, losses in contributions(self, *arguments):
            gradients[rows, 0] = value
            yield gradients, losses

    monkeypatch.setattr(maml._Tasks, "contributions", spoilt)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_not_finite_contributions_count_as_zero_and_are_reported(
    federation, tmp_path, monkeypatch, capsys, value
):
    """Property 15. The count is no release: a private run prints it on a terminal, and
    writes it to no log.
    """
    spoil(monkeypatch, slice(0, 2), value)
    monkeypatch.setattr(sys, "__stderr__", Terminal())
    train(make_config(ONE_ROUND), federation, tmp_path)
    assert "2 contributions were not finite" in sys.__stderr__.getvalue()
    assert "finite" not in capsys.readouterr().err
    tensors = load_file(tmp_path / "model.safetensors").values()
    assert all(np.isfinite(tensor).all() for tensor in tensors)
    assert len(ledger_in(tmp_path)) == 1


def test_not_finite_contributions_are_logged_without_privacy(
    federation, tmp_path, monkeypatch, capsys
):
    spoil(monkeypatch, 0)
    train(make_config(ONE_ROUND, PLAIN), federation, tmp_path)
    assert "1 contributions were not finite" in capsys.readouterr().err


def training_error(config, folders, run_dir):
    with pytest.raises(BenchError) as caught:
        train(config, folders, run_dir)
    assert not (run_dir / "model.safetensors").exists()
    return str(caught.value)


def test_plain_training_stops_where_no_contribution_is_finite(
    federation, tmp_path, monkeypatch
):
    """A private training goes on, since the count is no release."""
    spoil(monkeypatch, slice(None))
    message = training_error(make_config(PLAIN), federation, tmp_path / "plain")
    assert message.startswith("training stops in round 1, since none of its contrib")
    train(make_config(ONE_ROUND), federation, tmp_path / "private")


def test_private_training_stops_where_the_model_is_not_finite(
    federation, tmp_path, monkeypatch
):
    mean = Step.mean
    monkeypatch.setattr(Step, "mean", lambda *arguments: mean(*arguments) * torch.inf)
    message = training_error(make_config(ONE_ROUND), federation, tmp_path)
    assert message.startswith("training stops in round 1, since the model is no longer")
