"""pyproject.toml, environment.yml and the rules' environment pin the same versions, and the last suffices for rules.

No conda is called: this is what can be checked without one.
"""

import ast
import json
import re
import shutil
import site
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
Call = Callable[..., subprocess.CompletedProcess[str]]
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


# A module's name where it is not its distribution's, and what comes with another one that is pinned.
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "PIL": "pillow",
    "dp_accounting": "dp-accounting",
    "llvmlite": "numba",
    "markupsafe": "jinja2",
}


def imported(path: Path) -> set[str]:
    """The third-party modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        found |= {name.split(".")[0] for name in names}
    return found - set(sys.stdlib_module_names) - {"dpfedbench"}


def test_the_rules_environment_has_all_that_the_rules_import() -> None:
    """What --use-conda makes holds neither Snakemake nor this package, only what is pinned there."""
    pinned, _ = conda(ROOT / "workflow" / "envs" / "dpfedbench.yaml")
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "workflow" / "scripts").glob("*.py")]
    needed = {DISTRIBUTIONS.get(name, name) for path in files for name in imported(path)}
    assert len(needed) > 8 and needed <= set(pinned), needed - set(pinned)


def test_every_rule_has_that_environment() -> None:
    """Paths of `conda:` are relative to the file of the rule, and Snakemake looks them up only under --use-conda."""
    count = 0
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in re.split(r"^ *rule\b.*:$", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
            (environment,) = re.findall(r'conda:\n\s+"(.*)"', rule)
            assert (path.parent / environment).resolve() == ROOT / "workflow" / "envs" / "dpfedbench.yaml"
            if "    shell:" in rule:
                continue
            (script,) = re.findall(r'script:\n\s+"(.*)"', rule)
            assert (path.parent / script).is_file()
            count += 1
    assert count >= 9


def test_scripts_find_the_package_where_it_is_not_installed(snakemake: Call, tmp_path: Path) -> None:
    """Under --use-conda src/ has to come from the Snakefile: Snakemake hands its own search path on to scripts."""
    copy = tmp_path / "copy"
    for name in ("workflow", "config", "profiles", "src"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", copy)
    told = "import json, pathlib, sys\npathlib.Path(snakemake.output[0]).write_text(json.dumps(sys.path))\n"
    (copy / "workflow" / "scripts" / "configure.py").write_text(told, encoding="utf-8")
    plan = snakemake("--dry-run", root=copy, directory=copy).stdout
    target = re.findall(r"output: (\S+config\.yaml)$", plan, flags=re.M)[0]
    done = snakemake(target, root=copy, directory=copy)
    assert done.returncode == 0, done.stderr
    paths = json.loads((copy / target).read_text(encoding="utf-8"))
    assert str(copy / "src") in paths
    # With that path, and the environment's packages but no installed dpfedbench (-S reads no .pth), each script loads.
    load = f"import sys; sys.path += {[*site.getsitepackages(), str(ROOT / 'src')]!r}; import runpy\n"
    load += "for path in sys.argv[1:]: runpy.run_path(path)\nimport dpfedbench; print(dpfedbench.__file__)"
    scripts = map(str, sorted((ROOT / "workflow" / "scripts").glob("*.py")))
    alone = subprocess.run([sys.executable, "-S", "-c", load, *scripts], capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.strip() == str(ROOT / "src" / "dpfedbench" / "__init__.py")
