"""The generated schemas and tables are those of the settings' classes."""

import runpy
from pathlib import Path

import pytest

from dpfedbench.experiments.configuration import Configuration
from dpfedbench.experiments.expand import make_plan
from tests.dpfedbench.test_experiments import configuration

ROOT = Path(__file__).resolve().parents[3]
TOOL = runpy.run_path(str(ROOT / "tools" / "generate_settings.py"))
jsonschema = pytest.importorskip("jsonschema", reason="Snakemake brings it")


def test_generated_files_are_those_of_the_classes() -> None:
    for path, text in TOOL["make_files"](ROOT).items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path.name} is old: run `python tools/generate_settings.py`"
        )


@pytest.mark.parametrize("preset", [None, "smoke", "real", "paper"])
def test_schemas_take_what_is_shipped_and_refuse_unknown_keys(
    preset: str | None,
) -> None:
    """The configuration, and a run of each method."""
    schemas = TOOL["make_schemas"]()
    schema = jsonschema.Draft202012Validator(schemas["config"])
    shipped = configuration(preset)
    schema.validate(shipped)
    for wrong in {"sedes": [0]}, {"run": {"clipping": {"treshold": 1}}}, {"seeds": []}:
        assert not schema.is_valid(shipped | wrong), wrong
    schema = jsonschema.Draft202012Validator(schemas["run"])
    plan = make_plan(Configuration.read(shipped))
    for run in {run.method: run for run in plan.runs.values()}.values():
        schema.validate(run.plain())
