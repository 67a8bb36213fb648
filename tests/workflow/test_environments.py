"""pyproject.toml, environment.yml and the rules' environment pin the same versions, and
the last suffices for rules.

No conda is called: this is what can be checked without one. `use_conda.py` makes the
environment and a figure in it.
"""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., subprocess.CompletedProcess[str]]
SMOKE = [
    "--configfile",
    str(ROOT / "config" / "presets" / "smoke.yaml"),
]  # planned sooner than the default
# What only a person at a terminal, the tests or `snakemake --report` use.
ONLY_OUTSIDE_RULES = {
    "snakemake",
    "snakemake-executor-plugin-slurm",
    "snakemake-executor-plugin-cluster-generic",
    "pytest",
    "dp-accounting",
    "pygments",
    "platformdirs",
}


def pins(requirements: list[str]) -> dict[str, str]:
    found = dict(requirement.split("==") for requirement in requirements)
    assert all(found.values()), "every direct requirement is pinned with =="
    return found


def conda(path: Path) -> tuple[dict[str, str], str]:
    dependencies = yaml.safe_load(path.read_text(encoding="utf-8"))["dependencies"]
    python = next(
        item
        for item in dependencies
        if isinstance(item, str) and item.startswith("python=")
    )
    return pins(
        next(item["pip"] for item in dependencies if isinstance(item, dict))
    ), python.removeprefix("python=")


def test_the_three_agree() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, constraints = (
        whole["project"],
        pins(whole["tool"]["uv"]["constraint-dependencies"]),
    )
    required = pins(project["dependencies"])
    # Of what these bring with them pip would take other versions than uv does with the
    # constraints.
    required |= {
        name: constraints[name] for name in ("mpmath", "platformdirs", "sympy")
    }
    environment, python = conda(ROOT / "environment.yml")
    rules, rules_python = conda(ROOT / "workflow" / "envs" / "dpfedbench.yaml")
    assert environment == required
    assert rules == {
        name: version
        for name, version in environment.items()
        if name not in ONLY_OUTSIDE_RULES
    }
    assert python == rules_python and f">={python}" in project["requires-python"]


def test_channels_are_conda_forge_alone() -> None:
    """`nodefaults` is a channel for conda 26.7, and not to be had."""
    files = [
        path
        for path in ROOT.glob("*.y*ml")
        if "dependencies:" in path.read_text("utf-8")
    ]
    files += (ROOT / "workflow" / "envs").glob("*")
    assert len(files) == 4
    for path in files:
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["channels"] == [
            "conda-forge"
        ], path
        assert "nodefaults" not in path.read_text(encoding="utf-8")


PLAN = """
import sys
sys.modules |= dict.fromkeys(sys.argv[2:])
import yaml
from pathlib import Path
import dpfedbench.data
import dpfedbench.experiments.targets
import dpfedbench.results_format
import workflow_jobs.cluster
import workflow_jobs.jobs
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.datasets import known_datasets
from dpfedbench.experiments.expand import make_plan

root = Path(sys.argv[1])
files = [root / "config" / "config.yaml", *root.glob("config/experiments/*.yaml")]
options = {"folder": "x", "size": 28, "channels": 1}
own = {"mine": {"reader": "image-folder", "options": options}}
read = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
configuration = Configuration.read(overlaid(*read, {"datasets": own}))
datasets = known_datasets(dpfedbench.data.DATASETS_TABLE, configuration)
plan = make_plan(configuration, datasets=datasets)
print("mine" in datasets, len(plan.private_runs()) > 10)
"""


