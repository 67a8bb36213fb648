"""dpsum and dpwatch are wheels of their own, which need numpy and scipy alone."""

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.dpsum.test_light import IMPORTS
from tests.dpwatch.test_check_your_own import SECTIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=["dpsum", "dpwatch"])
def wheel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The wheel of one package."""
    return build(request.param, tmp_path_factory)


def build(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build `packages/NAME` without a network: the build backend is in uv's cache."""
    uv = shutil.which("uv")
    folder = tmp_path_factory.mktemp("wheel")
    if uv is None:
        pytest.skip("uv is not on the path")
    command = [uv, "build", "--wheel", "--offline", "--quiet", "--out-dir"]
    done = subprocess.run(
        [*command, str(folder), str(ROOT / "packages" / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "network was disabled" in done.stderr:
        pytest.skip(
            "the build backend is not in uv's cache, and the tests use no network"
        )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob(f"{name}-*.whl")
    return built


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith("METADATA"))
        return Parser().parsestr(content.read(name).decode())


def name_of(requirement: str) -> str:
    return re.split(r"[<>=\[; ]", requirement)[0].lower()


def test_wheel_holds_its_package_and_needs_numpy_and_scipy(wheel: Path) -> None:
    package = wheel.name.partition("-")[0]
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    expected = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / package).rglob("*")
        if path.suffix in (".py", ".json", ".md")
    }
    assert {name for name in names if ".dist-info/" not in name} == expected
    needs = {
        name_of(requirement)
        for requirement in metadata_of(wheel).get_all("Requires-Dist") or []
        if "extra ==" not in requirement
    }
    assert needs == {"numpy", "scipy"} | ({"dpsum"} - {package})


def test_every_adapter_has_an_extra(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Some extra brings each library that an adapter imports; Opacus brings torch."""
    requirements = metadata_of(build("dpwatch", tmp_path_factory)).get_all(
        "Requires-Dist"
    )
    brought = {name_of(requirement) for requirement in requirements or []} | {"torch"}
    distributions = packages_distributions()
    own = sys.stdlib_module_names | {"dpsum", "dpwatch"}
    for path in (ROOT / "src/dpwatch/adapters").glob("*.py"):
        for module in imported_by(path) - own:
            names = {name.lower() for name in distributions.get(module, [module])}
            assert names & brought, (path.name, module)


def imported_by(path: Path) -> set[str]:
    """The top-level packages that a file imports."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
    return {module.partition(".")[0] for module in modules}


def test_wheels_work_with_numpy_and_scipy_alone(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both are installed into an empty folder. All modules of dpsum are imported, and
    the loop of the page "Check your own" runs.
    """
    target = tmp_path / "target"
    wheels = [str(build(name, tmp_path_factory)) for name in ("dpsum", "dpwatch")]
    command = ["uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    command += ["--python", sys.executable, "--target", str(target)]
    subprocess.run([*command, *wheels], check=True)
    (_, loop), *_ = SECTIONS["A loop of one's own"]
    imports = IMPORTS.replace('"dpsum"}', '"dpsum", "dpwatch"}')
    used = (
        f"import sys\nsys.path.insert(0, {str(target)!r})\n{imports}\nassert"
        f" dpsum.__file__.startswith({str(target)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{used}\n{loop}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "dpsum.accounting.account" in done.stdout
        and "holds: 1.075 to 1.076\nnot refuted" in done.stdout
    )
    assert (tmp_path / "own.jsonl").read_text(encoding="utf-8").count("\n") == 20
