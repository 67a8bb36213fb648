"""A linear head on fixed features trains with privacy like any model."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfedbench.data.holdings import Records
from dpfedbench.data.records import load_records
from dpfedbench.evaluation.held_out import held_out
from dpfedbench.parts.optimizers.optimizer import Sgd
from dpsum.randomness import stream

from .conftest import ledger_in, lots_config, proven, rounds_of, train, training_in

HEAD = {
    "method": "dp-fl",
    "model": {"kind": "linear", "features": {"kind": "random", "count": 60}},
    "client_update": {
        "optimizer": "sgd",
        "inner_rate": 20.0,
        "schedule": {"kind": "cosine", "final_rate": 10.0},
    },
    "clipping": {"threshold": 0.5},
    "noise": {"multiplier": 0.5},
    "participation": {"cohort": 20, "rounds": 20},
}
EVENED = {"model": {"bias": False, "features": {"evened": 5}}}


def test_linear_head_learns_under_the_account_of_its_lots(silos, tmp_path):
    """Features are no release: the proven epsilon is that of the same lots and noise
    with any model.
    """
    run = lots_config(HEAD)
    train(run, silos, tmp_path)
    assert training_in(tmp_path)["gradients"] == "linear-head"
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["accuracy"] > 30  # of ten classes
    network = lots_config(HEAD | {"model": {"kind": "cnn"}})
    train(network, silos, tmp_path / "cnn")
    epsilon = proven(run, tmp_path)["epsilon_high"]
    assert epsilon == proven(network, tmp_path / "cnn")["epsilon_high"] < 60


def test_linear_head_has_the_same_bits_with_other_threads_and_is_close_to_torch(
    silos, tmp_path
):
    run = lots_config(HEAD, {"participation": {"rounds": 3}})
    models = []
    for options in ({}, {"threads": 2}, {"kernels": False}):
        folder = tmp_path / str(len(models))
        train(run, silos, folder, **options)
        models.append(load_file(folder / "model.safetensors"))
    first, threads, torch = models
    for name, tensor in first.items():
        np.testing.assert_array_equal(tensor, threads[name])
        np.testing.assert_allclose(tensor, torch[name], rtol=1e-3, atol=1e-3)


def test_rate_of_local_steps_follows_its_schedule(silos, tmp_path, monkeypatch):
    """Half a cosine from 20 to 10: 15 + 5 cos(pi t / 4), for each of four clients."""
    rates = []
    step = Sgd.step

    def watched(self, weights, gradient, state, rate):
        rates.append(rate)
        return step(self, weights, gradient, state, rate)

    monkeypatch.setattr(Sgd, "step", watched)
    train(lots_config(HEAD, {"participation": {"rounds": 4}}), silos, tmp_path)
    expected = [20.0, 15 + 5 * 0.5**0.5, 15.0, 15 - 5 * 0.5**0.5]
    assert rates == pytest.approx(np.repeat(expected, 4))


def test_evened_features_follow_from_the_public_records_alone(silos, tmp_path):
    """Features of clients and of the test follow from their images and the public
    records. They cost no epsilon.
    """
    run = lots_config(HEAD, EVENED)
    dataset = load_records(silos[0])
    rounds = rounds_of(run, silos, tmp_path / "rounds")
    test_split = dataset.splits["test"]
    order = test_split[stream(0, "public-validation").permutation(len(test_split))]
    validation = np.sort(order[: run.validation.tasks])
    public = np.asarray(dataset.images[validation])
    for features, images in zip(
        rounds.clients._held.images, Records(*silos).images, strict=True
    ):
        np.testing.assert_array_equal(features, run.model.features(images, public))
    features, _ = held_out(run, dataset).test
    test_images = np.asarray(dataset.images[np.sort(order[run.validation.tasks :])])
    np.testing.assert_array_equal(features, run.model.features(test_images, public))
    assert rounds.net.dimension == 60 * 10
    assert any("evened by 20 public records" in notice for notice in run.notices)
    train(run, silos, tmp_path / "evened")
    train(lots_config(HEAD), silos, tmp_path / "plain")
    lines = len(ledger_in(tmp_path / "evened"))
    assert lines == len(ledger_in(tmp_path / "plain")) > 0
