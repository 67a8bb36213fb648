"""Properties of every run: identity, folders, meta-tests and config.yaml."""

from pathlib import Path
from typing import Any

import yaml

from dpfedbench.config.merge import set_key
from dpfedbench.method import Method, read_yaml


class UntrainedMethod(Method):
    """Method without training, with the settings that every method has."""

    name = "toy"
    trained = False

    def check(self) -> None:
        """Accept all values, which this method does not use."""


VALUES = """
method: toy
seed: 0
dataset: glyphs
task: {ways: 5, shots: 1}
clients: {count: 4000, examples_per_class: 7, support_per_class: 1, query_per_class: 5}
model: {kind: module, module: "mine.py:Net", arguments: {width: 3}}
"""


def values(**changes: Any) -> dict[str, Any]:
    """Return the values of a run; `a__b=1` changes the key a.b."""
    configuration: dict[str, Any] = yaml.safe_load(VALUES)
    for key, value in changes.items():
        configuration = set_key(configuration, key.replace("__", "."), value)
    return configuration


def test_run_key_does_not_change_with_a_key_that_a_later_version_adds(
    tmp_path: Path,
) -> None:
    base = UntrainedMethod.read(values(evaluation={"tasks": 50}))
    path = tmp_path / "config.yaml"
    path.write_text(base.to_yaml(), encoding="utf-8")
    assert UntrainedMethod.read(read_yaml(path)) == base
    older = {key: value for key, value in base.plain().items() if key != "validation"}
    path.write_text(yaml.safe_dump(older), encoding="utf-8")
    assert UntrainedMethod.read(read_yaml(path)).key == base.key


def test_run_folders_have_readable_names() -> None:
    run = UntrainedMethod.read(values(seed=2))
    assert run.folder == f"toy/glyphs/5way-1shot/{run.key}/seed2"
    assert run.clients_folder == "glyphs/5way-4000clients-7examples-shared-seed2"
    assert run.task_name == "5-way 1-shot"
    fragments = {"clients__partition": "fragments", "clients__fragments": 8000}
    of_records = UntrainedMethod.read(values(task__shots=0, **fragments))
    assert of_records.folder.split("/")[2] == "5class"
    assert of_records.clients_folder == "glyphs/4000clients-8000fragments-seed0"


def test_meta_test_name_has_the_settings_of_the_test() -> None:
    run = UntrainedMethod.read(values())
    tested = run.tested_at(shots=5, steps=30)
    assert tested.test_name == "5shot-30steps-0.4rate-200tasks-15query"
    assert run.test_name != tested.test_name
