"""What every run is: identity, places, meta-tests, config.yaml."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfedbench.errors import BenchError
from dpfedbench.method import Method, read_yaml
from dpfedbench.models.zoo.own_module import OwnModule
from dpfedbench.settings.merge import leaves, set_key


class Toy(Method):
    """Run without training: the settings that every method has."""

    name = "toy"
    trained = False

    def check(self) -> None:
        """Accept values that this run does nothing with."""


VALUES = """
method: toy
seed: 0
dataset: glyphs
task: {ways: 5, shots: 1}
clients: {count: 4000, examples_per_class: 7, support_per_class: 1, query_per_class: 5}
model: {kind: module, module: "mine.py:Net", arguments: {width: 3}}
"""


def values(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load(VALUES)
    for key, value in changes.items():
        made = set_key(made, key.replace("__", "."), value)
    return made


def refusal(found: dict[str, Any]) -> str:
    with pytest.raises(BenchError) as caught:
        Toy.read(found)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_own_module_has_the_text_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, path = OwnModule(module="netz.mine:Net"), list(sys.path)
    assert model.text == ""  # the training says that it is missing
    (tmp_path / "netz").mkdir()
    found = []
    for text in ("one", "two", "one"):
        (tmp_path / "netz" / "mine.py").write_text(text)
        importlib.invalidate_caches()
        found.append(model.text)
    assert found[0] == found[2] != found[1] and all(found) and sys.path == path


def test_any_changed_value_is_another_run_and_a_seed_is_not() -> None:
    base = Toy.read(values())
    others = {
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
    keys, count = {base.key}, 1
    for key, value in leaves(base.plain()).items():
        if key not in ("seed", "model.kind", "task.text", "initial.kind"):
            other = others.get(key, None if key in others else value)
            other = value + 1 if key not in others else other
            keys.add(Toy.read(set_key(base.plain(), key, other)).key)
            count += 1
    assert len(keys) == count
    assert (
        Toy.read(values(seed=7)).key == base.key
        and Toy.read(values(seed=7)).folder != base.folder
    )


def test_a_config_without_a_key_that_came_later_is_the_same_run(tmp_path: Path) -> None:
    base = Toy.read(values(evaluation={"tasks": 50}))
    path = tmp_path / "config.yaml"
    path.write_text(base.to_yaml(), encoding="utf-8")
    assert Toy.read(read_yaml(path)) == base
    older = {key: value for key, value in base.plain().items() if key != "validation"}
    path.write_text(yaml.safe_dump(older), encoding="utf-8")
    assert Toy.read(read_yaml(path)).key == base.key


def test_folders_can_be_read() -> None:
    run = Toy.read(values(seed=2))
    assert run.folder == f"toy/glyphs/5way-1shot/{run.key}/seed2"
    assert run.clients_folder == "glyphs/5way-4000clients-7examples-shared-seed2"
    assert run.task_name == "5-way 1-shot"
    used = Toy.read(
        values(task__shots=0, clients__partition="fragments", clients__fragments=8000)
    )
    assert used.folder.split("/")[2] == "5class"
    assert used.clients_folder == "glyphs/4000clients-8000fragments-seed0"


def test_another_meta_test_is_the_same_training() -> None:
    run = Toy.read(values())
    other = run.tested_at(shots=5, steps=30)
    assert (
        other.test_name == "5shot-30steps-0.4rate-200tasks-15query"
        and run.test_name != other.test_name
    )
    with pytest.raises(BenchError, match=r"test\.shots is 0"):
        run.tested_at(shots=0)
    with pytest.raises(BenchError, match="steps is -1"):
        run.tested_at(steps=-1)
    with pytest.raises(BenchError, match="used as it is"):
        run.replace(task=run.task.replace(shots=0)).tested_at(steps=3)


FRAGMENTS = {"clients__partition": "fragments"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients__support_per_class": 3}, "more than clients.examples_per_class"),
        (FRAGMENTS | {"clients__fragments": 400}, "more than the 400 fragments"),
        (FRAGMENTS | {"clients__fragments": 6000}, "try 8000 fragments"),
        ({"dataset": "A b"}, 'dataset is "A b"'),
    ],
)
def test_values_that_do_not_go_together_are_refused(
    changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(values(**changes))


def test_a_damaged_config_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for text in ("a: [", "", "- 1"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BenchError, match=r"config\.yaml") as caught:
            Toy.read(read_yaml(path))
        assert "\n" not in str(caught.value)
    with pytest.raises(BenchError, match="is missing"):
        read_yaml(tmp_path / "absent.yaml")


def test_settings_load_neither_numpy_nor_torch() -> None:
    code = (
        "import sys, dpfedbench.method, dpfedbench.settings.merge\n"
        "print([name in sys.modules for name in ('numpy', 'torch', 'numba')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[False, False, False]"
