"""No modules import one another in a circle, imports under TYPE_CHECKING included."""

from collections.abc import Iterator

import grimp

PACKAGES = ("dpfedbench", "dploss", "dpsum", "drawnsets", "workflow_jobs")


def test_modules_of_src_import_one_another_in_no_circle() -> None:
    graph = grimp.build_graph(
        *PACKAGES, exclude_type_checking_imports=False, cache_dir=None
    )
    imports = {
        module: graph.find_modules_directly_imported_by(module)
        for module in graph.modules
    }
    assert list(circles(imports)) == []


def test_circles_finds_a_circle_and_what_leads_to_it_is_none() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}
    assert list(circles(imports)) == [["b", "c"]]


def circles(imports: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield the modules of each circle, sorted: all that reach one another."""
    reached = {module: reachable(module, imports) for module in imports}
    yielded = set[str]()
    for module in sorted(imports):
        members = [
            other for other in reached[module] if module in reached.get(other, ())
        ]
        if members and module not in yielded:
            yielded.update(members)
            yield sorted(members)


def reachable(module: str, imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that a module imports, directly or through others."""
    reached = set[str]()
    waiting = [module]
    while waiting:
        new = imports.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached
