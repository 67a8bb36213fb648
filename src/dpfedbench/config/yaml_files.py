"""Reading of configuration files.

A fault gives one line, where Snakemake's own message is unclear or missing. Numbers
that YAML does not read as they look are faults.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpfedbench.errors import BenchError
from dpfedbench.files import text_of

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_PLAIN_NUMBER = re.compile(
    r"[-+]?(0|[1-9][0-9]*|[0-9]*\.[0-9]+|[0-9]+\.)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    re.ASCII,
)
"""Numbers that YAML 1.1, YAML 1.2 and JSON read alike."""

_LIKE_A_NUMBER = re.compile(
    r"[-+]?\d[\d_]*(:\d[\d_]*)*(\.[\d_]*)?([eE][-+]?\d+)?"
    r"|[-+]?0([xX][0-9a-fA-F_]+|[oO][0-7_]+|[bB][01_]+)"
)

_PLAIN = (None, "")  # style of a scalar without quotes, in either loader
_TAG = "tag:yaml.org,2002:"


def option_words(arguments: Sequence[str]) -> dict[str, list[list[str]]]:
    """Return the words after each `--configfile` and each `--config` of a command.

    Args:
        arguments: the arguments of Snakemake.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in (("--configfile", "--configfiles"), ("--config", "-C")):
        parser.add_argument(
            *names, dest=names[0], nargs="*", action="append", default=[]
        )
    return vars(parser.parse_known_args(arguments)[0])


def dropped_words(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the words of Snakemake's options that a later option replaces.

    Snakemake keeps the words of the last `--configfile` and of the last `--config`
    only.

    Returns:
        The name and the words of each replaced option, in order.
    """
    return [
        (option, words)
        for option, groups in option_words(arguments).items()
        for words in groups[:-1]
    ]


def check_arguments() -> None:
    """Exit with one line if a file of Snakemake's --configfile is invalid.

    Snakemake reads these files before the Snakefile, and reports a fault by a traceback
    or without the file's name. The default profile calls this function, because
    Snakemake reads the profile earlier still.
    """
    try:
        for files in option_words(sys.argv[1:])["--configfile"]:
            for file in files:
                read_file(file)
    except BenchError as error:
        sys.exit(f"configuration: {error}")


def _nodes_of(root: yaml.Node | None) -> Iterator[yaml.Node]:
    """Yield the nodes of a composed document in its order, each of them once."""
    visited = set[yaml.Node]()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        yield node
        if isinstance(node, yaml.MappingNode):
            for key, value in reversed(node.value):
                waiting += [value, key]
        elif isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)


def _fault_of_number(node: yaml.Node) -> str:
    """Return the message about a number that YAML does not read as it looks, or ""."""
    value = node.value
    if not isinstance(node, yaml.ScalarNode) or node.style not in _PLAIN:
        return ""
    if _PLAIN_NUMBER.fullmatch(value):
        return ""
    is_number = node.tag in (f"{_TAG}int", f"{_TAG}float")
    if not is_number and not _LIKE_A_NUMBER.fullmatch(value):
        return ""
    return (
        f"{value} is not a plain decimal number (a leading 0 may be read as octal, and"
        f' 1:30 as 90): write it in decimal digits, or as text in quotes, "{value}"'
    )


def _check_keys(node: yaml.MappingNode, where: str) -> None:
    """Refuse a mapping of a file in which a key is repeated.

    Raises:
        BenchError: names the file, the key and its lines.
    """
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == f"{_TAG}merge":
            continue
        line = lines.get((key.tag, key.value))
        if line is not None:
            raise BenchError(
                f"{where}, line {key.start_mark.line + 1}: the key {key.value} is"
                f" already in line {line}, and YAML would keep only one of them:"
                " remove one"
            )
        lines[key.tag, key.value] = key.start_mark.line + 1


def load_yaml(text: str, where: str) -> dict[str, Any]:
    """Return the group of keys that a YAML text holds.

    Args:
        text: the text.
        where: the file, for messages.

    Raises:
        BenchError: the text is no valid YAML, holds no group of keys, has a key twice,
            or a number that YAML does not read as it looks; names the line.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise BenchError(f"{where}: expected keys at its top level")
        for node in _nodes_of(root):
            if isinstance(node, yaml.MappingNode):
                _check_keys(node, where)
            fault = _fault_of_number(node)
            if fault:
                line = node.start_mark.line + 1
                raise BenchError(f"{where}, line {line}: {fault}")
        # Depth first, so that a group is read before its aliases.
        values: dict[str, Any] = loader.construct_object(root, deep=True)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BenchError(
            f"{where} is not YAML: {' '.join(str(error).split())}"
        ) from None
    return values


def read_file(path: str | Path) -> dict[str, Any]:
    """Return the values of a configuration file.

    Raises:
        BenchError: the file is missing or not UTF-8, or see `load_yaml`.
    """
    path = Path(path)
    if not path.exists():
        raise BenchError(
            f"{path}: this file does not exist in {Path.cwd()}; if it is a target, put"
            " it before --configfile, because --configfile takes every word after it"
        )
    text = text_of(path, remedy="save it as UTF-8 in an editor")
    return load_yaml(text, str(path))


def place_of(key: str, files: Sequence[str | Path]) -> str:
    """Return the place of a key in configuration files, "FILE, line N"; "" without one.

    Args:
        key: the dotted key.
        files: the files, of which later ones override earlier ones.
    """
    for path in reversed(files):
        line = _line_of(yaml.compose(text_of(Path(path)), Loader=_Loader), key)
        if line is not None:
            return f"{path}, line {line}"
    return ""


def _line_of(node: yaml.Node | None, key: str) -> int | None:
    """Return the line of a dotted key below a node of YAML; None without one."""
    if not isinstance(node, yaml.MappingNode):
        return None
    for name, value in node.value:
        if name.value == key:
            return int(name.start_mark.line) + 1
        inner = key.removeprefix(f"{name.value}.")
        is_merged = name.tag == f"{_TAG}merge"
        if inner != key or is_merged:
            line = _line_of(value, inner)
            if line is not None:
                return line
    return None


def check_config_option(words: Sequence[str]) -> None:
    """Refuse values of --config that Snakemake does not read as they look.

    It reads 010 as 10, for instance, and 1_000 as 1000.

    Args:
        words: the arguments of --config, each key=value.

    Raises:
        BenchError: names the key and its value.
    """
    for word in words:
        key, _, value = str(word).partition("=")
        # Snakemake reads a value that is no YAML as text.
        with contextlib.suppress(yaml.YAMLError, RecursionError):
            for node in _nodes_of(yaml.compose(value, Loader=yaml.BaseLoader)):
                fault = _fault_of_number(node)
                if fault:
                    raise BenchError(f"--config {key}: {fault}")
