"""What is generated from the settings' classes is what lies in the repository."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from tests.shipped import parsed

ROOT = Path(__file__).resolve().parents[3]
TOOL = runpy.run_path(str(ROOT / "tools" / "generate_settings.py"))
make_files = TOOL["make_files"]
make_schemas = TOOL["make_schemas"]
jsonschema = pytest.importorskip("jsonschema", reason="Snakemake brings it")


def shipped(preset: str | None) -> dict[str, Any]:
    paths = [
        ROOT / "config" / "config.yaml",
        *sorted((ROOT / "config" / "experiments").glob("*.yaml")),
    ]
    paths += [ROOT / "config" / "presets" / f"{preset}.yaml"] if preset else []
    return overlaid(*map(parsed, paths))


def test_the_files_are_what_the_classes_say() -> None:
    for path, text in make_files(ROOT).items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path.name} is old: run `python tools/generate_settings.py`"
        )


@pytest.mark.parametrize("preset", [None, "smoke", "real", "paper"])
def test_the_schemas_take_what_is_shipped(preset: str | None) -> None:
    """The configuration, and a run of each method."""
    configuration = shipped(preset)
    jsonschema.Draft202012Validator(make_schemas()["config"]).validate(configuration)
    schema = jsonschema.Draft202012Validator(make_schemas()["run"])
    plan = make_plan(Configuration.read(configuration))
    for run in {run.method: run for run in plan.runs.values()}.values():
        schema.validate(run.plain())


def test_the_schemas_refuse_what_is_unknown() -> None:
    schema = jsonschema.Draft202012Validator(make_schemas()["config"])
    for wrong in (
        {"sedes": [0]},
        {"run": {"clipping": {"treshold": 1}}},
        {"run": {"seed": 1}},
        {"seeds": []},
    ):
        assert not schema.is_valid(shipped(None) | wrong), wrong
