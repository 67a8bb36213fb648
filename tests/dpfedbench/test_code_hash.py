"""The code hash of a rule, which follows the packages that the rule depends on."""

import importlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.config import plugin_sources
from dpfedbench.experiments import code_hash as hashing
from dpfedbench.experiments.code_hash import PACKAGES, SOURCES, code_hash, path_of
from dpfedbench.papers import read_run_file
from tests import finished_run

ROOT = Path(__file__).resolve().parents[2]
# Files on which no result depends. The plugins' own files are in every hash.
NO_RESULT = re.compile(
    r"dpfedbench/(errors|files|lazy|manifests|plugins|results_format)\.py"
    r"|dpsum/(files|progress|terminal|lazy)\.py|workflow_jobs/\w+\.py"
)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a tree of sources with one rule `account` that uses two of three packages."""
    for package in ("dpsum", "dpfedbench/parts", "dpfedbench/results"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "module.py").write_text("1")
    monkeypatch.setattr(hashing, "SOURCES", tmp_path)
    monkeypatch.setattr(hashing, "PACKAGES", {"account": ("dpsum", "dpfedbench/parts")})
    yield tmp_path
    hashing._hash_package.cache_clear()


def hash_again(*files: Path) -> str:
    hashing._hash_package.cache_clear()
    return code_hash("account", files)


def test_code_hash_follows_its_packages_and_files_alone(sources: Path) -> None:
    script = sources / "account.py"
    script.write_text("1")
    before = hash_again(script)
    (sources / "dpfedbench/results/module.py").write_text("2")
    (sources / "dpsum/__pycache__").mkdir()
    (sources / "dpsum/__pycache__/loop-1.py311.nbi").write_text("by numba")
    assert hash_again(script) == before
    changed = {before}
    (sources / "dpsum/sub").mkdir()
    files = ("dpsum/sub/new.py", "dpfedbench/parts/module.py", "dpsum/template.html")
    for path in (script, *(sources / file for file in files)):
        path.write_text("2")
        changed.add(hash_again(script))
    (sources / "dpsum/sub/new.py").rename(sources / "dpsum/sub/renamed.py")
    changed.add(hash_again(script))
    assert len(changed) == 6


def test_code_hash_follows_plugins_and_their_imports(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hash_again()
    (sources / "hashed_plugin.py").write_text("import hashed_table\n")
    (sources / "hashed_table.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(sources))
    plugin = importlib.import_module("hashed_plugin")
    monkeypatch.setattr(plugin_sources, "modules", lambda: [plugin])
    with_plugin = hash_again()
    (sources / "hashed_table.py").write_text("VALUE = 2\n")
    assert len({before, with_plugin, hash_again()}) == 3


def test_code_hash_table_has_the_cheap_rules_and_existing_packages() -> None:
    rules = "".join(path.read_text() for path in ROOT.glob("workflow/rules/*.smk"))
    assert set(re.findall(r'code_of\(\s*"(\w+)"', rules)) == set(PACKAGES)
    assert PACKAGES.keys().isdisjoint(("train", "prepare", "partition", "features"))
    for package in {package for packages in PACKAGES.values() for package in packages}:
        path = path_of(package)
        assert path is not None
        assert path.is_file() or (path / "__init__.py").is_file()


def test_code_hash_of_a_package_that_is_not_installed(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its installation changes the hash."""
    packages = {"account": ("dpsum", "separate_package")}
    monkeypatch.setattr(hashing, "PACKAGES", packages)
    monkeypatch.syspath_prepend(str(sources / "site"))
    before = hash_again()
    installed = sources / "site" / "separate_package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("1")
    importlib.invalidate_caches()
    after = hash_again()
    (installed / "__init__.py").write_text("2")
    assert len({before, after, hash_again()}) == 3


def watch_calls(action: Callable[[], Any]) -> set[str]:
    """Return the files of our packages of which a function is called."""
    called: set[str] = set()

    def watch(frame: Any, *_: Any) -> None:
        called.add(frame.f_code.co_filename)

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    folders = (SOURCES, ROOT / "packages" / "dpkernels" / "src")
    return {
        path.relative_to(folder).as_posix()
        for path in map(Path, called)
        for folder in folders
        if folder in path.parents
    }


@pytest.mark.parametrize("stage", ["meta_test", "account", "audit"])
def test_code_hash_table_has_the_packages_that_a_stage_calls(
    results_copy: Path, stage: str
) -> None:
    """Functions that run at import, or that read the configuration, are exempt."""
    run_stage = getattr(finished_run, stage)
    run_stage()  # The first call imports all modules.
    configuration = finished_run.RUN_FOLDER / "config.yaml"
    reading = watch_calls(lambda: read_run_file(configuration))
    called = watch_calls(run_stage)
    assert len(called) > 12
    packages = tuple(f"{package}/" for package in PACKAGES[stage])
    assert [
        name
        for name in called - reading
        if not f"{name}/".startswith(packages) and not NO_RESULT.fullmatch(name)
    ] == []
