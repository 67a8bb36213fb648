"""Hash the source files of code that does not come with dpfedbench, for the identity of
runs, clients and data sets.

A class comes with dpfedbench if it is in one of its packages. Only the files of classes
count, and not what these files import.
"""

import hashlib
import inspect
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from dpfedbench.plugins import is_ours


def digest_classes(classes: Iterable[type]) -> str:
    """Hash the files of those classes, and of their bases, that are not dpfedbench's.

    A base that extends no class of dpfedbench (pydantic's, Python's) does not count.

    Returns:
        Twelve hexadecimal digits, or an empty text where all classes are dpfedbench's.
    """
    own = {
        base
        for cls in classes
        for base in cls.__mro__
        if not is_ours(base) and any(map(is_ours, base.__mro__))
    }
    return _digest(inspect.getfile(cls) for cls in own)


def digest_module(module: ModuleType) -> str:
    """Hash the file of a module; an empty text for one of dpfedbench's."""
    return "" if is_ours(module) else _digest([inspect.getfile(module)])


def _digest(files: Iterable[str]) -> str:
    lines = [
        f"{Path(file).name} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}\n"
        for file in sorted(set(files))
    ]
    return (
        hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:12]
        if lines
        else ""
    )
