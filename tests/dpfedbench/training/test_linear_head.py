"""A linear head on fixed features trains with privacy like any model."""

import dataclasses
import functools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfedbench.config.merge import merge
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.evaluation import features as features_module
from dpfedbench.evaluation.features import FEATURES, features_of, make_features
from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.training import engine

from .conftest import (
    LOTS,
    RESULT_FILES,
    lots_config,
    make_config,
    proven,
    train,
    training_in,
)

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


# Features that one job computes for all runs

SCATTERING = {"features": {"kind": "scattering", "angles": 2, "groups": 3}}
head_config = functools.partial(make_config, general=merge(LOTS, HEAD))
"""Run with a linear head; overlays may name another kind of features."""

KINDS = {"random": {}, "scattering": {"model": SCATTERING}, "evened": EVENED}


def compute_features(run, silos, folder):
    make_features(run, data_dir=silos[0], out_dir=folder)
    return {name: folder / name for name in (FEATURES, "features.json")}


@pytest.mark.parametrize("kind", KINDS)
def test_shared_features_give_the_bits_of_a_run_alone(
    kind, silos, tmp_path, monkeypatch
):
    """The run reads the file and computes no feature."""
    run = head_config(KINDS[kind], {"participation": {"rounds": 3}})
    alone = train(run, silos, tmp_path / "alone")
    files = compute_features(run, silos, tmp_path / "features")
    monkeypatch.setattr(type(run.model), "prepared", None)
    with pytest.raises(TypeError):
        train(run, silos, tmp_path / "none")
    run_dir = tmp_path / "shared"
    folders = {"data_dir": silos[0], "clients_dir": silos[1], "run_dir": run_dir}
    engine.train(run, references=files, **folders)
    evaluate(
        run,
        data_dir=silos[0],
        model_path=run_dir / "model.safetensors",
        out_path=run_dir / "metrics.json",
        references=files,
    )
    assert {name: (run_dir / name).read_bytes() for name in RESULT_FILES} == alone


@pytest.mark.parametrize("kind", KINDS)
def test_shared_features_do_not_depend_on_the_chunk(kind, silos, tmp_path, monkeypatch):
    dataset = load_records(silos[0])
    records = [np.array([3]), np.arange(7, 60), np.array([1, 5, 90, 17])]
    run = head_config(KINDS[kind])
    monkeypatch.setattr(features_module, "_PIECE", 37)
    files = compute_features(run, silos, tmp_path)
    computed = features_of(run, dataset, records)
    for alone, shared in zip(
        computed, features_of(run, dataset, records, files), strict=True
    ):
        np.testing.assert_array_equal(alone, shared)
        assert alone.dtype == shared.dtype == np.float32


def test_features_of_other_data_or_settings_and_damaged_ones_are_refused(
    silos, tmp_path
):
    run = head_config(EVENED)
    dataset = load_records(silos[0])
    files = compute_features(run, silos, tmp_path / "features")

    def check_refused(run, dataset, message):
        with pytest.raises(BenchError, match=message):
            features_of(run, dataset, [np.arange(3)], files)

    settings = head_config(EVENED, {"model": {"features": {"evened": 4}}})
    check_refused(settings, dataset, "was made from other data or settings")
    summary = dataset.summary | {"sha256": "0" * 64}
    changed = dataclasses.replace(dataset, summary=summary)
    check_refused(run, changed, "was made from other data or settings")
    data = bytearray(files[FEATURES].read_bytes())
    data[-5] ^= 1
    files[FEATURES].write_bytes(data)
    check_refused(run, dataset, r"features\.npy is damaged")
    files[FEATURES].unlink()
    check_refused(run, dataset, r"features\.npy is missing")
