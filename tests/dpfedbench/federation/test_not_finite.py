"""A training that leaves the range of numbers stops, and says so in one line."""

import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.parts.client_updates import maml
from dpfedbench.parts.server.server_step import Step
from tests.dpfedbench.federation.conftest import LOTS, PLAIN, make_config, train

ONE_ROUND = {"participation": {"rounds": 1}}


def stops(config, places, folder):
    with pytest.raises(BenchError) as caught:
        train(config, places, folder)
    assert "\n" not in str(caught.value) and not (folder / "model.safetensors").exists()
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_a_rate_that_is_too_high_stops_a_training_without_privacy(silos, tmp_path):
    update = {"inner_rate": 1e6, "inner_steps": 4, "optimizer": "sgd"}
    said = stops(
        make_config({"method": "fedavg", "client_update": update}, general=LOTS),
        silos,
        tmp_path,
    )
    assert (
        "since none of its contributions is finite: lower server.rate or"
        " client_update.inner_rate" in said
    )


def test_contributions_of_which_none_is_finite_stop_a_training_without_privacy(
    federation, tmp_path, monkeypatch
):
    """Of a private one how many were finite is no release: it goes on, by the noise
    alone.
    """
    contributions = maml._Tasks.contributions

    def lost(self, *arguments):
        for gradients, losses, accuracies in contributions(self, *arguments):
            yield gradients * torch.nan, losses, accuracies

    monkeypatch.setattr(maml._Tasks, "contributions", lost)
    said = stops(make_config(PLAIN), federation, tmp_path / "plain")
    assert said.startswith(
        "training stops in round 1, since none of its contributions is finite: lower"
        " server.rate"
    )
    train(make_config(ONE_ROUND), federation, tmp_path / "private")


@pytest.mark.parametrize("overlay", [{}, PLAIN])
def test_how_many_were_not_finite_is_logged_where_no_privacy_is_claimed(
    federation, tmp_path, monkeypatch, capsys, overlay
):
    """A log is a file beside the results, and the count is no release."""
    contributions = maml._Tasks.contributions

    def lost(self, *arguments):
        for gradients, losses, accuracies in contributions(self, *arguments):
            gradients[0] = torch.nan
            yield gradients, losses, accuracies

    monkeypatch.setattr(maml._Tasks, "contributions", lost)
    train(make_config(ONE_ROUND, overlay), federation, tmp_path)
    said = (
        "warning: round 1: 1 contributions were not finite and counted as zero"
        in capsys.readouterr().err
    )
    assert said == (overlay == PLAIN)


def test_a_private_training_stops_by_its_model(federation, tmp_path, monkeypatch):
    mean = Step.mean
    monkeypatch.setattr(Step, "mean", lambda *arguments: mean(*arguments) * torch.inf)
    said = stops(make_config(ONE_ROUND), federation, tmp_path)
    assert said.startswith(
        "training stops in round 1, since the model is no longer finite: lower"
        " server.rate"
    )
