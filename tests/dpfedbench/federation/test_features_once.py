"""Features that one job computes for all runs: same bits as computed anew, and others
where data or settings change.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.evaluation import features as once
from dpfedbench.evaluation.features import FEATURES, features_of, make_features

from .conftest import LOTS, make_config, train
from .test_linear_head import EVENED, HEAD

KINDS = {
    "random": {},
    "scattering": {
        "model": {"features": {"kind": "scattering", "angles": 2, "groups": 3}}
    },
    "evened": EVENED,
}
SHORT = {"participation": {"rounds": 3}}


def made(run, silos, folder):
    make_features(run, data_dir=silos[0], out_dir=folder)
    return {name: folder / name for name in (FEATURES, "features.json")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_has_the_same_bits(kind, silos, tmp_path, monkeypatch):
    """Of the model, the ledger and the test; and nothing is computed anew where the
    file is given.
    """
    run = make_config(HEAD, KINDS[kind], SHORT, general=LOTS)
    anew = train(run, silos, tmp_path / "anew")
    files = made(run, silos, tmp_path / "features")
    monkeypatch.setattr(type(run.model), "prepared", None)
    with pytest.raises(TypeError):
        train(run, silos, tmp_path / "none")
    from dpfedbench.federation import engine

    engine.train(
        run,
        data_dir=silos[0],
        clients_dir=silos[1],
        run_dir=tmp_path / "once",
        references=files,
    )
    place = tmp_path / "once"
    evaluate(
        run,
        data_dir=silos[0],
        model_path=place / "model.safetensors",
        out_path=place / "metrics.json",
        references=files,
    )
    assert {name: (place / name).read_bytes() for name in anew} == anew


@pytest.mark.parametrize("piece", [37, 1024])
def test_how_many_are_computed_together_changes_no_bit(
    piece, silos, tmp_path, monkeypatch
):
    dataset = load_records(silos[0])
    places = [np.array([3]), np.arange(7, 60), np.array([1, 5, 90, 17])]
    for kind, overlay in KINDS.items():
        run = make_config(HEAD, overlay, general=LOTS)
        monkeypatch.setattr(once, "_PIECE", piece)
        files = made(run, silos, tmp_path / kind)
        for own, read in zip(
            features_of(run, dataset, places),
            features_of(run, dataset, places, files),
            strict=True,
        ):
            np.testing.assert_array_equal(own, read, err_msg=kind)
            assert own.dtype == read.dtype == np.float32


def test_what_changes_the_features_has_another_folder_and_nothing_else_has():
    """By the key of the folder, which the workflow's job is for."""
    base = make_config(HEAD, EVENED, general=LOTS)
    same = (
        {"clipping": {"threshold": 0.1}},
        {"model": {"bias": True}},
        {"seed": 5},
        {"validation": {"every": 2}},
        {"clients": {"fragments": 40}},
        SHORT,
    )
    for overlay in same:
        assert (
            make_config(HEAD, EVENED, overlay, general=LOTS).features_folder
            == base.features_folder
        ), overlay
    others = (
        {"model": {"features": {"evened": 4}}},
        {"model": {"features": {"count": 61}}},
        {"validation": {"tasks": 21}},
        {"model": {"features": {"unit_length": False}}},
        {"dataset": "mnist"},
        KINDS["scattering"],
    )
    folders = {
        make_config(HEAD, EVENED, overlay, general=LOTS).features_folder
        for overlay in others
    }
    assert len(folders) == len(others) and base.features_folder not in folders
    # Without evened directions the public records are not read.
    plain = [
        make_config(
            HEAD, {"validation": {"tasks": tasks}}, general=LOTS
        ).features_folder
        for tasks in (20, 21)
    ]
    assert plain[0] == plain[1]
    assert make_config(general=LOTS).features_folder is None


def test_a_higher_version_of_the_map_has_another_folder(monkeypatch):
    run = make_config(HEAD, general=LOTS)
    before = run.features_folder
    monkeypatch.setattr(type(run.model.features), "version", "2")
    assert make_config(HEAD, general=LOTS).features_folder != before


def test_features_of_other_data_or_settings_and_damaged_ones_are_refused(
    silos, tmp_path
):
    run, dataset = make_config(HEAD, EVENED, general=LOTS), load_records(silos[0])
    files, places = made(run, silos, tmp_path / "features"), [np.arange(3)]
    other = make_config(
        HEAD, EVENED, {"model": {"features": {"evened": 4}}}, general=LOTS
    )
    with pytest.raises(
        BenchError,
        match=(
            r"features\.npy was made of other data or settings than this run's: make it"
        ),
    ):
        features_of(other, dataset, places, files)
    changed = dataclasses.replace(
        dataset, summary=dataset.summary | {"sha256": "0" * 64}
    )
    with pytest.raises(BenchError, match="was made of other data or settings"):
        features_of(run, changed, places, files)
    data = bytearray(files[FEATURES].read_bytes())
    data[-5] ^= 1
    files[FEATURES].write_bytes(data)
    with pytest.raises(BenchError, match=r"features\.npy is damaged"):
        features_of(run, dataset, places, files)
    files[FEATURES].unlink()
    with pytest.raises(BenchError, match=r"features\.npy is missing"):
        features_of(run, dataset, places, files)


def test_a_changed_image_makes_other_features(silos, tmp_path):
    """A job that is killed leaves no file that is taken for whole; made again of a
    changed pixel, one row differs.
    """
    run = make_config(HEAD, general=LOTS)
    first = np.load(made(run, silos, tmp_path / "one")[FEATURES])
    data = Path(shutil.copytree(silos[0], tmp_path / "data"))
    images = np.load(data / "images.npy")
    images[4] = 255 - images[4]
    np.save(data / "images.npy", images)
    with pytest.raises(BenchError, match="is damaged"):
        make_features(run, data_dir=data, out_dir=tmp_path / "two")
    assert not (tmp_path / "two").exists()
    summary = json.loads((data / "summary.json").read_text())
    from dpfedbench.files import sha256

    (data / "summary.json").write_text(
        json.dumps(summary | {"sha256": sha256(data / "images.npy")})
    )
    second = np.load(made(run, (data, None), tmp_path / "two")[FEATURES])
    assert np.flatnonzero((first != second).any(axis=(1, 2, 3))).tolist() == [4]
    said = [
        json.loads((tmp_path / name / "features.json").read_text())["images"]
        for name in ("one", "two")
    ]
    assert said[0] != said[1]
