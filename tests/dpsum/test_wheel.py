"""The wheels of dpsum (with dploss) and dpwatch need numpy and scipy alone."""

import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.dpsum.test_light import IMPORTS
from tests.dpwatch.test_check_your_own import SECTIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build both wheels without a network: the build backend is in uv's cache."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on the path")
    folder = tmp_path_factory.mktemp("wheels")
    for name in ("dpsum", "dpwatch"):
        command = [uv, "build", "--wheel", "--offline", "--quiet", "--out-dir", folder]
        command.append(ROOT / "packages" / name)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "network was disabled" in done.stderr:
            pytest.skip("uv's cache does not have the build backend")
        assert done.returncode == 0, done.stderr
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


def read_requirements(wheel):
    """Return the `Requires-Dist` lines of a wheel."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith("METADATA"))
        metadata = Parser().parsestr(content.read(name).decode())
    return metadata.get_all("Requires-Dist") or []


def name_of(requirement):
    return re.split(r"[<>=\[; ]", requirement)[0].lower()


@pytest.mark.parametrize(
    ("wheel", "packages"), [("dpsum", ("dploss", "dpsum")), ("dpwatch", ("dpwatch",))]
)
def test_wheel_has_its_packages_and_needs_numpy_and_scipy(wheels, wheel, packages):
    with zipfile.ZipFile(wheels[wheel]) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(ROOT / "src").as_posix()
        for package in packages
        for path in (ROOT / "src" / package).rglob("*")
        if path.suffix in (".py", ".json", ".md")
    }
    assert names == expected
    required = {
        name_of(requirement)
        for requirement in read_requirements(wheels[wheel])
        if "extra ==" not in requirement
    }
    assert required == {"numpy", "scipy"} | ({"dpsum"} - {wheel})


def test_wheels_work_in_an_empty_folder(wheels, tmp_path):
    """All modules of dpsum are imported, and the loop of "Check your own" runs."""
    target = tmp_path / "target"
    command = ["uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    command += ["--python", sys.executable, "--target", str(target)]
    subprocess.run([*command, *map(str, wheels.values())], check=True)
    (_, loop), *_ = SECTIONS["A loop of one's own"]
    imports = IMPORTS.replace('"dpsum"}', '"dpsum", "dpwatch"}')
    code = (
        f"import sys\nsys.path.insert(0, {str(target)!r})\n{imports}\n"
        f"assert dpsum.__file__.startswith({str(target)!r})\n{loop}"
    )
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "dpsum.accounting.account" in done.stdout
    assert "proven: 1.075 to 1.076\nnot refuted" in done.stdout
    assert (tmp_path / "own.jsonl").read_text(encoding="utf-8").count("\n") == 20
