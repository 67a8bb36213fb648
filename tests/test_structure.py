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
    """Parse all files. The trees live as long as the tests of this file."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imported_modules(tree: ast.AST, modules: set[str]) -> set[str]:
    """Return the modules that a file imports anywhere, also in functions.

    Imports for type checking alone are left out: a part names the class of the methods
    that it serves, and a method imports its parts.
    """
    names = set()
    for node in run_nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                names.add(member if member in modules else node.module)
    return names & modules


def run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a file that run, without the body of `if TYPE_CHECKING`."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for node in child.orelse:
                yield from run_nodes(node)
        else:
            yield from run_nodes(child)


def find_cycles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Return import cycles. Each is cut at one import before the next is looked for."""
    cycles = []
    while True:
        try:
            graphlib.TopologicalSorter(edges).prepare()
            return cycles
        except graphlib.CycleError as error:
            cycle = error.args[1]
            cycles.append(set(cycle))
            # The second module of the cycle imports the first.
            edges = {**edges, cycle[1]: edges[cycle[1]] - {cycle[0]}}


def test_modules_form_no_import_cycle(trees: dict[Path, ast.Module]) -> None:
    modules = {module_name(path) for path in FILES}
    edges = {}
    for path, tree in trees.items():
        name = module_name(path)
        edges[name] = imported_modules(tree, modules) - {name}
    assert find_cycles(edges) == []


def test_find_cycles_finds_each_cycle() -> None:
    """One cycle of three modules beside a fourth, and two cycles that share a module."""
    one_cycle = {
        "a": {"b"},
        "b": {"c"},
        "c": {"a"},
        "d": {"a"},
    }
    assert find_cycles(one_cycle) == [{"a", "b", "c"}]
    two_cycles = {"a": {"b", "c"}, "b": {"a"}, "c": {"a"}}
    cycles = sorted(map(sorted, find_cycles(two_cycles)))
    assert cycles == [["a", "b"], ["a", "c"]]


def test_imported_modules_are_those_of_functions_and_not_of_types() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from x.y import Z
else:
    import x.v
def f():
    import x.w
"""
    modules = imported_modules(ast.parse(source), {"x.y", "x.v", "x.w", "x"})
    assert modules == {"x.v", "x.w"}
