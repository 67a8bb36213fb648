"""Expansion of a configuration to its plan: papers to tables and figures, and these to
cells (`cells`).
"""

import dataclasses
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedbench.breaches import ignored_owner_notices
from dpfedbench.config.merge import KeyFault, set_key
from dpfedbench.config.yaml_files import place_of
from dpfedbench.errors import BenchError
from dpfedbench.experiments.cells import CellFault, ItemContext, Known, TableCell
from dpfedbench.experiments.configuration import (
    Configuration,
    Experiment,
    FigureSettings,
    SearchSpace,
    Series,
    TableSettings,
    explicit_values,
)
from dpfedbench.experiments.datasets import known_name
from dpfedbench.experiments.overlays import check_overlays, overlays
from dpfedbench.experiments.plan import (
    Plan,
    PlannedCell,
    PlannedItem,
    with_references,
)
from dpfedbench.experiments.search_privacy import check_search
from dpfedbench.papers import METHODS
from dpfedbench.results_format import HISTORY, MEASURED, NORMS
from dpfedbench.run import Run


def make_plan(
    configuration: Configuration,
    *,
    datasets: Collection[str] | None = None,
    holdings: Mapping[str, str] | None = None,
    files: Sequence[Path] = (),
    owned: Collection[str] = (),
) -> Plan:
    """Expand a configuration into items and runs.

    Args:
        configuration: the whole configuration.
        datasets: names of the existing data sets; None accepts any.
        holdings: contents of the data sets with known sizes (`datasets.read_holdings`).
        files: files of the configuration, for messages; later ones override earlier
            ones.
        owned: data sets that know the owners of their examples
            (`datasets.read_owned`).

    Raises:
        BenchError: a bad key or value, with its full name, file and line; a method,
            task or data set that does not exist; a run that needs more data than its
            data set holds. All faults of cells are listed together, each with its
            experiment, table or figure, task and series.
    """
    known = Known(configuration, datasets, holdings or {})
    try:
        plan = _make_plan(known, owned)
    except KeyFault as fault:
        file_and_line = place_of(fault.key, files)
        message = f"{fault} ({file_and_line})" if file_and_line else str(fault)
        raise BenchError(message) from None
    if known.faults:
        raise PlanFaults(_listed(known, files))
    return plan


