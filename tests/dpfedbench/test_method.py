"""Properties of every run: identity, folders, meta-tests and config.yaml."""

from pathlib import Path

import yaml

from dpfedbench.method import read_yaml
from dpfedbench.papers import read_run
from tests.dpfedbench.training.conftest import LOTS, make_config


def test_run_key_does_not_change_with_a_key_that_a_later_version_adds(
    tmp_path: Path,
) -> None:
    base = make_config({"evaluation": {"tasks": 50}})
    path = tmp_path / "config.yaml"
    path.write_text(base.to_yaml(), encoding="utf-8")
    assert read_run(read_yaml(path)) == base
    with_default = make_config({"streams": "shared"})
    older = {
        key: value for key, value in with_default.plain().items() if key != "streams"
    }
    path.write_text(yaml.safe_dump(older), encoding="utf-8")
    assert read_run(read_yaml(path)).key == with_default.key


def test_folders_have_what_a_run_and_a_test_differ_in() -> None:
    run = make_config({"seed": 2})
    assert run.folder == f"dp-agr/glyphs/3way-1shot/{run.key}/seed2"
    assert run.clients_folder == "glyphs/3way-48clients-4examples-shared-seed2"
    of_records = make_config(general=LOTS)
    assert of_records.folder.split("/")[2] == "10class"
    assert of_records.clients_folder == "digits/4clients-20fragments-seed0"
    tested = run.tested_at(shots=5, steps=30)
    assert tested.test_name == "5shot-30steps-0.1rate-6tasks-3query"
    assert run.test_name != tested.test_name
