"""Checks of configuration files.

A fault gives one line with file and line number, where Snakemake's own message is
unclear or missing.
"""

import contextlib
import json
import re
import sys
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpfedbench.errors import BenchError
from dpfedbench.files import text_of

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def dropped_words(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the arguments of Snakemake's options that a later option replaces.

    Snakemake keeps the arguments of the last `--configfile` and of the last `--config`
    only.

    Returns:
        The name and the arguments of each replaced option, in order.
    """
    groups: dict[str, list[list[str]]] = {"--configfile": [], "--config": []}
    words = list[str]()
    for argument in arguments:
        option, equals, value = argument.partition("=")
        name = _REPEATED.get(option)
        if name is not None:
            words = [value] if equals else []
            groups[name].append(words)
        elif argument.startswith("-"):
            words = []
        else:
            words.append(argument)
    return [
        (name, replaced)
        for name, all_words in groups.items()
        for replaced in all_words[:-1]
    ]


_REPEATED = {
    "--configfile": "--configfile",
    "--configfiles": "--configfile",
    "--config": "--config",
    "-C": "--config",
}


_PLAIN_NUMBER = re.compile(
    r"[-+]?(0|[1-9][0-9]*|[0-9]*\.[0-9]+|[0-9]+\.)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    re.ASCII,
)
"""Numbers that YAML 1.1, YAML 1.2 and JSON read alike."""

_LIKE_A_NUMBER = re.compile(r"[-+]?\d[\d_]*(:\d[\d_]*)*(\.[\d_]*)?([eE][-+]?\d+)?")
_OTHER_BASE = re.compile(r"[-+]?0([xX][0-9a-fA-F_]+|[oO][0-7_]+|[bB][01_]+)")

_PLAIN = (None, "")  # style of a scalar without quotes, in either loader
_BOOL = "tag:yaml.org,2002:bool"
_DATE = "tag:yaml.org,2002:timestamp"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def check_text(text: str, where: str) -> None:
    """Refuse numbers, dates and keys that YAML 1.1 does not read as they look.

    Args:
        text: valid YAML.
        where: the file or option, for messages.

    Raises:
        BenchError: names the file, the line and the text.
    """
    node = yaml.compose(text, Loader=_Loader)
    if node is not None:
        _check_scalars(node, where)


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
        try:
            node = yaml.compose(value, Loader=yaml.BaseLoader)
        except (yaml.YAMLError, RecursionError):
            continue  # Snakemake reads it as text
        for scalar in _scalars(node, set()):
            if scalar.style in _PLAIN and _is_odd_number(scalar.value):
                raise BenchError(f"--config {key}: {_odd_number(scalar.value)}")


def _scalars(node: yaml.Node | None, seen: set[int]) -> Iterator[yaml.ScalarNode]:
    """Yield all scalars at or below a node, including keys, each once."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(key, seen)
            yield from _scalars(value, seen)


def _check_scalars(node: yaml.Node, where: str) -> None:
    """Refuse scalars without quotes that YAML does not read as they look."""
    for scalar in _scalars(node, set()):
        value = scalar.value
        line = f"{where}, line {scalar.start_mark.line + 1}"
        if scalar.style not in _PLAIN:
            continue
        if scalar.tag == _DATE:
            raise BenchError(
                f'{line}: {value} is a date in YAML: put it into quotes, "{value}"'
            )
        numeric = scalar.tag in _NUMBERS and not _PLAIN_NUMBER.fullmatch(value)
        if numeric or _is_odd_number(value):
            raise BenchError(f"{line}: {_odd_number(value)}")


def _check_key(key: yaml.ScalarNode, where: str) -> None:
    if key.tag == _BOOL and key.style in _PLAIN:
        raise BenchError(
            f"{where}, line {key.start_mark.line + 1}: the key {key.value} is a truth"
            f' value in YAML: put it into quotes, "{key.value}"'
        )


def _is_odd_number(value: str) -> bool:
    """Return whether a text resembles a number, but is not a plain decimal one."""
    if _PLAIN_NUMBER.fullmatch(value):
        return False
    return bool(_LIKE_A_NUMBER.fullmatch(value) or _OTHER_BASE.fullmatch(value))


def _odd_number(value: str) -> str:
    return (
        f"{value} is not a plain decimal number (a leading 0 may be read as octal, and"
        f' 1:30 as 90): write it in decimal digits, or as text in quotes, "{value}"'
    )


def check_arguments() -> None:
    """Exit with one line if a file of Snakemake's --configfile is invalid.

    Snakemake reads these files before the Snakefile, and reports a fault by a traceback
    or without the file's name. The default profile calls this function, because
    Snakemake reads the profile earlier still.
    """
    files: list[str] = []
    is_file = False
    for word in sys.argv[1:]:
        option, _, value = word.partition("=")
        if word.startswith("-"):
            is_file = option in ("--configfile", "--configfiles")
            if is_file and value != "":
                files.append(value)
        elif is_file:
            files.append(word)
    try:
        for file in files:
            read_file(file)
    except BenchError as error:
        sys.exit(f"configuration: {error}")


def read_file(path: str | Path) -> dict[str, Any]:
    """Return the values of a configuration file.

    Raises:
        BenchError: the file is missing or empty, is not valid YAML, holds no group of
            keys, gives a key twice, or has a group within itself; names the line.
    """
    path = Path(path)
    if not path.exists():
        raise BenchError(
            f"{path}: this file does not exist in {Path.cwd()}; if it is a target, put"
            " it before --configfile, because --configfile takes every word after it"
        )
    text = text_of(path)
    with contextlib.suppress(ValueError):
        json.loads(text)
        text = text.replace(
            "\t", " "
        )  # Snakemake reads JSON too, which is YAML except for tabs between values
    _check_yaml(path, text)
    values: dict[str, Any] = yaml.load(text, Loader=_Loader)
    return values


def with_place(message: str, paths: Sequence[str | Path]) -> str:
    """Return a message about a key, with the file and line that set the key.

    If several files set the key, the last one is named.

    Args:
        message: may name keys by dotted paths, e.g. experiments.mine.run.clients.cuont.
        paths: the user's configuration files, which `read_file` has checked.

    Returns:
        The message unchanged, if it names a file already, or if no file has at least
        two levels of a path.
    """
    if any(Path(path).name in message for path in paths):
        return message
    best: tuple[int, str] = (1, message)
    for path in reversed(paths):
        node = yaml.compose(text_of(Path(path)).replace("\t", " "), Loader=_Loader)
        for keys in re.findall(r"[\w-]+(?:\.[\w-]+)+", message):
            depth, line = _reached(node, keys.split("."))
            # For a missing key, the path of its group exists; for any other key the
            # whole path exists.
            if depth > best[0] and depth >= keys.count("."):
                best = depth, f"{message} [{path}, line {line}]"
    return best[1]


def _reached(node: Any, keys: Sequence[str]) -> tuple[int, int]:
    """Return how many nested keys exist below a node, and the line of the last."""
    depth = 0
    line = 1
    for key in keys:
        if (
            isinstance(node, yaml.SequenceNode)
            and key.isdigit()
            and int(key) < len(node.value)
        ):
            node = node.value[int(key)]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode) and (
            pairs := [pair for pair in node.value if pair[0].value == key]
        ):
            line = pairs[0][0].start_mark.line + 1
            node = pairs[0][1]
        else:
            break
        depth += 1
    return depth, line


