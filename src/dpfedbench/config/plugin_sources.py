"""Hashes of the source files of plugins, for the identity of runs, clients and data
sets.

A class is a plugin's if it is in none of dpfedbench's packages. The files that a
plugin's file imports are hashed too, if they are in the same package or, for a plugin
in the working folder, in that folder: an edited helper changes results as well.
"""

import ast
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from dpfedbench.plugins import PACKAGES, is_ours, modules


def digest_classes(classes: Iterable[type]) -> str:
    """Hash the files of classes, and of their bases, that are not dpfedbench's.

    A base that extends no class of dpfedbench (pydantic's, Python's) is not hashed.

    Returns:
        Twelve hexadecimal digits, or an empty text where all classes are dpfedbench's.
    """
    plugin_classes = {
        base
        for cls in classes
        for base in cls.__mro__
        if not is_ours(base) and any(map(is_ours, base.__mro__))
    }
    return _digest((cls.__module__, inspect.getfile(cls)) for cls in plugin_classes)


def digest_module(module: ModuleType) -> str:
    """Hash the file of a module; an empty text for one of dpfedbench's."""
    if is_ours(module):
        return ""
    return _digest([(module.__name__, inspect.getfile(module))])


def plugin_files() -> set[Path]:
    """Return the files of all plugins, and the files that they import."""
    return _files(
        (module.__name__, module.__file__) for module in modules() if module.__file__
    )


def _files(modules: Iterable[tuple[str, str]]) -> set[Path]:
    """Return the files of modules, given by name and file, and what they import."""
    files: set[Path] = set()
    waiting = [(name, Path(file)) for name, file in modules]
    while waiting:
        name, file = waiting.pop()
        if file not in files:
            files.add(file)
            waiting += _imported(name, file)
    return files


def _digest(modules: Iterable[tuple[str, str]]) -> str:
    """Hash modules, given by name and file, and the files that they import."""
    files = _files(modules)
    if not files:
        return ""
    lines = [
        f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n"
        for file in files
    ]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:12]


def _imported(module: str, file: Path) -> Iterator[tuple[str, Path]]:
    """Yield the plugin's modules that a module imports, by name and file.

    Import statements are found in the source text, including those in functions.
    """
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    depth = len(package.split(".")) if package else 0
    root = file.parents[depth]
    is_installed = root.name.endswith("-packages")
    for name in _names_imported(file.read_bytes(), package):
        top = name.partition(".")[0]
        if top in PACKAGES or top in sys.stdlib_module_names:
            continue
        if is_installed and top != module.partition(".")[0]:
            continue
        path = root.joinpath(*name.split("."))
        for candidate in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if candidate.is_file():
                yield name, candidate


@functools.cache
def _names_imported(source: bytes, package: str) -> list[str]:
    """Return the dotted names that a file may import; some name no module.

    Every rule asks for them, so that each text is parsed once.
    """
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(relative, package)
            names.append(base)
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names
