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
from dpfedbench.federation import engine
from dpfedbench.files import sha256

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
    once_dir = tmp_path / "once"
    folders = {"data_dir": silos[0], "clients_dir": silos[1], "run_dir": once_dir}
    engine.train(run, references=files, **folders)
    evaluate(
        run,
        data_dir=silos[0],
        model_path=once_dir / "model.safetensors",
        out_path=once_dir / "metrics.json",
        references=files,
    )
    assert {name: (once_dir / name).read_bytes() for name in anew} == anew


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


def folder_of(*overlays):
    return make_config(HEAD, *overlays, general=LOTS).features_folder


SAME = (
    {"clipping": {"threshold": 0.1}},
    {"model": {"bias": True}},
    {"seed": 5},
    {"clients": {"fragments": 40}},
)
OTHERS = (
    {"model": {"features": {"evened": 4}}},
    {"model": {"features": {"count": 61}}},
    {"validation": {"tasks": 21}},
    {"model": {"features": {"unit_length": False}}},
    {"dataset": "mnist"},
    KINDS["scattering"],
)


def test_what_changes_the_features_has_another_folder_and_nothing_else_has(
    monkeypatch,
):
    """Without evened directions the public records are not read. A higher version of the
    map has another folder.
    """
    base = folder_of(EVENED)
    assert {folder_of(EVENED, overlay) for overlay in SAME} == {base}
    folders = {folder_of(EVENED, overlay) for overlay in OTHERS}
    assert len(folders) == len(OTHERS) and base not in folders
    assert folder_of({"validation": {"tasks": 21}}) == folder_of()
    assert make_config(general=LOTS).features_folder is None
    features = type(make_config(HEAD, general=LOTS).model.features)
    monkeypatch.setattr(features, "version", "2")
    assert folder_of(EVENED) != base


def test_features_of_other_data_or_settings_and_damaged_ones_are_refused(
    silos, tmp_path
):
    run = make_config(HEAD, EVENED, general=LOTS)
    dataset = load_records(silos[0])
    files = made(run, silos, tmp_path / "features")
    other = run.replace(
        model=run.model.replace(features=run.model.features.replace(evened=4))
    )
    summary = dataset.summary | {"sha256": "0" * 64}
    changed = dataclasses.replace(dataset, summary=summary)

    def refused(run, dataset, message):
        with pytest.raises(BenchError, match=message):
            features_of(run, dataset, [np.arange(3)], files)

    refused(other, dataset, "was made of other data or settings")
    refused(run, changed, "was made of other data or settings")
    data = bytearray(files[FEATURES].read_bytes())
    data[-5] ^= 1
    files[FEATURES].write_bytes(data)
    refused(run, dataset, r"features\.npy is damaged")
    files[FEATURES].unlink()
    refused(run, dataset, r"features\.npy is missing")


def test_a_changed_image_makes_other_features(silos, tmp_path):
    """Of a changed pixel one row differs, once the data set's checksum is its own."""
    run = make_config(HEAD, general=LOTS)
    first = np.load(made(run, silos, tmp_path / "first")[FEATURES])
    data = Path(shutil.copytree(silos[0], tmp_path / "data"))
    images = np.load(data / "images.npy")
    images[4] = 255 - images[4]
    np.save(data / "images.npy", images)
    with pytest.raises(BenchError, match="is damaged"):
        make_features(run, data_dir=data, out_dir=tmp_path / "second")
    assert not (tmp_path / "second").exists()
    summary = json.loads((data / "summary.json").read_text())
    summary["sha256"] = sha256(data / "images.npy")
    (data / "summary.json").write_text(json.dumps(summary))
    second = np.load(made(run, (data, None), tmp_path / "second")[FEATURES])
    rows = np.flatnonzero((first != second).any(axis=(1, 2, 3)))
    assert rows.tolist() == [4]
