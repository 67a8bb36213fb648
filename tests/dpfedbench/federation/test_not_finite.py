"""A training that leaves the range of numbers stops, and says so in one line."""

import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.parts.client_updates import maml
from dpfedbench.parts.server.server_step import Step

from .conftest import LOTS, PLAIN, make_config, train

ONE_ROUND = {"participation": {"rounds": 1}}


def refusal(config, folders, run_dir):
    with pytest.raises(BenchError) as caught:
        train(config, folders, run_dir)
    assert not (run_dir / "model.safetensors").exists()
    return str(caught.value)


def spoil(monkeypatch, rows):
    """From now on these rows of each chunk of gradients are NaN."""
    contributions = maml._Tasks.contributions

    def spoilt(self, *arguments):
        for gradients, losses, accuracies in contributions(self, *arguments):
            gradients[rows] = torch.nan
            yield gradients, losses, accuracies

    monkeypatch.setattr(maml._Tasks, "contributions", spoilt)


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_a_rate_that_is_too_high_stops_a_training_without_privacy(silos, tmp_path):
    update = {"inner_rate": 1e6, "inner_steps": 4, "optimizer": "sgd"}
    config = make_config({"method": "fedavg", "client_update": update}, general=LOTS)
    message = refusal(config, silos, tmp_path)
    assert "none of its contributions is finite: lower server.rate or" in message


def test_contributions_of_which_none_is_finite_stop_a_training_without_privacy(
    federation, tmp_path, monkeypatch
):
    """In a private one how many were finite is no release: it goes on."""
    spoil(monkeypatch, slice(None))
    message = refusal(make_config(PLAIN), federation, tmp_path / "plain")
    assert message.startswith("training stops in round 1, since none of its contrib")
    train(make_config(ONE_ROUND), federation, tmp_path / "private")


@pytest.mark.parametrize("overlay", [{}, PLAIN])
def test_how_many_were_not_finite_is_logged_where_no_privacy_is_claimed(
    federation, tmp_path, monkeypatch, capsys, overlay
):
    """A log is a file beside the results, and the count is no release."""
    spoil(monkeypatch, 0)
    train(make_config(ONE_ROUND, overlay), federation, tmp_path)
    logged = "1 contributions were not finite" in capsys.readouterr().err
    assert logged == (overlay == PLAIN)


def test_a_private_training_stops_by_its_model(federation, tmp_path, monkeypatch):
    mean = Step.mean
    monkeypatch.setattr(Step, "mean", lambda *arguments: mean(*arguments) * torch.inf)
    message = refusal(make_config(ONE_ROUND), federation, tmp_path)
    assert message.startswith("training stops in round 1, since the model is no longer")
