"""The scripts of the rules, each called with what its rule gives it: everything reaches
the library.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import Partition
from dpfedbench.files import read_json, write_text
from dpfedbench.method import Method
from tests.dpfedbench.federation.conftest import make_config, train
from tests.partitions import made_clients, make_partition
from tests.test_integrity import Given, Params
from tests.test_integrity import call as call_script

Places = tuple[Path, Path]


def call(script: str, output: dict[str, Path], **values: Any) -> None:
    """Run a rule's script as Snakemake does."""
    inputs = Given(**values.pop("input", {}))
    params = Params(**values.pop("params", {}))
    call_script(script, inputs, Given(**output), params=params, **values)


def placed(run: Method, folder: Path) -> Path:
    place = folder / "results" / "runs" / run.folder
    write_text(place / "config.yaml", run.to_yaml())
    return place


@pytest.fixture(scope="module")
def finished(
    federation: Places, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Method, Path]:
    """A trained run in its folder, as of a search: it draws streams of its own."""
    run = make_config(
        {"participation": {"rounds": 2}, "validation": {"every": 0}, "streams": "own"}
    )
    place = placed(run, tmp_path_factory.mktemp("work"))
    train(run, federation, place)
    return run, place


def test_the_account_has_the_declared_search_and_the_partition(
    finished: tuple[Method, Path],
    federation: Places,
    tmp_path: Path,
) -> None:
    _, place = finished
    ledger = {
        "config": [place / "config.yaml"],
        "ledger": place / "ledger.jsonl",
        "training": place / "training.json",
    }
    with_clients = ledger | {"clients": [federation[1] / "clients.npz"]}
    few_runs, many_runs = ({"runs": runs, "data": "private"} for runs in (2, 9))
    accounts = []
    for number, (inputs, search) in enumerate(
        ((ledger, None), (with_clients, few_runs), (with_clients, many_runs))
    ):
        path = tmp_path / str(number) / "privacy.json"
        params = {"search": search}
        call("account", {"account": path}, input=inputs, params=params)
        accounts.append(read_json(path)["profiles"])
    none, few, many = accounts
    assert "tuning" not in none and "image_level" not in none
    holds = few["proven"]["epsilon_high"]
    assert holds < few["tuning"]["epsilon_high"] < many["tuning"]["epsilon_high"]
    assert few["image_level"]["epsilon_high"] > holds


def test_a_partition_has_the_rules_sizes_and_seed(
    federation: Places, tmp_path: Path
) -> None:
    part = made_clients("shared", count=9, examples_per_class=4)
    call(
        "partition",
        {"clients": tmp_path / "clients.npz"},
        input={"images": federation[0] / "images.npy"},
        params={"drawn_from": part.drawn_from(3), "text": part.text, "seed": 5},
        wildcards=SimpleNamespace(dataset="glyphs", clients="nine"),
    )
    sizes = {"clients": 9, "ways": 3, "examples_per_class": 4}
    dataset = load_dataset(federation[0])
    expected = make_partition(dataset, **sizes, kind="shared", seed=5)
    found = Partition.load(tmp_path)
    assert np.array_equal(found.classes, expected.classes)
    assert np.array_equal(found.examples, expected.examples)


def test_a_meta_test_is_the_one_that_the_figure_asks_for(
    finished: tuple[Method, Path],
    federation: Places,
    tmp_path: Path,
) -> None:
    run, place = finished
    test = {"shots": 2, "steps": 3, "rate": 0.2, "tasks": 5, "query_per_class": 4}
    inputs = {
        "config": [place / "config.yaml"],
        "images": federation[0] / "images.npy",
        "model": place / "model.safetensors",
    }
    metrics = []
    for name, params in (("own", {}), ("figure", {"test": test})):
        path = tmp_path / name / "metrics.json"
        machine = {"machine": {"kernels": "off"}}
        output = {"metrics": path}
        call("meta_test", output, input=inputs, params=params, config=machine)
        metrics.append(read_json(path))
    own, figure = metrics
    keys = ("shots", "steps", "tasks", "query_per_class")
    assert [figure[key] for key in keys] == [test[key] for key in keys]
    assert len(figure["per_task"]) == 5
    of_run = {"shots": run.task.shots} | run.evaluation.plain()
    assert [own[key] for key in keys] == [of_run[key] for key in keys]


def test_a_training_has_the_machines_settings(
    federation: Places, tmp_path: Path
) -> None:
    run = make_config({"participation": {"rounds": 1}, "validation": {"every": 0}})
    place = placed(run, tmp_path)
    inputs = {
        "config": [place / "config.yaml"],
        "images": federation[0] / "images.npy",
        "clients": federation[1] / "clients.npz",
    }
    output = {"model": place / "model.safetensors"}
    machine = {"checkpoint_seconds": 60, "device": "cpu", "kernels": "off"}
    models = []
    for more, expected in (
        ({}, {"threads": 2, "device": "cpu"}),
        ({"threads": 1, "processes": 2}, {"threads": 1, "processes": 2}),
    ):
        config = {"machine": machine | more}
        call("train", output, input=inputs, config=config, threads=2)
        training = read_json(place / "training.json")
        expected |= {"gradients": "torch", "rounds_run": 1}
        assert {key: training[key] for key in expected} == expected
        models.append(output["model"].read_bytes())
    assert models[0] == models[1]
    log = (place / "logs" / "train-processes.log").read_text(encoding="utf-8")
    assert "Traceback" not in log
