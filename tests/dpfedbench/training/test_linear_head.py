"""A linear head on fixed features trains with privacy like any model."""

import dataclasses
import functools

import numpy as np
import pytest

from dpfedbench.config.merge import merge
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.features import FEATURES, features_of, make_features
from dpfedbench.parts.optimizers.optimizer import Sgd

from .conftest import LOTS, lots_config, make_config, train, watch

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
    "participation": {"lot": 20, "rounds": 20},
}
EVENED = {"model": {"bias": False, "features": {"evened": 5}}}


def test_rate_of_local_steps_follows_its_schedule(silos, tmp_path, monkeypatch):
    """Half a cosine from 20 to 10: 15 + 5 cos(pi t / 4), for each of four clients."""
    rates = watch(monkeypatch, Sgd, "step", lambda _, *arguments: arguments[-1])
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
    """The run reads the file, whatever its chunks were, and computes no feature."""
    run = head_config(KINDS[kind], {"participation": {"rounds": 3}})
    alone = train(run, silos, tmp_path / "alone")
    monkeypatch.setattr("dpfedbench.evaluation.features._PIECE", 37)
    files = compute_features(run, silos, tmp_path / "features")
    monkeypatch.setattr(type(run.model), "prepared", None)
    with pytest.raises(TypeError):
        train(run, silos, tmp_path / "none")
    assert train(run, silos, tmp_path / "shared", references=files) == alone


def test_features_of_other_data_or_settings_and_damaged_ones_are_refused(
    silos, tmp_path
):
    run = head_config(EVENED)
    dataset = load_records(silos[0])
    files = compute_features(run, silos, tmp_path / "features")
    settings = head_config(EVENED, {"model": {"features": {"evened": 4}}})
    summary = dataset.summary | {"sha256": "0" * 64}
    changed = dataclasses.replace(dataset, summary=summary)
    for other_run, other_dataset in ((settings, dataset), (run, changed)):
        with pytest.raises(BenchError, match="was made from other data or settings"):
            features_of(other_run, other_dataset, [np.arange(3)], files)
    data = bytearray(files[FEATURES].read_bytes())
    data[-5] ^= 1
    files[FEATURES].write_bytes(data)
    with pytest.raises(BenchError, match=r"features\.npy is damaged"):
        features_of(run, dataset, [np.arange(3)], files)
