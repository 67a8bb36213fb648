"""pyproject.toml, environment.yml and the rules' environment pin the same versions."""

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
# What only a person at a terminal, the tests or `snakemake --report` use.
ONLY_OUTSIDE_RULES = {
    "snakemake",
    "snakemake-executor-plugin-slurm",
    "snakemake-executor-plugin-cluster-generic",
    "pytest",
    "pygments",
}


def pins(requirements: list[str]) -> dict[str, str]:
    found = dict(requirement.split("==") for requirement in requirements)
    assert all(found.values()), "every direct requirement is pinned with =="
    return found


def conda(path: Path) -> tuple[dict[str, str], str]:
    dependencies = yaml.safe_load(path.read_text(encoding="utf-8"))["dependencies"]
    python = next(item for item in dependencies if isinstance(item, str) and item.startswith("python="))
    return pins(next(item["pip"] for item in dependencies if isinstance(item, dict))), python.removeprefix("python=")


def test_the_three_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = pins(project["dependencies"])
    environment, python = conda(ROOT / "environment.yml")
    rules, rules_python = conda(ROOT / "workflow" / "envs" / "dpfedbench.yaml")
    assert environment == required
    assert rules == {name: version for name, version in environment.items() if name not in ONLY_OUTSIDE_RULES}
    assert python == rules_python and f">={python}" in project["requires-python"]
