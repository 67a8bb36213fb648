"""dpsum is a wheel of its own, which holds all of it and needs numpy and scipy
alone.
"""

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.dpsum.test_check_your_own import SECTIONS
from tests.dpsum.test_light import IMPORTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network: setting up the environment left the build
    backend in uv's cache.
    """
    uv, folder = shutil.which("uv"), tmp_path_factory.mktemp("wheel")
    if uv is None:
        pytest.skip("uv is not on the path")
    command = [
        uv,
        "build",
        "--wheel",
        "--offline",
        "--quiet",
        "--out-dir",
        str(folder),
        str(ROOT / "packages/dpsum"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "network was disabled" in done.stderr:
        pytest.skip(
            "the build backend is not in uv's cache, and the tests use no network"
        )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("dpsum-*.whl")
    return built


def test_it_holds_dpsum_and_asks_for_numpy_and_scipy(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (metadata,) = (
            content.read(name).decode() for name in names if name.endswith("METADATA")
        )
    wanted = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/dpsum").rglob("*.*")
    }
    wanted = {name for name in wanted if name.endswith((".py", ".json"))}
    assert {name for name in names if ".dist-info/" not in name} == wanted
    said = Parser().parsestr(metadata)
    needed = said.get_all("Requires-Dist") or []
    assert {re.split(r"[<>=]", one)[0] for one in needed if "extra ==" not in one} == {
        "numpy",
        "scipy",
    }


def test_every_adapter_has_an_extra(wheel: Path) -> None:
    """What an adapter imports beside dpsum and its needs, some extra brings; torch
    comes with Opacus.
    """
    with zipfile.ZipFile(wheel) as content:
        (metadata,) = (
            content.read(name).decode()
            for name in content.namelist()
            if name.endswith("METADATA")
        )
    needed = Parser().parsestr(metadata).get_all("Requires-Dist") or []
    brought = {re.split(r"[<>=\[;]", one)[0].strip().lower() for one in needed} | {
        "torch"
    }
    known, own = packages_distributions(), sys.stdlib_module_names | {"dpsum"}
    for path in (ROOT / "src/dpsum/adapters").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = (
                [each.name for each in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            named += (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            for module in {name.partition(".")[0] for name in named} - own:
                assert {one.lower() for one in known.get(module, [module])} & brought, (
                    path.name,
                    module,
                )


def test_it_works_with_numpy_and_scipy_alone(wheel: Path, tmp_path: Path) -> None:
    """Installed into an empty folder: all its modules are imported, and a loop of one's
    own runs as the page has it.
    """
    target, uv = tmp_path / "target", shutil.which("uv")
    assert uv is not None
    command = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        sys.executable,
    ]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True)
    (_, loop), *_ = SECTIONS["A loop of one's own"]
    used = (
        f"import sys\nsys.path.insert(0, {str(target)!r})\n{IMPORTS}\nassert"
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
