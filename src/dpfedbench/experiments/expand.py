"""Expansion of a configuration to its plan: papers to tables and figures, and these to
cells (`cells`).
"""

import keyword
import math
import random
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dpfedbench.config.merge import set_key
from dpfedbench.errors import BenchError
from dpfedbench.experiments.cells import ItemContext, Known, TableCell
from dpfedbench.experiments.configuration import (
    Configuration,
    Experiment,
    FigureSettings,
    SearchSpace,
    Series,
    TableSettings,
    explicit_values,
)
from dpfedbench.experiments.datasets import CALLED, known_name
from dpfedbench.experiments.overlays import Methods, check_overlays, overlays
from dpfedbench.experiments.plan import Plan, PlannedCell, PlannedItem
from dpfedbench.method import Method
from dpfedbench.papers import METHODS
from dpfedbench.results_format import HISTORY, MEASURED, NORMS

_OWN_TABLES = ("privacy", "answer")
"""Tables that the workflow makes for each paper, without configuration."""


def make_plan(
    configuration: Configuration,
    *,
    methods: Methods = METHODS,
    datasets: Collection[str] | None = None,
    holdings: Mapping[str, str] | None = None,
) -> Plan:
    """Expand a configuration into items and runs.

    Args:
        configuration: the whole configuration.
        methods: methods by name.
        datasets: names of the existing data sets; None accepts any.
        holdings: contents of the data sets with known sizes (`datasets.read_holdings`).

    Raises:
        BenchError: a bad key or value, with its full name; a method, task or data set
            that does not exist; a run that needs more data than its data set holds.
    """
    known = Known(configuration, methods, datasets, holdings or {})
    _check_names(known)
    items = {
        (item.paper, item.name): item
        for paper, experiment in configuration.experiments.items()
        if experiment is not None
        for item in _items_of(known, paper, experiment)
    }
    if not items:
        raise BenchError(
            "experiments has no table or figure left: leave at least one that is not"
            " null"
        )
    return Plan(items=items, runs=_with_references(items.values()))


def _with_references(items: Collection[PlannedItem]) -> dict[str, Method]:
    """Return the runs of all items, and those whose files they need, by folder."""
    runs: dict[str, Method] = {}
    waiting: list[Any] = [run for item in items for run in item.runs.values()]
    while waiting:
        run = waiting.pop(0)
        if runs.setdefault(run.folder, run) != run:
            raise BenchError(
                f"two different runs share the folder {run.folder}: report this as a"
                " fault of dpfedbench"
            )
        waiting += [
            reference
            for reference in run.references.values()
            if reference.folder not in runs
        ]
    return runs


def _check_names(known: Known) -> None:
    """Refuse methods, data sets and keys of overlays that do not exist."""
    configuration = known.configuration
    for key in ("methods", "tuning"):
        for name in getattr(configuration, key):
            known_name(name, known.methods, f"{key}.{name}", "method")
    for name, stand_in in configuration.stand_ins.items():
        _check_stand_in(known, name, stand_in)
    check_overlays(configuration, known.methods)
    for where, overlay, _ in overlays(configuration):
        if "dataset" in overlay:
            known.check_dataset(overlay["dataset"], f"{where}.dataset")


def _check_stand_in(known: Known, name: str, stand_in: str | None) -> None:
    """Refuse a stand-in that does not exist, or that holds other things."""
    known.check_dataset(name, f"stand_ins.{name}")
    if stand_in is None:
        return
    known.check_dataset(stand_in, f"stand_ins.{name}")
    holds = known.holdings.get(name, "").partition(" ")[0]
    stand_in_holds = known.holdings.get(stand_in, "").partition(" ")[0]
    if holds and stand_in_holds and holds != stand_in_holds:
        raise BenchError(
            f"stand_ins.{name} is {stand_in}, which holds {CALLED[stand_in_holds]}, but"
            f" {name} holds {CALLED[holds]}: take another, or null"
        )


# Items


def _items_of(
    known: Known, paper: str, experiment: Experiment
) -> Iterator[PlannedItem]:
    """Yield the tables and figures of a paper."""
    target = paper.replace("-", "_")
    if not target.isidentifier() or keyword.iskeyword(target):
        raise BenchError(
            f"experiments.{paper}: a paper is a target of the workflow, and {target}"
            " cannot be one: let its name begin with a letter, and be no word of Python"
        )
    for name in experiment.tables.keys() & experiment.figures.keys():
        if experiment.tables[name] and experiment.figures[name]:
            raise BenchError(
                f"experiments.{paper} has a table and a figure {name}: give one another"
                " name"
            )
    for group in ("tables", "figures"):
        for name, spec in getattr(experiment, group).items():
            if spec is not None:
                where = f"experiments.{paper}.{group}.{name}"
                yield _plan_item(
                    ItemContext(known, paper, experiment, spec, where), name
                )


def _plan_item(item: ItemContext, name: str) -> PlannedItem:
    """Return a table or figure with its cells."""
    if name in _OWN_TABLES:
        raise BenchError(
            f"{item.where}: the workflow makes a table of this name, choose another"
        )
    spec = item.spec
    if isinstance(spec, TableSettings):
        kind = "table"
        cells = _cells_of_table(item, spec)
    else:
        kind = spec.kind
        cells = _cells_of_figure(item, spec)
    if not cells:
        raise BenchError(
            f"{item.where} has no cell left: give it a series that is not null, or set"
            f" {item.where} to null"
        )
    return PlannedItem(
        paper=item.paper,
        name=name,
        kind=kind,
        spec=explicit_values(spec),
        cells=tuple(cells),
    )


# Tables


