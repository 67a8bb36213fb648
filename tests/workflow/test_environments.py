"""pyproject.toml, environment.yml and the rules' environment pin the same versions, and
the last suffices for rules.

No conda is called; `use_conda.py` makes the environment and a figure in it.
"""

import ast
import re
import sys
import tomllib

from tests.calls import ROOT
from tests.shipped import parsed
from tests.workflow.conftest import SMOKE

SRC = ROOT / "src"
RULES = ROOT / "workflow" / "envs" / "dpfedbench.yaml"
# Used at a terminal or by `snakemake --report` alone.
ONLY_OUTSIDE_RULES = {
    "snakemake",
    "snakemake-executor-plugin-slurm",
    "snakemake-executor-plugin-cluster-generic",
    "pygments",
    "platformdirs",
}
KERNELS = ROOT / "packages" / "dpkernels" / "src"
SOURCES = [SRC, *ROOT.glob("packages/*/src")]
OWN_PACKAGES = {path.name for folder in SOURCES for path in folder.iterdir()}


def parse_pins(requirements):
    """Return versions by name; every requirement has to be pinned with ==."""
    pins = dict(requirement.split("==") for requirement in requirements)
    assert all(pins.values())
    return pins


def read_environment(path):
    """Return the pins of an environment's pip section, and its version of Python."""
    dependencies = parsed(path)["dependencies"]
    texts = [item for item in dependencies if isinstance(item, str)]
    (pip_section,) = (item["pip"] for item in dependencies if isinstance(item, dict))
    (python,) = (text for text in texts if text.startswith("python="))
    return parse_pins(pip_section), python.removeprefix("python=")


def test_environments_pin_the_versions_of_pyproject():
    """Without these pins pip would choose other versions of indirect requirements than
    uv.
    """
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    constraints = parse_pins(pyproject["tool"]["uv"]["constraint-dependencies"])
    required = parse_pins(pyproject["project"]["dependencies"])
    for name in ("mpmath", "platformdirs"):
        required[name] = constraints[name]
    environment, python = read_environment(ROOT / "environment.yml")
    rules, rules_python = read_environment(RULES)
    assert environment == required
    assert rules.keys() == environment.keys() - ONLY_OUTSIDE_RULES
    assert rules.items() <= environment.items()
    assert python == rules_python
    assert f">={python}" in pyproject["project"]["requires-python"]


def test_sources_of_a_checkout_come_before_those_of_another(
    plan, snakemake, tmp_path, monkeypatch
):
    """Two checkouts share an environment, and the other's package lies before the paths
    that Snakemake adds.
    """
    other_package = tmp_path / "other" / "dpfedbench"
    other_package.mkdir(parents=True)
    error = "raise RuntimeError('the other checkout')\n"
    (other_package / "__init__.py").write_text(error, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(other_package.parent))
    target = re.search(r"output: (\S+config\.yaml)\n", plan(*SMOKE))[1]
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
    """Snakemake puts its own folder on a script's path."""
    pinned, _ = read_environment(RULES)
    files = {*SRC.rglob("*.py"), *KERNELS.rglob("*.py")}
    files |= {*(ROOT / "workflow" / "scripts").glob("*.py")}
    modules = set().union(*map(imported_by, files))
    modules = {name for name in modules if not name.startswith("snakemake")}
    needed = {DISTRIBUTIONS.get(module, module) for module in modules}
    assert len(needed) > 8
    assert needed <= set(pinned), needed - set(pinned)
