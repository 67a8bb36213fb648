"""The data sets there are: those that come with dpfedbench, and those that the configuration states."""

import csv
import importlib
import json
import pkgutil
from collections.abc import Collection
from pathlib import Path

from dpfedbench import data
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, given
from dpfedbench.settings.part import Settings
from dpfedbench.settings.words import nearest


def read_datasets(path: str | Path) -> dict[str, str]:
    """The data sets that come with dpfedbench, with the version of each, from config/datasets.tsv.

    Raises:
        BenchError: the file is missing or lacks a column.
    """
    try:
        with open(path, newline="", encoding="utf-8") as handle:
            return {row["name"]: row["version"] for row in csv.DictReader(handle, delimiter="\t")}
    except (OSError, KeyError) as error:
        raise BenchError(f"{path} cannot be read ({error}): restore it from the repository") from error


def known_datasets(path: str | Path, configuration: Configuration) -> dict[str, str]:
    """The data sets there are: those of config/datasets.tsv, and those that the configuration states.

    A reader's module may have a `Settings` class `Options`, of what it is called with. Where a package that it imports
    is not installed, as where only a plan is made, options are checked when the data set is prepared.

    Returns:
        For each name what its content depends on: the version, or all that the configuration says of it.

    Raises:
        BenchError: a name that is taken, a reader that does not exist, or options that it does not take.
    """
    known = read_datasets(path)
    readers = {info.name.replace("_", "-") for info in pkgutil.iter_modules(data.__path__)}
    for name, entry in configuration.datasets.items():
        if entry is None:
            continue
        if name in known:
            raise BenchError(f"datasets.{name}: dpfedbench comes with a data set of this name, choose another")
        known_name(entry.reader, readers, f"datasets.{name}.reader", "module in src/dpfedbench/data for")
        try:
            module = importlib.import_module(f"{data.__name__}.{entry.reader.replace('-', '_')}")
        except ModuleNotFoundError:
            module = None
        options = getattr(module, "Options", None)
        if isinstance(options, type) and issubclass(options, Settings):
            options.read(entry.options, f"datasets.{name}.options")
        known[name] = json.dumps(given(entry), sort_keys=True)
    return known


def known_name(name: str, valid: Collection[str], where: str, what: str) -> None:
    """Refuse a name that is not known.

    Raises:
        BenchError: names the nearest one.
    """
    if name not in valid:
        raise BenchError(f"{where}: there is no {what} {name!r}, the nearest is {nearest(name, valid)!r}")