def _check_yaml(path: Path, text: str) -> None:
    try:
        node = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise BenchError(
            f"{path} is not YAML: {' '.join(str(error).split())}"
        ) from None
    if node is None:
        raise BenchError(f"{path} is empty: give it keys, or leave it out")
    if not isinstance(node, yaml.MappingNode):
        content = "a list" if isinstance(node, yaml.SequenceNode) else "one value"
        raise BenchError(
            f"{path}, line {node.start_mark.line + 1}: it holds {content}: expected keys"
            " at its top level"
        )
    _check_keys(path, node, (), set())
    _check_scalars(node, str(path))


def _check_keys(
    path: Path, node: yaml.Node, above: tuple[int, ...], seen: set[int]
) -> None:
    """Refuse a key that is given twice, and a group that contains itself."""
    if id(node) in above:
        raise BenchError(
            f"{path}, line {node.start_mark.line + 1}: this group refers to itself:"
            " take out the alias"
        )
    if id(node) in seen:
        return
    seen.add(id(node))
    inside = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(path, item, inside, seen)
    elif isinstance(node, yaml.MappingNode):
        first: dict[Hashable, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if (
                isinstance(key, yaml.ScalarNode)
                and key.tag != "tag:yaml.org,2002:merge"
            ):
                if (key.tag, key.value) in first:
                    raise BenchError(
                        f"{path}, line {line}: the key {key.value} is already in line"
                        f" {first[key.tag, key.value]}, and YAML would keep only one of"
                        " them: remove one"
                    )
                first[key.tag, key.value] = line
                _check_key(key, str(path))
            _check_keys(path, value, inside, seen)
