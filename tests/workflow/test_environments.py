"""pyproject.toml, environment.yml and the rules' environment pin the same versions, and
the last suffices for rules.

No conda is called: this is what can be checked without one. `use_conda.py` makes the
environment and a figure in it.
"""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import site
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


def test_a_plan_needs_nothing_but_snakemake() -> None:
    """As on a login node that has Snakemake alone: no package that Snakemake does not
    bring with it.

    `use_conda.py` calls the workflow from such an environment.
    """
    brought = {"snakemake"}
    for _ in range(12):  # what Snakemake requires, and what that requires
        found = (
            importlib.metadata.requires(name) or []
            for name in brought
            if _installed(name)
        )
        brought |= {
            re.split(r"[\s<>=!~;\[(]", text, maxsplit=1)[0]
            for texts in found
            for text in texts
            if "extra" not in text
        }
    rules, _ = conda(ROOT / "workflow" / "envs" / "dpfedbench.yaml")
    modules = {"pyyaml": "yaml", "pillow": "PIL"}
    absent = {modules.get(name, name) for name in rules if name not in brought}
    assert {
        "numpy",
        "torch",
        "pandas",
        "scipy",
        "numba",
    } <= absent and "yaml" not in absent
    code = (
        f"import sys, yaml\nsys.modules |= dict.fromkeys({sorted(absent)!r})\nfrom"
        " pathlib import Path\nfrom dpfedbench.experiments.configuration import"
        " Configuration, overlaid\nfrom dpfedbench.experiments.datasets import"
        " known_datasets\nfrom dpfedbench.experiments.expand import make_plan\nimport"
        " dpfedbench.data\nimport workflow_jobs.cluster, workflow_jobs.jobs,"
        " dpfedbench.results.format, dpfedbench.experiments.targets\nroot ="
        f" Path({str(ROOT)!r})\nfiles = [root / 'config' / 'config.yaml',"
        " *root.glob('config/experiments/*.yaml')]\nown = {'mine': {'reader':"
        " 'image-folder', 'options': {'folder': 'x', 'size': 28, 'channels':"
        " 1}}}\nread = [yaml.safe_load(file.read_text(encoding='utf-8')) for file"
        " in files]\nconfiguration = Configuration.read(overlaid(*read, {'datasets':"
        " own}))\nfound = known_datasets(dpfedbench.data.DATASETS_TABLE,"
        " configuration)\nprint('mine' in found, len(make_plan(configuration,"
        " datasets=found).private_runs()) > 10)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
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


def test_pytest_finds_the_package_where_it_is_not_installed() -> None:
    """As in the environment of environment.yml: -S reads no .pth, so what is installed
    here is not found.
    """
    code = (
        f"import sys; sys.path += {site.getsitepackages()!r}; import pytest;"
        " sys.exit(pytest.main(sys.argv[1:]))"
    )
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [
        sys.executable,
        "-S",
        "-c",
        code,
        "-p",
        "no:cacheprovider",
        "tests/dpfedbench/test_files.py",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=kept, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_scripts_find_the_package_where_it_is_not_installed(
    snakemake: Call, tmp_path: Path
) -> None:
    """Under --use-conda src/ has to come from the Snakefile: Snakemake hands its own
    search path on to scripts.
    """
    copy = tmp_path / "copy"
    for name in ("workflow", "config", "profiles", "src"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "Snakefile", copy)
    told = (
        "import json, pathlib,"
        " sys\npathlib.Path(snakemake.output[0]).write_text(json.dumps(sys.path))\n"
    )
    (copy / "workflow" / "scripts" / "configure.py").write_text(told, encoding="utf-8")
    plan = snakemake("--dry-run", *SMOKE, root=copy, directory=copy).stdout
    target = re.findall(r"output: (\S+config\.yaml)$", plan, flags=re.M)[0]
    done = snakemake(target, *SMOKE, root=copy, directory=copy)
    assert done.returncode == 0, done.stderr
    paths = json.loads((copy / target).read_text(encoding="utf-8"))
    assert str(copy / "src") in paths
    # With that path, and the environment's packages but no installed dpfedbench (-S
    # reads no .pth), each script loads.
    load = (
        f"import sys; sys.path += {[*site.getsitepackages(), str(ROOT / 'src')]!r};"
        " import runpy\n"
    )
    load += (
        "for path in sys.argv[1:]: runpy.run_path(path)\nimport dpfedbench;"
        " print(dpfedbench.__file__)"
    )
    scripts = map(str, sorted((ROOT / "workflow" / "scripts").glob("*.py")))
    alone = subprocess.run(
        [sys.executable, "-S", "-c", load, *scripts],
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.strip() == str(ROOT / "src" / "dpfedbench" / "__init__.py")


def test_the_container_file_is_the_set_up_of_the_readme() -> None:
    """Its commands, and that what it copies and leaves out is right; the image itself
    is not built by the tests.
    """
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    steps = [
        line.split(None, 1)
        for line in text.splitlines()
        if line and not line.startswith("#")
    ]
    runs = " && ".join(words for kind, words in steps if kind == "RUN").split(" && ")
    # The README: `pip install uv && uv run ...`; the gate: `uv sync` with the pins of
    # pyproject.toml.
    assert "pip install --no-cache-dir uv" in runs and "uv sync --no-cache" in runs
    assert "uv sync" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (base,) = (words for kind, words in steps if kind == "ARG")
    release = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))[
        "dependencies"
    ][0]
    assert base == f"BASE=docker.io/library/{release.replace('=', ':')}-slim"
    assert [words for kind, words in steps if kind == "COPY"] == [". ."]
    # What git does not keep stays outside, and nothing that it keeps; the clone itself
    # says the revision.
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").split()
    assert {".venv", "results", "uv.lock", ".snakemake"} <= set(
        ignored
    ) and ".git" not in ignored
    listed = ["git", "ls-files", "--", *ignored[:4]]
    kept = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not kept.stdout.split()
