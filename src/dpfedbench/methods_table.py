"""Table of all methods, for people who choose one: `dpfedbench methods`.

docs/configuration.md has the same rows. All facts are those of the classes with their
default values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from dpfedbench.config.schema import fields_of
from dpfedbench.experiments.configuration import read_shipped
from dpfedbench.method import Method
from dpfedbench.papers import METHODS

COLUMNS = ("method", "title", "paper", "protects", "data", "clients send", "state")
"""Name and title; experiment of the paper; unit of the private sums, and who sees
them; data of a client; messages of a client; whether clients keep anything of their
records from round to round.
"""

_DATA = {"tasks": "few-shot tasks", "records": "records"}
_NOTHING = "–"


def describe_methods() -> Iterator[tuple[str, ...]]:
    """Yield a row of `COLUMNS` for each method, by name."""
    for name, method in sorted(METHODS.items()):
        if not method.trained:
            yield (name, method.title, method.paper, *[_NOTHING] * 4)
            continue
        run = _with_defaults(method)
        update = run.client_update
        state = {True: "kept", False: "none", None: "not declared"}
        yield (
            name,
            method.title,
            method.paper,
            _describe_protection(run),
            _DATA[update.client_data],
            ", ".join(_find_messages(run)),
            state[update.keeps_state],
        )


def _with_defaults(method: type[Method]) -> Method:
    """Return an instance with the default values alone, which is enough for `sums`."""
    instance = object.__new__(method)
    values = {
        key: field.get_default(call_default_factory=True)
        for key, field in fields_of(method).items()
        if not field.is_required()
    }
    for key, value in (values | {"method": method.name}).items():
        object.__setattr__(instance, key, value)
    return instance


def _describe_protection(run: Method) -> str:
    """Return the units of a run's private sums, and from whom each is protected."""
    parts = dict.fromkeys(
        f"{spec.unit}, from {spec.observer}" for spec in run.all_sums if spec.private
    )
    return "; ".join(parts) or _NOTHING


def _find_messages(run: Method) -> list[str]:
    """Return the names of the messages of a client.

    Parties send their sums; other clients send what the server sums.
    """
    is_party = "party" in run.groups()
    taker = "client" if is_party else "server"
    names = [spec.name for spec in run.all_sums if spec.taken_by == taker]
    if is_party and not names:
        names = [run.client_update.sends]
    return [name.removesuffix("-sum").removesuffix("-mean") for name in names]


def read_papers(config: Path) -> dict[str, str]:
    """Return the citation of each paper that has an experiment, by its name.

    Args:
        config: the folder `config` of the benchmark.
    """
    whole = read_shipped(config, "full")
    papers = {method.paper for method in METHODS.values()}
    return {
        name: experiment["source"]
        for name, experiment in sorted(whole["experiments"].items())
        if name in papers and experiment and experiment.get("source")
    }


def format_columns(
    head: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> Iterator[str]:
    """Yield the lines of a table whose columns are aligned by spaces."""
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def print_methods(config: Path) -> None:
    """Print the table of all methods, and the papers."""
    for line in format_columns(COLUMNS, describe_methods()):
        print(line)
    print()
    for name, citation in read_papers(config).items():
        print(f"{name}: {citation}")
