"""dpsum, with dploss, needs numpy and scipy alone: imports and wheels.

The wheel of dpkernels is built, too.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dpsum
from tests.dpsum.helpers import run_python

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = """
import importlib, pkgutil, sys

ALLOWED = sys.stdlib_module_names | set("numpy scipy {allowed}".split())


class Refuse:
    def find_spec(self, name, path=None, target=None):
        # The standard library keeps its build settings in a module that is named by the machine.
        if name.partition(".")[0] not in ALLOWED and not name.startswith("_sysconfigdata_"):
            raise ModuleNotFoundError(name + " is refused", name=name)


sys.meta_path.insert(0, Refuse())
import {package}

for info in pkgutil.walk_packages({package}.__path__, "{package}."):
    importlib.import_module(info.name)
print(*sys.modules)
"""
GAUSSIAN = """
import sys
from dpsum import Constant, Gaussian, Ledger, Mechanism, Poisson, account
print(*sys.modules)
"""
OTHER_NOISE = "correlated|factorisations|triangular|skellam|secure|importance"


@pytest.mark.parametrize(
    ("package", "allowed", "modules"),
    [
        ("dploss", "dploss", {"dploss.fine_brackets"}),
        ("dpsum", "dploss dpsum", {"dpsum.accounting.account", "dpsum.audit.bounds"}),
    ],
)
def test_package_imports_numpy_and_scipy_alone(package, allowed, modules):
    printed = run_python("-c", IMPORTS.format(package=package, allowed=allowed))
    assert modules <= set(printed.split())


def test_dpsum_loads_no_file_of_other_noise_for_the_gaussian_case():
    modules = run_python("-c", GAUSSIAN).split()
    assert {"dpsum.noise", "dpsum.mechanism", "dpsum.accounting.account"} < {*modules}
    ours = [name for name in modules if name.startswith("dp")]
    assert not re.findall(OTHER_NOISE, " ".join(ours))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build the wheels without a network: the build backend is in uv's cache."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on the path")
    folder = tmp_path_factory.mktemp("wheels")
    for name in ("dpsum", "dpkernels"):
        command = [uv, "build", "--wheel", "--offline", "--quiet", "--out-dir", folder]
        command.append(ROOT / "packages" / name)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "network was disabled" in done.stderr:
            pytest.skip("uv's cache does not have the build backend")
        assert done.returncode == 0, done.stderr
    return {path.name.partition("-")[0]: str(path) for path in folder.glob("*.whl")}


@pytest.mark.parametrize(
    ("wheel", "packages", "expected"),
    [
        ("dpsum", ("dploss", "dpsum"), {"numpy", "scipy"}),
        ("dpkernels", ("dpkernels",), {"numba", "numpy", "torch"}),
    ],
)
def test_wheel_has_its_packages_and_requirements(wheels, wheel, packages, expected):
    (built,) = importlib.metadata.distributions(path=[wheels[wheel]])
    source = ROOT / "packages" / wheel / "src"
    if wheel == "dpsum":
        source = ROOT / "src"
    assert {str(path) for path in built.files if ".dist-info" not in str(path)} == {
        path.relative_to(source).as_posix()
        for package in packages
        for path in (source / package).rglob("*")
        if path.suffix in (".py", ".json", ".md")
    }
    needed = [line for line in built.requires if "extra ==" not in line]
    assert {re.match(r"[\w-]+", line)[0] for line in needed} == expected


def test_wheel_of_dpsum_works_in_an_empty_folder(wheels, tmp_path):
    """All modules of dpsum are imported, and its version is that of the wheel."""
    target = str(tmp_path / "target")
    command = ["uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    command += ["--python", sys.executable, "--target", target]
    subprocess.run([*command, wheels["dpsum"]], check=True)
    imports = IMPORTS.format(package="dpsum", allowed="dploss dpsum")
    code = f"import sys\nsys.path.insert(0, {target!r})\n{imports}"
    code += f"\nassert dpsum.__file__.startswith({target!r})"
    printed = run_python("-I", "-c", code, cwd=tmp_path)
    assert "dpsum.accounting.account" in printed
    (built,) = importlib.metadata.distributions(path=[wheels["dpsum"]])
    assert built.version == dpsum.__version__
