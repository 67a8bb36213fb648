"""The scripts of the rules pass every value of their rule to the library."""

from types import SimpleNamespace

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import Partition
from dpfedbench.files import read_json
from tests.dpfedbench.training.conftest import make_config
from tests.finished_run import (
    MACHINE,
    RUN,
    RUN_FOLDER,
    FileList,
    Params,
    account,
    configure,
    folder_of,
    meta_test,
    run_script,
    train_run,
)
from tests.partitions import made_clients, make_partition

SEARCHED = make_config({"validation": {"every": 0}, "streams": "own"})
"""A run of a search has streams of its own."""


@pytest.fixture
def searched(results_copy):
    """Configure the run of a search, and return its folder."""
    configure(SEARCHED)
    return folder_of(SEARCHED)


def test_account_script_passes_the_search_and_the_partition(searched):
    train_run(SEARCHED)
    profiles = []
    for search in (None, *({"runs": runs, "data": "private"} for runs in (2, 9))):
        account(SEARCHED, search=search)
        profiles.append(read_json(searched / "privacy.json")["profiles"])
    alone, few, nine = profiles
    assert "tuning" not in alone
    proven = few["proven"]["epsilon_high"]
    assert proven < few["tuning"]["epsilon_high"] < nine["tuning"]["epsilon_high"]
    assert few["image_level"]["epsilon_high"] > proven


def test_partition_script_passes_sizes_and_seed(federation, tmp_path):
    clients = made_clients("shared", count=9, examples_per_class=4)
    run_script(
        "partition",
        FileList(images=federation[0] / "images.npy"),
        FileList(clients=tmp_path / "clients.npz"),
        params=Params(drawn_from=clients.drawn_from(3), text=clients.text, seed=5),
        wildcards=SimpleNamespace(dataset="glyphs", clients="nine"),
    )
    sizes = {"clients": 9, "ways": 3, "examples_per_class": 4}
    dataset = load_dataset(federation[0])
    expected = make_partition(dataset, **sizes, kind="shared", seed=5)
    partition = Partition.load(tmp_path)
    assert np.array_equal(partition.classes, expected.classes)
    assert np.array_equal(partition.examples, expected.examples)


def test_meta_test_script_passes_the_test_of_a_figure(results_copy):
    test = {"shots": 2, "steps": 3, "rate": 0.2, "tasks": 5, "query_per_class": 4}
    configured = {"shots": RUN.task.shots} | RUN.evaluation.plain()
    for params, expected in (({"test": test}, test), ({}, configured)):
        meta_test(**params)
        metrics = read_json(RUN_FOLDER / "metrics.json")
        for key in ("shots", "steps", "tasks", "query_per_class"):
            assert metrics[key] == expected[key]


def test_train_script_passes_the_machines_settings(searched):
    """The model of two processes has the same bits."""
    models = []
    for settings, expected in (
        ({}, {"threads": 2, "device": "cpu"}),
        ({"threads": 1, "processes": 2}, {"threads": 1, "processes": 2}),
    ):
        machine = MACHINE | {"kernels": "off"} | settings
        train_run(SEARCHED, config={"machine": machine}, threads=2)
        training = read_json(searched / "training.json")
        expected |= {"gradients": "torch", "rounds_run": 12}
        assert training.items() >= expected.items()
        models.append((searched / "model.safetensors").read_bytes())
    assert models[0] == models[1]
    log = (searched / "logs" / "train-processes.log").read_text(encoding="utf-8")
    assert "Traceback" not in log
