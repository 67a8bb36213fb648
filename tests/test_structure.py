"""The modules form no import cycle."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"


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


def test_modules_form_no_import_cycle() -> None:
    trees = {}
    for path in SRC.rglob("*.py"):
        parts = path.relative_to(SRC).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    edges = {
        name: imported_modules(tree, set(trees)) - {name}
        for name, tree in trees.items()
    }
    graphlib.TopologicalSorter(edges).prepare()
