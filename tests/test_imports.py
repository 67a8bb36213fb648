"""Which files a piece of code stands on, by its imports."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpfedbench import imports
from dpfedbench.imports import closure, digest
from tests.federation.conftest import federation, silos  # noqa: F401
from tests.test_integrity import finished, there  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
Write = Callable[[str, str], Path]

EAGER, LAZY, TYPES = (
    "from pkg import b",
    "def f():\n    from pkg.c import x",
    "if TYPE_CHECKING:\n    import pkg.d",
)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A package of the test's own, to which modules are written."""
    monkeypatch.setattr(imports, "PACKAGE", tmp_path / "pkg")

    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    for name in ("__init__", "a", "b", "c", "d", "sub/__init__", "sub/e", "sub/f"):
        put(f"pkg/{name}.py", "")
    return put


def names(found: list[Path]) -> set[str]:
    return {
        path.relative_to(imports.PACKAGE).with_suffix("").as_posix()
        for path in found
        if "pkg" in path.parts
    }


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("import os, pkg.b", {"__init__", "b"}),
        ("from pkg import b as other", {"__init__", "b"}),
        ("from pkg.sub.e import anything", {"__init__", "sub/__init__", "sub/e"}),
        ("from pkg.sub import *", {"__init__", "sub/__init__"}),
        (LAZY, {"__init__", "c"}),
        (
            "class A:\n  async def f(self):\n    with x:\n      import pkg.c",
            {"__init__", "c"},
        ),
        (
            "try:\n    import pkg.c\nexcept ImportError:\n    import pkg.d",
            {"__init__", "c", "d"},
        ),
        (TYPES, set()),
        (
            (
                "import typing\nif typing.TYPE_CHECKING:\n    import pkg.d\nelse:\n   "
                " import pkg.c"
            ),
            {"__init__", "c"},
        ),
        ("'import pkg.b'  # import pkg.c", set()),
        ("import pkgs.b\nfrom pk import g", set()),
    ],
)
def test_what_a_text_imports(write: Write, text: str, wanted: set[str]) -> None:
    assert names(closure(write("script.py", text))) == wanted


def test_imports_of_imports_count_also_relative_ones_and_circles(write: Write) -> None:
    write("pkg/b.py", "from .sub import e")
    write("pkg/sub/e.py", "from . import f\nfrom ..c import x")
    write("pkg/c.py", "import pkg.b")
    found = closure(write("script.py", "import pkg.b"))
    assert names(found) == {"__init__", "b", "c", "sub/__init__", "sub/e", "sub/f"}
    assert [path.name for path in found if "pkg" not in path.parts] == ["script.py"]
    assert names(closure(found[-1], without=("pkg.b",))) == {"__init__"}


def test_a_package_above_counts_by_what_runs_when_it_is_imported(write: Write) -> None:
    """The package's functions are not called for the sake of a module in it; where the
    package is meant, they are.
    """
    write("pkg/sub/__init__.py", f"{EAGER}\n{LAZY}")
    assert names(closure(write("script.py", "import pkg.sub.e"))) == {
        "__init__",
        "sub/__init__",
        "sub/e",
        "b",
    }
    assert names(closure(write("script.py", "from pkg.sub import f"))) == {
        "__init__",
        "sub/__init__",
        "sub/f",
        "b",
    }
    assert names(closure(write("script.py", "import pkg.sub.f, pkg.sub"))) >= {
        "c",
        "sub/f",
    }


def test_of_what_is_beside_counts_what_runs_when_it_is_imported(write: Write) -> None:
    beside = write("pkg/d.py", f"{EAGER}\n{LAZY}")
    write("pkg/b.py", "import pkg.sub.e\ndef f():\n    import pkg.sub.f")
    script = write("script.py", "import pkg.a")
    assert names(closure(script, beside=[beside])) == {
        "__init__",
        "a",
        "b",
        "d",
        "sub/__init__",
        "sub/e",
    }
    assert names(closure(script, beside, beside=[beside])) >= {"c", "sub/f"}


def test_what_a_package_finds_by_place_is_in_it_unless_it_is_taken_apart(
    write: Write,
) -> None:
    write("pkg/sub/__init__.py", "import pkgutil")
    script = write("script.py", "from pkg.sub import found")
    assert names(closure(script)) == {"__init__", "sub/__init__", "sub/e", "sub/f"}
    assert names(closure(script, apart=("pkg.sub",))) == {"__init__", "sub/__init__"}


def test_a_digest_is_of_names_and_texts(write: Write) -> None:
    one, two = write("pkg/b.py", "1"), write("pkg/c.py", "2")
    before = digest([one, two])
    assert digest([two, one]) == before and len(before) == 12
    write("pkg/c.py", "3")
    assert digest([one, two]) != before
    write("pkg/c.py", "2")
    assert digest([one, two]) == before
    write("pkg/b.py", "2"), write("pkg/c.py", "1")
    assert digest([one, two]) != before


@pytest.mark.parametrize("stage", ["meta_test", "account", "audit"])
def test_every_function_that_a_stage_calls_is_in_its_code(
    there: Path,  # noqa: F811
    stage: str,
) -> None:
    """Seen while it runs, as a profiler does; but those of jobs, and what is called
    while modules are imported.
    """
    import tests.test_integrity as runs

    getattr(runs, stage)()  # so that everything is imported
    called: set[Path] = set()

    def see(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            called.add(Path(frame.f_code.co_filename))

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        getattr(runs, stage)()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    ran = {path for path in called if imports.PACKAGE in path.parents}
    of_jobs = {
        imports.PACKAGE / f"{name}.py"
        for name in ("jobs", "manifest", "progress", "warm")
    }
    found = set(
        imports.of_stage(
            ROOT / "workflow" / "scripts" / f"{stage}.py", runs.RUN.modules
        )
    )
    assert len(ran) > 12 and ran - of_jobs <= found, sorted(
        path.name for path in ran - found
    )
