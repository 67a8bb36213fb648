"""docstrings: documentation of installed packages, one module per task.

It is a stand-in for Shakespeare-800. The texts are read from installed packages with
exactly pinned versions, so nothing is downloaded or passed on. A task is the first 800
words of a module's documentation strings. A module is left out if 20 % of its sequences
of 8 words occur in one module that was kept: otherwise a copied text would be in two
tasks.
"""

from __future__ import annotations

import ast
import gc
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dpfedbench.data.images import with_progress
from dpfedbench.data.tokens import RawTexts, cut_into_tasks, words_of

PACKAGES = ("matplotlib", "networkx", "numpy", "pandas", "scipy", "sympy", "torch")
WORDS = 800

_GRAM = 8
_SHARED = 0.2
_STATEMENTS = {"body", "handlers", "orelse", "finalbody", "cases"}
"""Fields of a syntax tree's node that hold statements."""
_LEFT_OUT = {
    "tests",
    "testing",
    "_vendor",
    "test",
    "_version",
    "version",
    "__config__",
    "distutils",
}
"""Parts of the paths of modules that are not used.

These are tests, copies of other packages, files written by a build, and modules that
are not installed under Python 3.12.
"""


def documentation(source: str) -> str:
    """Return the documentation strings of a module's source.

    They are ordered by the levels of the syntax tree.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes, which Python 3.12 reports
        nodes: list[ast.AST] = [ast.parse(source)]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in (
        nodes
    ):  # the list grows: like ast.walk, but without expressions, most of the tree
        for field in node._fields:
            if field in _STATEMENTS and isinstance(inner := getattr(node, field), list):
                nodes += inner
    docstrings = (
        ast.get_docstring(node) for node in nodes if isinstance(node, documented)
    )
    return "\n".join(text for text in docstrings if text)


def modules() -> list[tuple[str, Path]]:
    """Return names and files of the installed modules, ordered by package and path."""
    files: list[tuple[str, Path]] = []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        folder = Path(spec.submodule_search_locations[0])
        paths = (path.relative_to(folder.parent) for path in folder.rglob("*.py"))
        chosen = sorted(
            path for path in paths if not _LEFT_OUT & {*path.parts[:-1], path.stem}
        )
        files += [
            (".".join(path.with_suffix("").parts), folder.parent / path)
            for path in chosen
        ]
    return files


def read_docstrings(local: Path | None, download_dir: Path) -> RawTexts:
    """Read the documentation of the installed modules."""
    paths = modules()
    collecting = gc.isenabled()
    # Syntax trees have no reference cycles, and searching for them takes a quarter of
    # the time.
    gc.disable()
    try:
        return cut_into_tasks(
            _apart(_texts(paths)),
            words=WORDS,
            test=0.1,
            validation=0.1,
            called="the installed packages",
            versions={
                package: importlib.metadata.version(package) for package in PACKAGES
            },
        )
    finally:
        if collecting:
            gc.enable()


def _texts(paths: list[tuple[str, Path]]) -> Iterator[tuple[str, list[str]]]:
    for name, path in with_progress(paths, "docstrings: reading modules"):
        words = words_of(documentation(path.read_text(encoding="utf-8")))
        if words:
            yield name, words


def _apart(texts: Iterator[tuple[str, list[str]]]) -> Iterator[tuple[str, list[str]]]:
    """Leave out long texts that share much with an earlier long text that is kept.

    Short texts come first, as they are. Of long ones the first `WORDS` words are kept.
    """
    long_texts: list[tuple[str, list[str]]] = []
    grams: list[NDArray[np.uint64]] = []
    word_numbers: dict[str, int] = {}  # in order of first occurrence
    for name, words in texts:
        if len(words) < WORDS:
            yield name, words
            continue
        long_texts.append((name, words[:WORDS]))
        numbers = [word_numbers.setdefault(word, len(word_numbers)) for word in words]
        grams.append(_grams(numbers))
    is_kept = np.zeros(len(grams), bool)
    shared = _count_shared(grams)
    for number, text in enumerate(long_texts):
        shared_with_kept = shared[number].toarray() * is_kept
        if shared_with_kept.max() >= _SHARED * len(grams[number]):
            continue
        is_kept[number] = True
        yield text


def _count_shared(grams: list[NDArray[np.uint64]]) -> scipy.sparse.csr_array:
    """Return how many sequences each two texts share.

    Args:
        grams: the distinct hashes of each text.
    """
    _, columns = np.unique(np.concatenate(grams), return_inverse=True)
    starts = np.cumsum([0, *map(len, grams)])
    contains = scipy.sparse.csr_array((np.ones(len(columns), int), columns, starts))
    return (contains @ contains.T).tocsr()


def _grams(word_numbers: list[int]) -> NDArray[np.uint64]:
    """Return 64-bit hashes of all distinct sequences of `_GRAM` words.

    They are the same in every process. The probability that any two of several million
    sequences share a hash is about a millionth.
    """
    windows = np.lib.stride_tricks.sliding_window_view(
        np.array(word_numbers, np.uint64), _GRAM
    )
    numbers = np.zeros(len(windows), np.uint64)
    for word in windows.T:
        # With a polynomial hash, small values would cancel. Here each step is a
        # bijection that mixes all bits (splitmix64).
        numbers = (numbers + word + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(
            0xBF58476D1CE4E5B9
        )
        numbers ^= numbers >> np.uint64(31)
    return np.unique(numbers)


READERS = {"docstrings": read_docstrings}
