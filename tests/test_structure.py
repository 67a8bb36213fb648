"""The modules form no import cycle."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
FILES = sorted(
    path
    for name in ("dpfedbench", "dpkernels", "dpsum", "dpwatch", "workflow_jobs")
    for path in (SRC / name).rglob("*.py")
)


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """All files, parsed by the process that has these tests, and kept no longer than
    they take.
    """
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def called(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def imports(tree: ast.AST, modules: set[str]) -> set[str]:
    """Return the modules that a file imports anywhere, also in functions.

    Imports for type checking alone are left out: a part names the class of the methods
    that it serves, and a method imports its parts.
    """
    found = set()
    for node in _run_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in named}
    return found & modules


def _run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a file that run, without the body of `if TYPE_CHECKING`."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(
            child.test
        )
        if not for_types:
            yield from _run_nodes(child)
            continue
        for other in child.orelse:
            yield from _run_nodes(other)


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """One circle after another, each taken apart at one of its imports."""
    found = []
    while True:
        try:
            graphlib.TopologicalSorter(edges).prepare()
            return found
        except graphlib.CycleError as error:
            circle = error.args[1]
            found.append(set(circle))
            # Each of the circle is imported by the next.
            edges = {**edges, circle[1]: edges[circle[1]] - {circle[0]}}


def test_no_two_files_import_each_other(trees: dict[Path, ast.Module]) -> None:
    modules = {called(path) for path in FILES}
    edges = {
        called(path): imports(tree, modules) - {called(path)}
        for path, tree in trees.items()
    }
    assert circles(edges) == []


def test_a_circle_is_found() -> None:
    """a -> b -> c -> a, and d beside it; two circles that share a file."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [
        {"a", "b", "c"}
    ]
    assert sorted(map(sorted, circles({"a": {"b", "c"}, "b": {"a"}, "c": {"a"}}))) == [
        ["a", "b"],
        ["a", "c"],
    ]
    source = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from x.y import"
        " Z\nelse:\n    import x.v\ndef f():\n    import x.w\n"
    )
    assert imports(ast.parse(source), {"x.y", "x.v", "x.w", "x"}) == {"x.v", "x.w"}
