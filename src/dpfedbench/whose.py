"""Finds whether an error was raised in the user's own code, and in which file and line.

A user's own code is all that does not come with dpfedbench: files below the package
that `shipped.txt` does not list, the user's folders (`own_code`), and the folders of
networks that a configuration names (`model.module`).
"""

import importlib.util
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from dpfedbench import imports, own_code

_NETWORKS: set[Path] = set()
_OTHERS = {
    Path(sysconfig.get_path(name)).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
}
_WORKFLOW = {imports.PACKAGE.parents[1] / "workflow", imports.PACKAGE / "workflow"}


def network(module: str) -> None:
    """Remember where a network of one's own lies, before it is imported: the folder of
    its package or file.
    """
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return
    places = [
        Path(place).resolve()
        for place in (spec and spec.submodule_search_locations) or ()
    ]
    if spec and spec.origin and not places:
        file = Path(spec.origin).resolve()
        places = [file if file.parent in _OTHERS else file.parent]
    _NETWORKS.update(places)


def _below(path: Path, tops: set[Path]) -> bool:
    return any(top == path or top in path.parents for top in tops)


def is_own(file: str) -> bool:
    """Whether a file is the user's own code."""
    path = Path(file).resolve()
    if imports.within(path):
        return not imports.shipped(path) and not _below(path, _WORKFLOW)
    if _below(path, {folder.resolve() for folder in own_code.folders()}):
        return True
    if path.suffix != ".py" or _below(path, _WORKFLOW) or ".snakemake" in path.parts:
        return False
    others = {top for top in _OTHERS if _below(path, {top})}
    return any(
        _below(path, {top}) and not any(top in other.parents for other in others)
        for top in _NETWORKS
    )


def _frames(error: BaseException | None) -> Iterator[tuple[str, int]]:
    """Files and lines that an error came through, the innermost first; then those of
    what it was raised from.
    """
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            yield error.filename, error.lineno or 1
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            yield frame.filename, frame.lineno or 1
        error = error.__cause__


def place_of(error: BaseException) -> str:
    """Where in the user's own code an error was raised, "FILE, line N"; empty where
    none of it was running.
    """
    for file, line in _frames(error):
        if not file.startswith("<") and is_own(file):
            return f"{seen_from_here(file)}, line {line}"
    return ""


def seen_from_here(file: str) -> Path:
    """A file's path from the working directory, where it is below that."""
    path, here = Path(file).resolve(), Path.cwd().resolve()
    return path.relative_to(here) if here in path.parents else path


def said_of(error: BaseException) -> str:
    """An error of the user's own code in a line: where it was raised and what it says;
    empty where it is not.
    """
    place = place_of(error)
    return f"{place}: {in_words(error)}" if place else ""


def in_words(error: BaseException) -> str:
    """What an error says, in a line: its kind, and the first line of its message."""
    lines = (
        (error.msg if isinstance(error, SyntaxError) else str(error))
        .strip()
        .splitlines()
    )
    return f"{type(error).__name__}{f': {lines[0][:300]}' if lines else ''}"
