"""Features that one job computes for all runs: same bits, and an identity of their own."""

import dataclasses
import functools

import numpy as np
import pytest

from dpfedbench.config.merge import merge
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.evaluation import features as features_module
from dpfedbench.evaluation.features import FEATURES, features_of, make_features
from dpfedbench.training import engine

from .conftest import LOTS, RESULT_FILES, make_config, train
from .test_linear_head import EVENED, HEAD

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
    records = [
        np.array([3]),
        np.arange(7, 60),
        np.array([1, 5, 90, 17]),
    ]
    run = head_config(KINDS[kind])
    monkeypatch.setattr(features_module, "_PIECE", 37)
    files = compute_features(run, silos, tmp_path)
    computed = features_of(run, dataset, records)
    for alone, shared in zip(
        computed, features_of(run, dataset, records, files), strict=True
    ):
        np.testing.assert_array_equal(alone, shared)
        assert alone.dtype == shared.dtype == np.float32


def features_folder(*overlays):
    return head_config(*overlays).features_folder


def test_features_folder_changes_with_the_features_alone(monkeypatch):
    """Features without evened directions do not depend on public records."""
    base = features_folder(EVENED)
    unrelated = (
        {"clipping": {"threshold": 0.1}},
        {"model": {"bias": True}},
        {"seed": 5},
        {"clients": {"fragments": 40}},
    )
    assert {features_folder(EVENED, overlay) for overlay in unrelated} == {base}
    related = (
        {"model": {"features": {"evened": 4}}},
        {"model": {"features": {"count": 61}}},
        {"validation": {"tasks": 21}},
        {"model": {"features": {"unit_length": False}}},
        {"dataset": "mnist"},
        KINDS["scattering"],
    )
    folders = {features_folder(EVENED, overlay) for overlay in related}
    assert len(folders) == len(related)
    assert base not in folders
    assert features_folder({"validation": {"tasks": 21}}) == features_folder()
    assert make_config(general=LOTS).features_folder is None
    monkeypatch.setattr(type(head_config().model.features), "version", "2")
    assert features_folder(EVENED) != base


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
