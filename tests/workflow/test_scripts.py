"""The scripts of the rules, each called with what its rule gives it: everything reaches
the library.
"""

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import Partition
from dpfedbench.files import write_text
from dpfedbench.method import Method
from tests.dpfedbench.federation.conftest import make_config, train
from tests.partitions import made_clients, make_partition

SCRIPTS = Path(__file__).resolve().parents[2] / "workflow" / "scripts"
Places = tuple[Path, Path]


class Files(dict[str, Any]):
    """A rule's input or output: named files, and all in order, of which some have one
    name.
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    def __iter__(self) -> Iterator[Any]:
        for value in self.values():
            yield from value if isinstance(value, list) else [value]

    def __getitem__(self, key: Any) -> Any:
        return (
            list(self.values())[key]
            if isinstance(key, int)
            else super().__getitem__(key)
        )


def call(name: str, place: Path, **given: Any) -> None:
    """Run a script as Snakemake does, as the program and with its object."""
    values = {
        "rule": name,
        "log": [str(place / "logs" / f"{name}.log")],
        "threads": 1,
        "params": Files(),
        "input": {},
        "config": {},
    }
    snakemake = SimpleNamespace(**values | given)
    for key in ("input", "output", "params"):
        setattr(snakemake, key, Files(getattr(snakemake, key)))
    runpy.run_path(
        str(SCRIPTS / f"{name}.py"),
        init_globals={"snakemake": snakemake},
        run_name="__main__",
    )


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


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
    for name, search in (
        ("none", None),
        ("few", {"runs": 2, "data": "private"}),
        ("many", {"runs": 9, "data": "private"}),
    ):
        ledger = {"config": [place / "config.yaml"], "ledger": place / "ledger.jsonl"}
        ledger |= {"training": place / "training.json"}
        clients = {} if name == "none" else {"clients": [federation[1] / "clients.npz"]}
        call(
            "account",
            tmp_path,
            input=ledger | clients,
            output={"account": tmp_path / name},
            params={"search": search},
        )
    none, few, many = (
        read(tmp_path / name)["profiles"] for name in ("none", "few", "many")
    )
    assert "tuning" not in none and "image_level" not in none
    ends = [few["holds"], few["tuning"], many["tuning"]]
    assert sorted({end["epsilon_high"] for end in ends}) == [
        end["epsilon_high"] for end in ends
    ]
    assert few["image_level"]["epsilon_high"] > few["holds"]["epsilon_high"]


def test_a_partition_has_the_rules_sizes_and_seed(
    federation: Places, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {
        "clients": 9,
        "ways": 3,
        "examples_per_class": 4,
        "kind": "shared",
        "seed": 5,
    }
    part = made_clients("shared", count=9, examples_per_class=4)
    call(
        "partition",
        tmp_path,
        input={"images": federation[0] / "images.npy"},
        params={"drawn_from": part.drawn_from(3), "text": part.text, "seed": 5},
        output={"clients": tmp_path / "clients.npz"},
        wildcards=SimpleNamespace(dataset="glyphs", clients="nine"),
    )
    found, wanted = (
        Partition.load(tmp_path),
        make_partition(load_dataset(federation[0]), **sizes),
    )
    assert np.array_equal(found.classes, wanted.classes) and np.array_equal(
        found.examples, wanted.examples
    )


def test_a_meta_test_is_the_one_that_the_figure_asks_for(
    finished: tuple[Method, Path],
    federation: Places,
    tmp_path: Path,
) -> None:
    run, place = finished
    asked = {"shots": 2, "steps": 3, "rate": 0.2, "tasks": 5, "query_per_class": 4}
    given = {"config": [place / "config.yaml"], "images": federation[0] / "images.npy"}
    given |= {"model": place / "model.safetensors"}
    for name, params in (("own", {}), ("other", {"test": asked})):
        machine = {"machine": {"kernels": "off"}}
        call(
            "meta_test",
            tmp_path,
            input=given,
            output={"metrics": tmp_path / name},
            params=params,
            config=machine,
        )
    own, other = read(tmp_path / "own"), read(tmp_path / "other")
    keys = ("shots", "steps", "tasks", "query_per_class")
    assert [other[key] for key in keys] == [asked[key] for key in keys] and len(
        other["per_task"]
    ) == 5
    test = run.evaluation
    assert [own[key] for key in keys] == [
        run.task.shots,
        test.steps,
        test.tasks,
        test.query_per_class,
    ]


def test_a_training_has_the_machines_settings(
    federation: Places, tmp_path: Path
) -> None:
    run = make_config({"participation": {"rounds": 1}, "validation": {"every": 0}})
    place = placed(run, tmp_path)
    given = {"config": [place / "config.yaml"], "images": federation[0] / "images.npy"}
    given |= {"clients": federation[1] / "clients.npz"}
    machine = {"machine": {"checkpoint_seconds": 60, "device": "cpu", "kernels": "off"}}
    model = {"model": place / "model.safetensors"}
    call("train", place, input=given, output=model, config=machine, threads=2)
    found = read(place / "training.json")
    assert (
        found["threads"],
        found["device"],
        found["gradients"],
        found["rounds_run"],
    ) == (2, "cpu", "torch", 1)
    one = (place / "model.safetensors").read_bytes()
    machine["machine"] |= {"threads": 1, "processes": 2}
    call("train", place, input=given, output=model, config=machine, threads=2)
    found = read(place / "training.json")
    assert (
        found["processes"],
        found["threads"],
        found["gradients"],
        found["rounds_run"],
    ) == (2, 1, "torch", 1)
    assert (place / "model.safetensors").read_bytes() == one
    assert (
        not (place / "logs" / "train-processes.log")
        .read_text(encoding="utf-8")
        .count("Traceback")
    )