def test_a_plan_needs_nothing_but_snakemake() -> None:
    """As on a login node that has Snakemake alone: no package that Snakemake does not
    bring with it. `use_conda.py` calls the workflow from such an environment.
    """
    brought = {"snakemake"}
    for _ in range(12):  # what Snakemake requires, and what that requires
        texts = [
            text
            for name in brought
            if _installed(name)
            for text in importlib.metadata.requires(name) or []
        ]
        brought |= {
            re.split(r"[\s<>=!~;\[(]", text, maxsplit=1)[0]
            for text in texts
            if "extra" not in text
        }
    rules, _ = conda(ROOT / "workflow" / "envs" / "dpfedbench.yaml")
    modules = {"pyyaml": "yaml", "pillow": "PIL"}
    absent = {modules.get(name, name) for name in rules if name not in brought}
    assert {"numpy", "torch", "pandas", "scipy", "numba"} <= absent
    assert "yaml" not in absent
    command = [sys.executable, "-c", PLAN, str(ROOT), *sorted(absent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def test_a_checkouts_own_sources_come_first(
    snakemake: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two checkouts that share an environment: the other's package lies before
    anything that Snakemake adds.
    """
    other = tmp_path / "other" / "dpfedbench"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text(
        "raise RuntimeError('the other checkout')\n", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(other.parent))
    plan = snakemake("--dry-run", *SMOKE).stdout
    target = re.findall(r"output: (\S+config\.yaml)$", plan, flags=re.M)[0]
    done = snakemake(target, *SMOKE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / target).is_file()


# A module's name where it is not its distribution's, and what comes with another one
# that is pinned.
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "PIL": "pillow",
    "llvmlite": "numba",
    "markupsafe": "jinja2",
}


def imported(path: Path) -> set[str]:
    """The third-party modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = (
            [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        )
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        found |= {name.split(".")[0] for name in names}
    return (
        found
        - set(sys.stdlib_module_names)
        - {"dpfedbench", "dpkernels", "dpsum", "dpwatch", "workflow_jobs"}
    )


def test_the_rules_environment_has_all_that_the_rules_import() -> None:
    """What --use-conda makes holds neither Snakemake nor this package, only what is
    pinned there.
    """
    pinned, _ = conda(ROOT / "workflow" / "envs" / "dpfedbench.yaml")
    # dpwatch is for users of other libraries, and no rule imports it. Neither does one
    # import what shows histories in a tracker.
    beside = {
        ROOT / "src" / "dpfedbench" / "results" / "experiment_trackers.py",
        *(ROOT / "src" / "dpwatch").rglob("*.py"),
    }
    files = {
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "workflow" / "scripts").glob("*.py"),
    } - beside
    # Snakemake puts its own place behind a script's path, so that a job finds its
    # modules.
    needed = {
        DISTRIBUTIONS.get(name, name) for path in files for name in imported(path)
    } - {"snakemake"}
    assert len(needed) > 8 and needed <= set(pinned), needed - set(pinned)


def test_a_librarys_environment_has_the_projects_versions_where_it_can() -> None:
    """Python and what dpsum needs are the project's: the packages of both may lie on
    one path.
    """
    rules, python = conda(ROOT / "workflow" / "envs" / "dpfedbench.yaml")
    for name in ("flower", "pfl"):
        text = (ROOT / "workflow" / "envs" / f"{name}.yaml").read_text(encoding="utf-8")
        listed = yaml.safe_load(text)["dependencies"]
        assert listed[:2] == [f"python={python}", "pip"]
        found = pins([pin for pin in listed[2]["pip"] if ">=" not in pin])
        for shared in ("numpy", "scipy", "psutil", "pyyaml"):
            assert found[shared] == rules[shared]


def test_every_rule_has_that_environment() -> None:
    """Paths of `conda:` are relative to the file of the rule, and Snakemake looks them
    up only under --use-conda.

    Those of the libraries have one of their own, or that one.
    """
    count = 0
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in re.split(
            r"^ *rule\b.*:$", path.read_text(encoding="utf-8"), flags=re.M
        )[1:]:
            if re.search(r"conda:\n\s+ENVIRONMENT\n", rule):
                assert path.name == "libraries.smk"
                continue
            (environment,) = re.findall(r'conda:\n\s+"(.*)"', rule)
            assert (
                path.parent / environment
            ).resolve() == ROOT / "workflow" / "envs" / "dpfedbench.yaml"
            if "    shell:" in rule:
                continue
            (script,) = re.findall(r'script:\n\s+"(.*)"', rule)
            assert (path.parent / script).is_file()
            count += 1
    assert count >= 9
