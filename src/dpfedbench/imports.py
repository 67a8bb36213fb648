"""The files that a piece of code depends on: those of dpfedbench and dpsum that it
imports, directly or not.

Imports are read from the text of the files, functions included. Nothing is run, so a
job's files are known before torch is loaded. Imports for type checking do not count. Of
a package that is imported for the sake of a module in it, what runs then counts and not
what its functions import. What a package finds by place (`pkgutil`) is all in it.
"""

import ast
import dataclasses
import functools
import hashlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

PACKAGE, _LIBRARY = Path(__file__).resolve().parent, "dpsum"
_LIBRARIES = (_LIBRARY, "dpkernels", "dpwatch")

_BESIDE, _ABOVE, _WHOLE = range(3)
"""What counts besides a file itself. `_BESIDE`: what it imports when it runs, and of
that the same. `_ABOVE`: that, and all that it imports in turn. `_WHOLE`: also what its
functions import, and all that this imports.
"""


@dataclasses.dataclass(frozen=True)
class _Module:
    """What a file imports at once, and what its functions do (`_reached`); and whether
    it finds others by place.
    """

    name: str
    at_once: tuple[tuple[Path, int], ...]
    later: tuple[tuple[Path, int], ...]
    finds: bool


def closure(
    *roots: Path,
    beside: Iterable[Path] = (),
    without: Collection[str] = (),
    apart: Collection[str] = (),
) -> list[Path]:
    """Some files and all of the two packages that they stand on; sorted.

    Args:
        roots: where to begin: modules of the packages, or scripts outside them.
        beside: further modules, of which what runs when they are imported counts, and
            not what functions import.
        without: names of modules that are left out, with what they import.
        apart: names of packages of which what they find by place is left out, where
            nothing else imports it.
    """
    _reached.cache_clear()  # there may be new files
    files: dict[Path, int] = {}
    waiting = [
        *((path, _WHOLE) for path in roots),
        *((path, _BESIDE) for path in beside),
    ]
    while waiting:
        path, how = waiting.pop()
        if files.get(path, -1) >= how:
            continue
        module = _module(path)
        if module.name in without:
            continue
        files[path] = how
        for reached in (
            (module.at_once, module.later) if how == _WHOLE else (module.at_once,)
        ):
            waiting += [
                (other, min(how, much) if how == _BESIDE else much)
                for other, much in reached
            ]
        if how == _WHOLE and module.finds and module.name not in apart:
            waiting += [(other, _WHOLE) for other in path.parent.glob("*.py")]
    return sorted(files)


def of_stage(script: Path, modules: Iterable[str]) -> list[Path]:
    """A script of the workflow and what it stands on, for runs whose methods and parts
    are in these modules; sorted.

    A test of a model needs what these say and what the model imports, and not what they
    import to train.
    """
    files = {name: path for name in modules if (path := file_of(name)) is not None}
    whole = [
        path
        for name, path in files.items()
        if script.stem not in _TESTS or name.startswith(_MODELS)
    ]
    apart = (f"{PACKAGE.name}.methods",)
    return closure(script, *whole, beside=files.values(), without=_OF_JOBS, apart=apart)


_TESTS = ("meta_test", "genotype")
_MODELS = f"{PACKAGE.name}.models."
_OF_JOBS = (
    *(f"{PACKAGE.name}.{name}" for name in ("jobs", "manifest", "warm")),
    "dpsum.progress",
)
"""Modules of how a job runs: no result depends on them."""


def file_of(module: str) -> Path | None:
    """The file of a module of our packages; None of any other."""
    for name in (PACKAGE.name, *_LIBRARIES):
        if f"{module}.".startswith(f"{name}."):
            folder = PACKAGE.with_name(name)
            place = folder.joinpath(*module.removeprefix(name).split(".")[1:])
            files = place.with_name(f"{place.name}.py"), place / "__init__.py"
            if file := next((file for file in files if file.is_file()), None):
                return file
    return None


def _inside(path: Path) -> Path | None:
    """Where a file would lie in the repository, below src; None where it is neither
    shipped nor one's own.
    """
    return path.relative_to(PACKAGE.parent) if within(path) else None


def within(path: Path) -> bool:
    """Whether a file lies in the folder of dpfedbench or dpsum."""
    return any(
        PACKAGE.with_name(name) in path.parents for name in (PACKAGE.name, *_LIBRARIES)
    )


def digest(paths: Iterable[Path]) -> str:
    """A hash of files, by the names that they have below the two packages, or by name
    alone.
    """
    return hashlib.sha256(
        b"".join(sorted(_line(*_state(path)) for path in paths))
    ).hexdigest()[:12]


@functools.cache
def _reached(name: str) -> tuple[tuple[Path, int], ...]:
    """The files that run where a name is imported, of a module or of something in one,
    and what of each counts.
    """
    parts, reached = name.split("."), list[tuple[Path, int]]()
    while parts:
        if (path := file_of(".".join(parts))) is not None:
            reached.append((path, _ABOVE if reached else _WHOLE))
        parts.pop()
    return tuple(reached)


def _called(path: Path) -> str:
    """The dotted name of a module."""
    parts = (_inside(path) or Path(path.stem)).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _state(path: Path) -> tuple[Path, int, int]:
    state = path.stat()
    return path, state.st_mtime_ns, state.st_size


@functools.cache
def _line(path: Path, changed: int, size: int) -> bytes:
    name = (_inside(path) or Path(path.name)).as_posix()
    return f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()


def _module(path: Path) -> _Module:
    return _read(*_state(path))


@functools.cache
def _read(path: Path, changed: int, size: int) -> _Module:
    """Read a file; once, until it is changed."""
    imported: tuple[set[str], set[str]] = set(), set()
    called = _called(path)
    inside = called.split(".") if path.name == "__init__.py" else called.split(".")[:-1]
    for node, later in _imports(ast.parse(path.read_bytes(), str(path)).body):
        if isinstance(node, ast.Import):
            imported[later].update(alias.name for alias in node.names)
        else:
            above = (
                ".".join(inside[: len(inside) - node.level + 1]) if node.level else ""
            )
            base = ".".join(filter(None, (above, node.module)))
            imported[later].update(f"{base}.{alias.name}" for alias in node.names)
    at_once, later_ones = (
        [file for name in sorted(names) for file in _reached(name)]
        for names in imported
    )
    finds = path.name == "__init__.py" and "pkgutil" in imported[0]
    return _Module(
        called, tuple(dict.fromkeys(at_once)), tuple(dict.fromkeys(later_ones)), finds
    )


def _imports(
    nodes: Iterable[ast.AST], later: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """All imports, and whether each is in a function; those for type checking left
    out.
    """
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, later
        elif isinstance(
            node, ast.stmt | ast.excepthandler | ast.match_case
        ):  # expressions import nothing
            below: Iterable[ast.AST] = ast.iter_child_nodes(node)
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith(
                "TYPE_CHECKING"
            ):
                below = node.orelse
            yield from _imports(
                below, later or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            )