def _cells_of_table(item: ItemContext, spec: TableSettings) -> list[PlannedCell]:
    """Return the cells of a table: all its series at each of its tasks."""
    for task in spec.task_seeds:
        known_name(task, item.experiment.tasks, f"{item.where}.task_seeds", "task")
    if spec.share_of is not None:
        known_name(spec.share_of, item.series, f"{item.where}.share_of", "series")
    points_of = {
        name: points(series.search, f"{item.where}.series.{name}.search")
        for name, series in item.series.items()
    }
    compared = {name: _count_compared(item, name) for name in item.series}
    return [
        TableCell(item, task, name, series, point=point, tried=compared[name]).plan()
        for task in spec.tasks
        for name, series in item.series.items()
        for point in points_of[name]
    ]


def _count_compared(item: ItemContext, name: str) -> int:
    """Return the number of settings that a series' search compares; 0 without a search.

    It includes the settings of the search that this one follows.
    """
    search = item.series[name].search
    if search is None:
        return 0
    where = f"{item.where}.series.{name}.search"
    count = len(points(search, where))
    if not search.follows:
        return count
    tables = item.experiment.tables
    candidates = [table for table in tables if tables[table] is not item.spec]
    known_name(search.follows, candidates, f"{where}.follows", "table")
    table = tables[search.follows]
    followed = None if table is None else table.series.get(name)
    if followed is None or followed.search is None or followed.search.follows:
        raise BenchError(
            f"{where}.follows is {search.follows}, which has no search of its own for"
            f" {name}: name a table that searches its settings first"
        )
    return count + len(points(followed.search, where))


def points(search: SearchSpace | None, where: str) -> list[dict[str, Any]]:
    """Return the overlays that a search tries, in the order of the grid.

    Without a search, it is one empty overlay.

    Raises:
        BenchError: a key without values, or more combinations requested than exist.
    """
    if search is None:
        return [{}]
    sizes = [len(values) for values in search.values.values()]
    count = math.prod(sizes)
    if not sizes or not count:
        raise BenchError(
            f"{where}.values is empty, or a key of it: give each key at least one value"
        )
    if search.runs is not None and search.runs > count:
        raise BenchError(
            f"{where}.runs is {search.runs}, but there are {count} combinations: set it"
            " to that or null"
        )
    numbers: Collection[int] = range(count)
    if search.runs is not None:
        generator = random.Random(search.seed)
        numbers = sorted(generator.sample(range(count), search.runs))
    return [_point(search, number) for number in numbers]


def _point(search: SearchSpace, number: int) -> dict[str, Any]:
    """Return the overlay of one combination, given its number in the grid."""
    point: dict[str, Any] = {}
    for key, values in search.values.items():
        number, index = divmod(number, len(values))
        point = set_key(point, key, values[index])
    return point


# Figures


def _cells_of_figure(item: ItemContext, spec: FigureSettings) -> list[PlannedCell]:
    """Return the cells of a figure: each series at each point of the axis."""
    for key in _required_keys(item, spec):
        if getattr(spec.x, key) is None:
            raise BenchError(
                f"{item.where}.x.{key} is missing: a {spec.kind} figure needs it"
            )
    values = spec.x.values or ()
    further = spec.x.also if spec.x.also is not None else ({},) * len(values)
    if len(further) != len(values):
        raise BenchError(
            f"{item.where}.x.also has {len(further)} overlays for {len(values)} values:"
            " give one for each, in their order"
        )
    planned: list[PlannedCell] = []
    for name, series in item.series.items():
        where = f"{item.where}.series.{name}"
        _check_series(spec, series, where)
        cells = [TableCell(item, spec.task, name, series)]
        if spec.x.key is not None and series.sweep:
            cells = [
                TableCell(item, spec.task, name, series, x=x, further=overlay)
                for x, overlay in zip(values, further, strict=True)
            ]
        planned += [cell.plan() for cell in cells]
        if spec.kind != "sweep":
            _check_columns(spec, series, planned[-1].runs[0], where)
    return planned


def _required_keys(item: ItemContext, spec: FigureSettings) -> tuple[str, ...]:
    """Return the keys that the horizontal axis has to have."""
    swept = ("key", "values")
    if spec.x.show != "value":
        if spec.kind != "sweep":
            raise BenchError(
                f"{item.where}.x.show is {spec.x.show}: a {spec.kind} figure has no ε"
                " for each point"
            )
        has_values = spec.x.key is not None or spec.x.values is not None
        return swept if has_values else ()
    if spec.kind == "history" or (spec.kind == "account" and spec.x.column is not None):
        return ("column",)
    return swept


def _check_series(spec: FigureSettings, series: Series, where: str) -> None:
    """Refuse a series that lacks what the kind of figure shows."""
    if series.search is not None:
        raise BenchError(f"{where}.search is for a table: leave it out of a figure")
    if spec.kind == "history" and series.curves is None and spec.curves is None:
        raise BenchError(
            f"{where}.curves is missing: name the columns of history.csv to draw"
        )
    if spec.kind == "account" and None in (series.profile, series.epsilon):
        raise BenchError(
            f"{where} needs profile and epsilon: a figure of accounts shows delta"
        )


def _check_columns(
    spec: FigureSettings, series: Series, run: Method, where: str
) -> None:
    """Refuse columns that the run's history.csv does not have."""
    known = {*HISTORY, *NORMS, *MEASURED}
    if run.trained:
        known |= set(run.client.columns(run))
    if spec.kind == "account":
        known = {"round"}
    columns = [spec.x.column]
    for column, curve in ((spec.curves or {}) | (series.curves or {})).items():
        columns += [column, *(curve.band or ()), curve.per]
    for column in filter(None, columns):
        known_name(column, known, where, "column of history.csv")
