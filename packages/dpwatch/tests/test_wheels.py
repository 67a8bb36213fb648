"""The wheel of dpwatch: its files, its requirements, and its use beside that of dpsum."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_check_your_own import SECTIONS

import dpsum
import dpwatch

PACKAGE = Path(__file__).resolve().parents[1]
LOOP = """
import importlib.abc, sys

sys.path.insert(0, {target!r})
ALLOWED = sys.stdlib_module_names | {{"numpy", "scipy", "dploss", "dpsum", "dpwatch"}}


class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        # The standard library keeps its build settings in a module that is named by the machine.
        if name.partition(".")[0] not in ALLOWED and not name.startswith("_sysconfigdata_"):
            raise ModuleNotFoundError(name + " is refused", name=name)


sys.meta_path.insert(0, Refuse())
{loop}
assert dpsum.__file__.startswith({target!r})
assert dpwatch.__file__.startswith({target!r})
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build both wheels without a network: the build backend is in uv's cache."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on the path")
    folder = tmp_path_factory.mktemp("wheels")
    for name in ("dpsum", "dpwatch"):
        command = [uv, "build", "--wheel", "--offline", "--quiet", "--out-dir", folder]
        command.append(PACKAGE.parent / name)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "network was disabled" in done.stderr:
            pytest.skip("uv's cache does not have the build backend")
        assert done.returncode == 0, done.stderr
    return {path.name.partition("-")[0]: str(path) for path in folder.glob("*.whl")}


def test_wheel_has_its_files_and_requires_dpsum_by_version(wheels):
    (built,) = importlib.metadata.distributions(path=[wheels["dpwatch"]])
    source = PACKAGE / "src"
    assert {str(path) for path in built.files if ".dist-info" not in str(path)} == {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.suffix in (".py", ".json", ".html")
    }
    assert built.version == dpwatch.__version__
    needed = [line for line in built.requires if "extra ==" not in line]
    names = {re.match(r"[\w-]+", line)[0] for line in needed}
    assert names == {"numpy", "scipy", "dpsum"}
    # The requirement of dpsum names the minor version of this checkout.
    (requirement,) = (line for line in needed if line.startswith("dpsum"))
    major, minor = map(int, dpsum.__version__.split(".")[:2])
    assert requirement == f"dpsum<{major}.{minor + 1},>={major}.{minor}"
    (command,) = built.entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("dpwatch", "dpwatch.__main__:main")


def test_wheels_run_the_loop_of_the_page_in_an_empty_folder(wheels, tmp_path):
    target = str(tmp_path / "target")
    command = ["uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    command += ["--python", sys.executable, "--target", target]
    subprocess.run([*command, wheels["dpsum"], wheels["dpwatch"]], check=True)
    (_, loop), *_ = SECTIONS["A loop of one's own"]
    code = LOOP.format(target=target, loop=loop)
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "proven: 1.075 to 1.076\nnot refuted" in done.stdout
    assert (tmp_path / "own.jsonl").read_text(encoding="utf-8").count("\n") == 20