class PlanFaults(BenchError):
    """All faults of a plan, one line each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__(" ".join(faults))
        self.faults = tuple(faults)

    def __str__(self) -> str:
        """Return the fault, or a heading and a line for each."""
        if len(self.faults) == 1:
            return self.faults[0]
        lines = [f"- {fault}" for fault in self.faults]
        return "\n".join([f"{len(lines)} faults", *lines])


def _place_of(keys: Iterable[str], files: Sequence[Path]) -> str:
    """Return the file and line of the first of some keys that a file has; "" without."""
    return next(filter(None, (place_of(key, files) for key in keys)), "")


def _listed(known: Known, files: Sequence[Path]) -> list[str]:
    """Return the messages of the faults of a plan.

    Faults of one key are one fault, in the first cell that has it. So are equal
    messages; they have the places of all their keys.
    """
    stated = explicit_values(known.configuration)
    by_message: dict[str, list[CellFault]] = {}
    roots = set[str]()
    for fault in known.faults:
        root = next((key for key in fault.keys if _has_key(stated, key)), "")
        if root in roots:
            continue
        if root:
            roots.add(root)
        by_message.setdefault(fault.message, []).append(fault)
    texts = []
    for message, faults in by_message.items():
        location = f" [in {faults[0].location}]" if faults[0].location else ""
        lines = [_place_of(fault.keys, files) for fault in faults]
        stated_lines = "; ".join(dict.fromkeys(filter(None, lines)))
        text = f"{message}{location}"
        texts.append(f"{text} ({stated_lines})" if stated_lines else text)
    return texts


def _has_key(values: Any, key: str) -> bool:
    """Return whether nested values have a dotted key; a key may have dots itself."""
    if not isinstance(values, Mapping):
        return False
    if key in values:
        return True
    return any(
        key.startswith(f"{name}.") and _has_key(inner, key[len(name) + 1 :])
        for name, inner in values.items()
    )


def _make_plan(known: Known, owned: Collection[str]) -> Plan:
    """Return the plan; see `make_plan`."""
    _check_names(known)
    items = {
        (item.paper, item.name): item
        for paper, experiment in known.configuration.experiments.items()
        if experiment is not None
        for item in _items_of(known, paper, experiment)
    }
    if known.faults:
        return Plan(items=items, runs={})
    runs = with_references(items.values())
    notices = [
        notice
        for run in runs.values()
        if run.dataset in owned
        for notice in ignored_owner_notices(run)
    ]
    return Plan(items=items, runs=runs, notices=tuple(dict.fromkeys(notices)))


def _check_names(known: Known) -> None:
    """Refuse methods, data sets and keys of overlays that do not exist."""
    configuration = known.configuration
    for name in configuration.tuning:
        known_name(name, METHODS, f"tuning.{name}", "method")
    for name, stand_in in configuration.stand_ins.items():
        for dataset in filter(None, (name, stand_in)):
            known.check_dataset(dataset, f"stand_ins.{name}")
    check_overlays(configuration)
    for where, overlay, _ in overlays(configuration):
        if "dataset" in overlay:
            known.check_dataset(overlay["dataset"], f"{where}.dataset")


# Items


def _items_of(
    known: Known, paper: str, experiment: Experiment
) -> Iterator[PlannedItem]:
    """Yield the tables and figures of a paper."""
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
                context = ItemContext(known, paper, experiment, spec, where)
                try:
                    yield _plan_item(context, name)
                except BenchError as error:
                    key = error.key if isinstance(error, KeyFault) else where
                    known.faults.append(CellFault(str(error), "", (key,)))


def _plan_item(item: ItemContext, name: str) -> PlannedItem:
    """Return a table or figure with its cells."""
    spec = item.spec
    if isinstance(spec, TableSettings):
        kind = "table"
        cells = _cells_of_table(item, spec)
    else:
        kind = spec.kind
        cells = _cells_of_figure(item, spec)
    if not cells and not item.known.faults:
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
    followed_tables = {name: _followed_table(item, name) for name in item.series}
    cells = []
    for task in spec.tasks:
        for name, series in item.series.items():
            followed = _searched_cells(followed_tables[name], task, name)
            count = sum(len(cell.runs) for cell in followed)
            tried = points(series.search)
            tried_cells = [
                TableCell(
                    item,
                    task,
                    name,
                    series,
                    point=point,
                    tried=0 if series.search is None else len(tried),
                    followed=count,
                )
                for point in tried
            ]
            compared = item.known.planned(tried_cells)
            if series.search is not None and len(compared) == len(tried_cells):
                check_search(
                    [cell.runs[0] for cell in (*compared, *followed)],
                    f"{item.where}.series.{name}.search",
                )
            cells += compared
    return cells


def _searched_cells(
    item: ItemContext | None, task: str, name: str
) -> list[PlannedCell]:
    """Return the cells of a followed search; empty without one.

    They are those of the task or, where the table lacks it, those of all its tasks.
    """
    if item is None:
        return []
    assert isinstance(item.spec, TableSettings)
    tasks = item.spec.tasks
    if task in tasks:
        tasks = (task,)
    series = item.series[name]
    return [
        TableCell(item, each_task, name, series, point=point, tried=1).plan()
        for each_task in tasks
        for point in points(series.search)
    ]


def _followed_table(item: ItemContext, name: str) -> ItemContext | None:
    """Return the table whose search a series' search follows; None without one."""
    search = item.series[name].search
    if search is None or not search.follows:
        return None
    where = f"{item.where}.series.{name}.search"
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
    assert table is not None
    followed_where = f"experiments.{item.paper}.tables.{search.follows}"
    return dataclasses.replace(item, spec=table, where=followed_where)


def points(search: SearchSpace | None) -> list[dict[str, Any]]:
    """Return the overlays that a search tries, in the order of the grid.

    Without a search, it is one empty overlay.
    """
    if search is None:
        return [{}]
    count = math.prod(map(len, search.values.values()))
    numbers: Collection[int] = range(count)
    if search.runs is not None and search.runs < count:
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
        of_series = item.known.planned(cells)
        planned += of_series
        if of_series and spec.kind != "sweep":
            _check_columns(spec, series, of_series[-1].runs[0], where)
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


def _check_columns(spec: FigureSettings, series: Series, run: Run, where: str) -> None:
    """Refuse columns that the run's history.csv does not have."""
    known = {*HISTORY, *NORMS, *MEASURED}
    if run.trained:
        known |= set(run.client_update.columns(run))
    if spec.kind == "account":
        known = {"round"}
    columns = [spec.x.column]
    for column, curve in ((spec.curves or {}) | (series.curves or {})).items():
        columns += [column, *(curve.band or ()), curve.per]
    for column in filter(None, columns):
        known_name(column, known, where, "column of history.csv")
