"""Properties of every run: identity, folders, meta-tests and config.yaml."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfedbench.config.merge import leaves, set_key
from dpfedbench.errors import BenchError
from dpfedbench.method import Method, read_yaml
from dpfedbench.models.zoo.own_module import OwnModule


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


def refusal(configuration: dict[str, Any]) -> str:
    with pytest.raises(BenchError) as caught:
        UntrainedMethod.read(configuration)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_user_module_has_the_text_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    model = OwnModule(module="netz.mine:Net")
    # A missing module is an error of the training.
    assert model.text == ""
    (tmp_path / "netz").mkdir()
    texts = []
    for text in ("one", "two", "one"):
        (tmp_path / "netz" / "mine.py").write_text(text)
        importlib.invalidate_caches()
        texts.append(model.text)
    assert all(texts)
    assert texts[0] == texts[2]
    assert texts[0] != texts[1]
    assert sys.path == path


def test_run_key_changes_with_any_value_but_the_seed() -> None:
    base = UntrainedMethod.read(values())
    neighbours = {
        "method": "other",
        "dataset": "digits",
        "model.module": "mine.py:Other",
        "clients.partition": "disjoint",
        "clients.rotations": "quarter-turns",
        "validation.public": False,
        "clients.fragments": 4000,
        "clients.concentration": 0.5,
        "clients.held_out_share": 0.5,
        "model.kind": None,
        "streams": "own",
        "task.ways": 6,
        "evaluation.optimizer": "adam",
        "evaluation.beta1": 0.5,
        "evaluation.batch": 2,
        "evaluation.schedule": "cosine",
        "evaluation.best_step": True,
        "reading": "as-released",
    }
    keys = [base.key]
    for key, value in leaves(base.plain()).items():
        if key in ("seed", "model.kind", "task.text", "initial.kind"):
            continue
        neighbour = neighbours[key] if key in neighbours else value + 1
        changed = set_key(base.plain(), key, neighbour)
        keys.append(UntrainedMethod.read(changed).key)
    assert len(set(keys)) == len(keys)
    reseeded = UntrainedMethod.read(values(seed=7))
    assert reseeded.key == base.key
    assert reseeded.folder != base.folder


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
    with pytest.raises(BenchError, match=r"test\.shots is 0"):
        run.tested_at(shots=0)
    with pytest.raises(BenchError, match="steps is -1"):
        run.tested_at(steps=-1)
    with pytest.raises(BenchError, match="used without adaptation"):
        run.replace(task=run.task.replace(shots=0)).tested_at(steps=3)


FRAGMENTS = {"clients__partition": "fragments"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients__support_per_class": 3}, "more than clients.examples_per_class"),
        (FRAGMENTS | {"clients__fragments": 400}, "more than the 400 fragments"),
        (FRAGMENTS | {"clients__fragments": 6000}, "try 8000 fragments"),
        ({"dataset": "A b"}, 'dataset is "A b"'),
    ],
)
def test_run_with_values_that_contradict_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    assert message in refusal(values(**changes))


def test_config_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for text in ("a: [", "", "- 1"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BenchError, match=r"config\.yaml") as caught:
            UntrainedMethod.read(read_yaml(path))
        assert "\n" not in str(caught.value)
    with pytest.raises(BenchError, match="is missing"):
        read_yaml(tmp_path / "absent.yaml")


def test_settings_import_neither_numpy_nor_torch() -> None:
    code = (
        "import sys, dpfedbench.method, dpfedbench.config.merge\n"
        "print([name in sys.modules for name in ('numpy', 'torch', 'numba')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[False, False, False]"
