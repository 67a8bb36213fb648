"""The scripts of the rules pass every value of their rule to the library."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import Partition
from dpfedbench.files import read_json, write_text
from tests.dpfedbench.training.conftest import make_config, train
from tests.finished_run import FileList, Params, run_script
from tests.partitions import made_clients, make_partition


def call(script: str, output: dict[str, Path], **values: Any) -> None:
    """Run a rule's script as Snakemake does."""
    inputs = FileList(**values.pop("input", {}))
    params = Params(**values.pop("params", {}))
    run_script(script, inputs, FileList(**output), params=params, **values)


def make_folder(run, folder):
    """Return the folder of a run, with its configuration."""
    path = folder / "results" / "runs" / run.folder
    write_text(path / "config.yaml", run.to_yaml())
    return path


@pytest.fixture(scope="module")
def trained(federation, tmp_path_factory):
    """Train a run of a search, which has streams of its own; return run and folder."""
    run = make_config(
        {"participation": {"rounds": 2}, "validation": {"every": 0}, "streams": "own"}
    )
    folder = make_folder(run, tmp_path_factory.mktemp("work"))
    train(run, federation, folder)
    return run, folder


def test_account_script_passes_the_search_and_the_partition(
    trained, federation, tmp_path
):
    _, folder = trained
    ledger = {
        "config": [folder / "config.yaml"],
        "ledger": folder / "ledger.jsonl",
        "training": folder / "training.json",
    }
    with_clients = ledger | {"clients": [federation[1] / "clients.npz"]}

    def profiles_of(inputs, search):
        path = tmp_path / str(search and search["runs"]) / "privacy.json"
        params = {"search": search}
        call("account", {"account": path}, input=inputs, params=params)
        return read_json(path)["profiles"]

    assert {"tuning", "image_level"}.isdisjoint(profiles_of(ledger, None))
    few = profiles_of(with_clients, {"runs": 2, "data": "private"})
    nine = profiles_of(with_clients, {"runs": 9, "data": "private"})
    proven = few["proven"]["epsilon_high"]
    assert proven < few["tuning"]["epsilon_high"] < nine["tuning"]["epsilon_high"]
    assert few["image_level"]["epsilon_high"] > proven


def test_partition_script_passes_sizes_and_seed(federation, tmp_path):
    clients = made_clients("shared", count=9, examples_per_class=4)
    call(
        "partition",
        {"clients": tmp_path / "clients.npz"},
        input={"images": federation[0] / "images.npy"},
        params={"drawn_from": clients.drawn_from(3), "text": clients.text, "seed": 5},
        wildcards=SimpleNamespace(dataset="glyphs", clients="nine"),
    )
    sizes = {"clients": 9, "ways": 3, "examples_per_class": 4}
    dataset = load_dataset(federation[0])
    expected = make_partition(dataset, **sizes, kind="shared", seed=5)
    partition = Partition.load(tmp_path)
    assert np.array_equal(partition.classes, expected.classes)
    assert np.array_equal(partition.examples, expected.examples)


def test_meta_test_script_passes_the_test_of_a_figure(trained, federation, tmp_path):
    run, folder = trained
    inputs = {
        "config": [folder / "config.yaml"],
        "images": federation[0] / "images.npy",
        "model": folder / "model.safetensors",
    }

    def metrics_of(name, **params):
        path = tmp_path / name / "metrics.json"
        machine = {"machine": {"kernels": "off"}}
        call(
            "meta_test", {"metrics": path}, input=inputs, params=params, config=machine
        )
        return read_json(path)

    test = {"shots": 2, "steps": 3, "rate": 0.2, "tasks": 5, "query_per_class": 4}
    configured = {"shots": run.task.shots} | run.evaluation.plain()
    for metrics, expected in (
        (metrics_of("figure", test=test), test),
        (metrics_of("own"), configured),
    ):
        for key in ("shots", "steps", "tasks", "query_per_class"):
            assert metrics[key] == expected[key]


def test_train_script_passes_the_machines_settings(federation, tmp_path):
    """The model of two processes has the same bits."""
    run = make_config({"participation": {"rounds": 1}, "validation": {"every": 0}})
    folder = make_folder(run, tmp_path)
    inputs = {
        "config": [folder / "config.yaml"],
        "images": federation[0] / "images.npy",
        "clients": federation[1] / "clients.npz",
    }
    output = {"model": folder / "model.safetensors"}
    machine = {"checkpoint_seconds": 60, "device": "cpu", "kernels": "off"}
    models = []
    for settings, expected in (
        ({}, {"threads": 2, "device": "cpu"}),
        ({"threads": 1, "processes": 2}, {"threads": 1, "processes": 2}),
    ):
        config = {"machine": machine | settings}
        call("train", output, input=inputs, config=config, threads=2)
        training = read_json(folder / "training.json")
        expected |= {"gradients": "torch", "rounds_run": 1}
        assert training.items() >= expected.items()
        models.append(output["model"].read_bytes())
    assert models[0] == models[1]
    log = (folder / "logs" / "train-processes.log").read_text(encoding="utf-8")
    assert "Traceback" not in log
