"""Checks of configuration files: one line with file and place, where Snakemake's own
message is unclear or missing.
"""

import contextlib
import json
import re
import sys
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpfedbench.errors import BenchError
from dpfedbench.files import text_of

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def dropped_words(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the options of Snakemake whose words a later one replaces.

    Snakemake keeps the words of the last `--configfile` and of the last `--config`
    only.

    Returns:
        For each replaced option its name and its words, in order.
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


def check_arguments() -> None:
    """End a call of Snakemake with one line where a file of its --configfile cannot be
    taken.

    Snakemake reads these files before the Snakefile, and says what is wrong in them by
    a traceback or without the file. The default profile calls this, which is read
    earlier still.
    """
    files, given = list[str](), False
    for word in sys.argv[1:]:
        option, _, value = word.partition("=")
        if word.startswith("-"):
            given = option in ("--configfile", "--configfiles")
            files += [value] * (given and value != "")
        elif given:
            files.append(word)
    try:
        for file in files:
            read_file(file)
    except BenchError as error:
        sys.exit(f"configuration: {error}")


def read_file(path: str | Path) -> dict[str, Any]:
    """The values of a file of a configuration.

    Raises:
        BenchError: it is missing or empty, its YAML has a fault, it holds no group of
            keys, gives a key twice, or has a group within itself; says the line.
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
        )  # JSON, which Snakemake takes too, is YAML but for tabs between values
    _check_yaml(path, text)
    values: dict[str, Any] = yaml.load(text, Loader=_Loader)
    return values


def with_place(message: str, paths: Sequence[str | Path]) -> str:
    """A message about a key, with the file and line that give the key: of files that
    lie over one another, the last.

    Args:
        message: may name keys by dotted paths, e.g. experiments.mine.run.clients.cuont.
        paths: one's own files, which `read_file` has taken.

    Returns:
        The message as it is, where it names a file already, or where no file has two
        levels of a path or more.
    """
    if any(Path(path).name in message for path in paths):
        return message
    best: tuple[int, str] = (1, message)
    for path in reversed(paths):
        node = yaml.compose(text_of(Path(path)).replace("\t", " "), Loader=_Loader)
        for keys in re.findall(r"[\w-]+(?:\.[\w-]+)+", message):
            depth, line = _reached(node, keys.split("."))
            # A key that is missing has its group; of any other the whole path is there.
            if depth > best[0] and depth >= keys.count("."):
                best = depth, f"{message} [{path}, line {line}]"
    return best[1]


def _reached(node: Any, keys: Sequence[str]) -> tuple[int, int]:
    """How many of the keys lead somewhere from a node, one below the other, and the
    line of the last of these.
    """
    depth, line = 0, 1
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
            line, node = pairs[0][0].start_mark.line + 1, pairs[0][1]
        else:
            break
        depth += 1
    return depth, line


def _check_yaml(path: Path, text: str) -> None:
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        tab = (
            "\t" in text.splitlines()[mark.line]
            if mark and mark.line < len(text.splitlines())
            else False
        )
        said = (
            "a tab stands where YAML wants spaces"
            if tab
            else error.problem or error.context or "it is not YAML"
        )
        raise BenchError(
            f"{path}, line {mark.line + 1 if mark else 1}: {said}: mend the YAML there"
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise BenchError(
            f"{path} is not YAML ({' '.join(str(error).split())[:200]}): mend it"
        ) from error
    if node is None:
        raise BenchError(f"{path} is empty: give it keys, or leave it out")
    if not isinstance(node, yaml.MappingNode):
        what = "a list" if isinstance(node, yaml.SequenceNode) else "one value"
        raise BenchError(
            f"{path}, line {node.start_mark.line + 1}: it holds {what}: expected keys"
            " at its top level"
        )
    _check_keys(path, node, (), set())


def _check_keys(
    path: Path, node: yaml.Node, above: tuple[int, ...], seen: set[int]
) -> None:
    """Refuse a key that is given twice, and a group that has itself inside."""
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
            _check_keys(path, value, inside, seen)
