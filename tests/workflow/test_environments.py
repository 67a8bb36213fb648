"""pyproject.toml, environment.yml and the rules' environment pin the same versions, and
the last suffices for rules.

No conda is called; `use_conda.py` makes the environment and a figure in it.
"""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / "workflow" / "envs"
RULES = ENVIRONMENTS / "dpfedbench.yaml"
SMOKE = ["--configfile", str(ROOT / "config" / "presets" / "smoke.yaml")]
# Used at a terminal, by tests or by `snakemake --report` alone.
ONLY_OUTSIDE_RULES = {
    "snakemake",
    "snakemake-executor-plugin-slurm",
    "snakemake-executor-plugin-cluster-generic",
    "pytest",
    "dp-accounting",
    "pygments",
    "platformdirs",
}
OWN_PACKAGES = {"dpfedbench", "dpkernels", "dpsum", "dpwatch", "workflow_jobs"}


def parse_pins(requirements):
    """Return versions by name; every requirement has to be pinned with ==."""
    pins = dict(requirement.split("==") for requirement in requirements)
    assert all(pins.values())
    return pins


def read_environment(path):
    """Return the pins of an environment's pip section, and its version of Python."""
    dependencies = yaml.safe_load(path.read_text(encoding="utf-8"))["dependencies"]
    texts = [item for item in dependencies if isinstance(item, str)]
    (pip_section,) = (item["pip"] for item in dependencies if isinstance(item, dict))
    (python,) = (text for text in texts if text.startswith("python="))
    return parse_pins(pip_section), python.removeprefix("python=")


def rules_of(path, pattern=r"^ *rule\b.*:$"):
    return re.split(pattern, path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def test_environments_pin_the_versions_of_pyproject():
    """Without these pins pip would choose other versions of indirect requirements than
    uv.
    """
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pyproject = tomllib.loads(text)
    constraints = parse_pins(pyproject["tool"]["uv"]["constraint-dependencies"])
    required = parse_pins(pyproject["project"]["dependencies"])
    for name in ("mpmath", "platformdirs", "sympy"):
        required[name] = constraints[name]
    environment, python = read_environment(ROOT / "environment.yml")
    rules, rules_python = read_environment(RULES)
    assert environment == required
    expected = {
        name: version
        for name, version in environment.items()
        if name not in ONLY_OUTSIDE_RULES
    }
    assert rules == expected
    assert python == rules_python
    assert f">={python}" in pyproject["project"]["requires-python"]


def test_environments_have_the_channel_conda_forge_alone():
    """`nodefaults` is a channel for conda 26.7, and does not exist."""
    files = [
        path for path in ROOT.glob("*.y*ml") if "dependencies:" in path.read_text()
    ]
    files += ENVIRONMENTS.glob("*")
    assert len(files) == 4
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert yaml.safe_load(text)["channels"] == ["conda-forge"], path
        assert "nodefaults" not in text


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


def requirements_of(name):
    try:
        requirements = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return set()
    return {
        re.split(r"[\s<>=!~;\[(]", text, maxsplit=1)[0]
        for text in requirements
        if "extra" not in text
    }


def test_plan_needs_no_package_that_snakemake_does_not_bring():
    """A login node may have Snakemake alone."""
    brought = {"snakemake"}
    for _ in range(12):
        brought |= set().union(*map(requirements_of, brought))
    rules, _ = read_environment(RULES)
    modules = {"pyyaml": "yaml", "pillow": "PIL"}
    absent = {modules.get(name, name) for name in rules if name not in brought}
    assert {"numpy", "torch", "pandas", "scipy", "numba"} <= absent
    assert "yaml" not in absent
    command = [sys.executable, "-c", PLAN, str(ROOT), *sorted(absent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr


def test_sources_of_a_checkout_come_before_those_of_another(
    snakemake, tmp_path, monkeypatch
):
    """Two checkouts share an environment, and the other's package lies before the paths
    that Snakemake adds.
    """
    other_package = tmp_path / "other" / "dpfedbench"
    other_package.mkdir(parents=True)
    error = "raise RuntimeError('the other checkout')\n"
    (other_package / "__init__.py").write_text(error, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(other_package.parent))
    plan = snakemake("--dry-run", *SMOKE).stdout
    target = re.findall(r"output: (\S+config\.yaml)$", plan, flags=re.MULTILINE)[0]
    done = snakemake(target, *SMOKE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / target).is_file()


# A module's name where it differs from its distribution's, and modules that come with
# another pinned distribution.
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "PIL": "pillow",
    "llvmlite": "numba",
    "markupsafe": "jinja2",
    "pydantic_core": "pydantic",
}


def imported_by(path):
    """Return the third-party modules that a file imports, anywhere in it."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules.add(node.module.split(".")[0])
    return modules - set(sys.stdlib_module_names) - OWN_PACKAGES


def test_environment_of_rules_has_every_module_that_rules_import():
    """No rule imports dpwatch, or the module that shows histories in a tracker.
    Snakemake puts its own folder on a script's path.
    """
    pinned, _ = read_environment(RULES)
    sources = ROOT / "src"
    files = {*sources.rglob("*.py"), *(ROOT / "workflow" / "scripts").glob("*.py")}
    files -= set((sources / "dpwatch").rglob("*.py"))
    files.remove(sources / "dpfedbench" / "experiments" / "experiment_trackers.py")
    modules = set().union(*map(imported_by, files)) - {"snakemake"}
    needed = {DISTRIBUTIONS.get(module, module) for module in modules}
    assert len(needed) > 8
    assert needed <= set(pinned), needed - set(pinned)


@pytest.mark.parametrize("library", ["flower", "pfl"])
def test_environment_of_a_library_has_the_versions_of_the_project(library):
    """The packages of both may be on one path."""
    rules, python = read_environment(RULES)
    text = (ENVIRONMENTS / f"{library}.yaml").read_text(encoding="utf-8")
    dependencies = yaml.safe_load(text)["dependencies"]
    assert dependencies[:2] == [f"python={python}", "pip"]
    requirements = dependencies[2]["pip"]
    pins = parse_pins(pin for pin in requirements if ">=" not in pin)
    for shared in ("numpy", "scipy", "psutil", "pyyaml"):
        assert pins[shared] == rules[shared]


def test_rules_have_the_environment_and_a_script_that_exists():
    """Paths of `conda:` are relative to the file of the rule, and Snakemake looks them
    up only under --use-conda. Rules of the libraries may have one of their own.
    """
    scripts = 0
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in rules_of(path):
            if re.search(r"conda:\n\s+ENVIRONMENT\n", rule):
                assert path.name == "libraries.smk"
                continue
            (environment,) = re.findall(r'conda:\n\s+"(.*)"', rule)
            assert (path.parent / environment).resolve() == RULES
            if "    shell:" in rule:
                continue
            (script,) = re.findall(r'script:\n\s+"(.*)"', rule)
            assert (path.parent / script).is_file()
            scripts += 1
    assert scripts >= 9
