"""Known data sets: those of dpfedbench, and those that the configuration declares."""

import importlib
import json
import re
from collections.abc import Callable, Collection
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dpfedbench.config.merge import set_key
from dpfedbench.config.messages import nearest
from dpfedbench.config.part import Settings, kinds_of
from dpfedbench.config.plugin_sources import digest_module
from dpfedbench.config.sections import PartitionScheme
from dpfedbench.data import read_table
from dpfedbench.data.images import KINDS
from dpfedbench.data.readers import reader_modules
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, explicit_values
from dpfedbench.run import Run

if TYPE_CHECKING:
    import numpy as np


def read_holdings(configuration: Configuration) -> dict[str, str]:
    """Return the contents of data sets as text, as far as they are known beforehand.

    Those of the configuration are told by the function `holds` of their reader, which
    takes the local data folder and the options. It looks at names of files alone, and
    leaves out what it cannot find.

    Args:
        configuration: the whole configuration.
    """
    # It imports libraries that a plan of shipped data sets does not need.
    from dpfedbench.data.sources import local_folder

    holdings = {name: row["holds"] or "" for name, row in read_table().items()}
    readers = reader_modules()
    for name, entry in configuration.datasets.items():
        if entry is None or entry.reader not in readers:
            continue
        holds = getattr(_reader(readers[entry.reader]), "holds", None)
        if holds is not None:
            local = local_folder(configuration.data.local_dir)
            holdings[name] = holds(local, **entry.options)
    return holdings


def known_datasets(configuration: Configuration) -> dict[str, str]:
    """Return the data sets of dpfedbench and those of the configuration.

    A reader's module may define a `Settings` class `OPTIONS` for its arguments. The
    options are checked here, unless a package that the module imports is missing, as on
    a machine that only makes a plan.

    Args:
        configuration: the whole configuration.

    Returns:
        For each name the identity of its content: the version, or all values in the
            configuration and a hash of a plugin's reader.

    Raises:
        BenchError: a name that is taken, a reader that does not exist, or options that
            it does not accept.
    """
    known = {name: row["version"] for name, row in read_table().items()}
    readers = reader_modules()
    for name, entry in configuration.datasets.items():
        if entry is None:
            continue
        if name in known:
            raise BenchError(
                f"datasets.{name}: dpfedbench comes with a data set of this name,"
                " choose another"
            )
        known_name(
            entry.reader,
            readers,
            f"datasets.{name}.reader",
            "reader (a module of the folder data, or of a plugin)",
        )
        module = _reader(readers[entry.reader])
        options = getattr(module, "OPTIONS", None)
        if isinstance(options, type) and issubclass(options, Settings):
            options.read(entry.options, f"datasets.{name}.options")
        text = digest_module(module) if module else ""
        stated = explicit_values(entry) | ({"text": text} if text else {})
        known[name] = json.dumps(stated, sort_keys=True)
    return known


def _reader(name: str) -> ModuleType | None:
    """Import a reader's module; None if a package that it imports is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dpfedbench"):
            raise
        return None


def known_name(name: str, valid: Collection[str], where: str, what: str) -> None:
    """Refuse an unknown name.

    Raises:
        BenchError: suggests the most similar known name.
    """
    if name not in valid:
        raise BenchError(
            f"{where}: there is no {what} {name!r}, the nearest is"
            f" {nearest(name, valid)!r}"
        )


HELD = re.compile(
    r"(?P<kind>classes|records|texts)( (?P<counts>[\d/]+)( x (?P<each>\d+))?( of"
    r" (?P<shape>\d+x\d+x\d+))?)?"
)
"""Contents of a data set, as written in `data.DATASETS_TABLE`."""


def owner_counts(name: str, configuration: Configuration) -> "np.ndarray | None":
    """Return how many training examples each owner has, before the data are prepared.

    The module that reads the data set counts them: in its `OWNER_COUNTS`, for a data
    set of dpfedbench, or by its function `owner_counts`, which takes the options.

    Args:
        name: name of the data set.
        configuration: the whole configuration.

    Returns:
        int64 [owners, classes]; None where the data set knows no owners.

    Raises:
        BenchError: the data are missing or damaged.
    """
    # It imports libraries that a plan without natural clients does not need.
    from dpfedbench.data.sources import local_folder

    local = local_folder(configuration.data.local_dir)
    entry = configuration.datasets.get(name)
    if entry is not None:
        count = getattr(_reader(reader_modules()[entry.reader]), "owner_counts", None)
        return None if count is None else count(local, **entry.options)
    for module in reader_modules().values():
        shipped = getattr(_reader(module), "OWNER_COUNTS", {})
        if name in shipped:
            counts: np.ndarray = shipped[name](local)
            return counts
    return None


def read_owned(configuration: Configuration) -> set[str]:
    """Return the data sets that know the owners of their examples; no data are read.

    They are those with `owners` in the table, and those of the configuration whose
    reader has a function `owner_counts`, unless its function `tells_owners` returns
    False for the options.

    Args:
        configuration: the whole configuration.
    """
    owned = {name for name, row in read_table().items() if row["owners"] != "-"}
    readers = reader_modules()
    for name, entry in configuration.datasets.items():
        if entry is None or entry.reader not in readers:
            continue
        module = _reader(readers[entry.reader])
        tells_owners = getattr(module, "tells_owners", lambda **_: True)
        if hasattr(module, "owner_counts") and tells_owners(**entry.options):
            owned.add(name)
    return owned


def with_natural_count(
    values: dict[str, Any], count_owners: "Callable[[str], np.ndarray | None]"
) -> dict[str, Any]:
    """Return a run's values with the number of its clients, where they are owners.

    Args:
        values: the values of a run.
        count_owners: returns the examples of each owner of a data set
            (`owner_counts`).

    Raises:
        BenchError: the data set knows no owners, or none with enough examples.
    """
    clients = values.get("clients", {})
    kind = kinds_of(PartitionScheme).get(clients.get("partition", ""))
    if kind is None or kind.synthetic or values["task"].get("text") is not None:
        return values
    counts = count_owners(values["dataset"])
    where = f"clients.partition is {clients['partition']}, but {values['dataset']}"
    if counts is None:
        raise BenchError(
            f"{where} knows no owners of its examples: take another partition, or give"
            " its reader the owners"
        )
    scheme = kind.read(clients, "clients")
    eligible = len(scheme.eligible(counts, ways=int(values["task"]["ways"])))
    if not eligible:
        raise BenchError(
            f"{where} has no owner with enough examples: lower clients.least,"
            " clients.examples_per_class or task.ways"
        )
    return set_key(values, "clients.count", min(scheme.count, eligible))


def check_holdings(run: Run, holds: str) -> None:
    """Refuse a run that needs more data than its data set holds.

    The check uses the known sizes, before the data set is prepared.

    Args:
        run: the run (a method).
        holds: contents of its data set, from `read_holdings`.

    Raises:
        BenchError: gives both numbers.
    """
    held = HELD.fullmatch(holds)
    if held is None:
        return
    as_it_is = run.client_data == "records" and not run.pretrains
    needed = (
        "texts" if run.task.text is not None else "records" if as_it_is else "classes"
    )
    if held["kind"] != needed:
        raise BenchError(
            f"the data set {run.dataset} holds {KINDS[held['kind']]}, but {run.method}"
            f" needs {KINDS[needed]} here: take another data set or stand-in"
        )
    counts = [int(count) for count in (held["counts"] or "").split("/") if count]
    if needed == "classes" and counts:
        _check_classes(run, *counts, each=int(held["each"]))
    elif counts:
        run.clients.check_room(
            run.dataset, ways=run.task.ways, classes=1, each=counts[0]
        )
        _check_lot(run, counts[0])
        if run.validation.tasks >= counts[1]:
            raise BenchError(
                f"validation.tasks is {run.validation.tasks:,}, but {run.dataset} has"
                f" {counts[1]:,} test records, and some are needed for the test:"
                " lower it"
            )


def _check_lot(run: Run, records: int) -> None:
    """Refuse a lot that is larger than the records of a client."""
    clients = run.clients.count
    if run.participation.kind != "poisson-lots" or not run.clients.synthetic:
        return
    if run.participation.lot * clients > records:
        raise BenchError(
            f"participation.lot is {run.participation.lot:,}, the records of a"
            f" client's lot, but each of the {clients:,} clients holds"
            f" {records // clients:,} of the {records:,} training records of"
            f" {run.dataset}: lower it or clients.count"
        )


def check_shared_budget(run: Run) -> None:
    """Refuse a budget whose fixed multipliers leave nothing for those that it finds.

    Raises:
        BenchError: names the keys of the fixed multipliers.
    """
    sums = [spec for spec in run.all_sums if spec.private and spec.taken_by == "server"]
    budget = next((spec.budget for spec in sums if spec.budget is not None), None)
    fixed = [spec for spec in sums if spec.private_noise.multiplier is not None]
    if budget is None or budget.epsilon is None or len(fixed) in (0, len(sums)):
        return
    if any(spec.private_rule.groups != "all" for spec in sums):
        return
    # A local import: a plan is read where scipy is not installed.
    from dpsum.composition import Composition

    try:
        composition = Composition(claims=run.counted_claims, sums=run.all_sums)
        composition.calibrate(sums, run.plan)
    except BenchError as error:
        keys = {
            key: spec.private_noise.multiplier
            for spec in fixed
            for key in type(run).model_fields
            if getattr(run, key) is spec.noise
        }
        named = ", ".join(f"{key}.multiplier is {z:g}" for key, z in keys.items())
        remedy = " and ".join(f"{key}.multiplier" for key in keys)
        raise BenchError(
            f"{named}, but budget.epsilon {budget.epsilon:g} is for all sums together"
            f" ({error}): set {remedy} to null, so that the budget finds"
            f" {'it' if len(keys) == 1 else 'them'}"
        ) from None


def _check_classes(
    run: Run, train: int, validation: int, test: int, *, each: int
) -> None:
    clients = run.clients
    ways = run.task.ways
    splits = {"train": train, "validation": validation, "test": test}
    used = {
        "train": not run.pretrains,
        "validation": run.validation.every > 0,
        "test": True,
    }
    for split, classes in splits.items():
        if used[split] and ways > classes:
            raise BenchError(
                f"task.ways is {ways:,}, but {run.dataset} has {classes} {split}"
                " classes: lower it"
            )
    needs = {
        "task.shots and evaluation.query_per_class": (
            run.task.shots + run.evaluation.query_per_class
        )
    }
    if not run.pretrains:
        needs["clients.examples_per_class"] = clients.examples_per_class
    for keys, needed in needs.items():
        if needed > each:
            raise BenchError(
                f"{keys} need {needed:,} images of a class, but {run.dataset} has"
                f" {each}: lower them"
            )
    clients.check_room(run.dataset, ways=ways, classes=train, each=each)
