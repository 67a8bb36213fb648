"""Expansion of a configuration to its plan: tables and figures to cells, and cells to
runs.
"""

import dataclasses
import keyword
import math
import random
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import (
    Configuration,
    Experiment,
    FigureSettings,
    MetaTest,
    SearchSpace,
    Series,
    TableSettings,
    given,
)
from dpfedbench.experiments.datasets import CALLED, check_holdings, known_name
from dpfedbench.experiments.overlays import (
    Methods,
    check_given,
    check_overlays,
    overlays,
)
from dpfedbench.experiments.plan import Plan, PlannedCell, PlannedItem
from dpfedbench.method import Method
from dpfedbench.papers import METHODS
from dpfedbench.results_format import HISTORY, MEASURED, NORMS
from dpfedbench.settings.merge import fit, leaves, merge, set_key

_TEST = "test."
AS_RELEASED = "as released, no finite ε"
"""Label of a row or line whose run repeats the authors' code."""

_OWN_TABLES = ("privacy", "answer")
"""Tables that the workflow makes for each paper, without configuration."""

_READ: dict[tuple[type[Method], str], Method] = {}
"""Cache of runs by their method and plain values, as text. Most runs of a plan belong
to several cells.
"""


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
    known = _Known(configuration, methods, datasets, holdings or {})
    for key in ("methods", "tuning"):
        for name in getattr(configuration, key):
            known_name(name, methods, f"{key}.{name}", "method")
    for name, stand_in in configuration.stand_ins.items():
        for used in filter(None, (name, stand_in)):
            known.dataset(used, f"stand_ins.{name}")
        held = [
            known.holdings.get(used or "", "").partition(" ")[0]
            for used in (name, stand_in)
        ]
        if all(held) and held[0] != held[1]:
            raise BenchError(
                f"stand_ins.{name} is {stand_in}, which holds {CALLED[held[1]]}, but"
                f" {name} holds {CALLED[held[0]]}: take another, or null"
            )
    check_overlays(configuration, methods)
    for where, overlay, _ in overlays(configuration):
        if "dataset" in overlay:
            known.dataset(overlay["dataset"], f"{where}.dataset")
    items: dict[tuple[str, str], PlannedItem] = {}
    for paper, experiment in configuration.experiments.items():
        if experiment is None:
            continue
        if not (target := paper.replace("-", "_")).isidentifier() or keyword.iskeyword(
            target
        ):
            raise BenchError(
                f"experiments.{paper}: a paper is a target of the workflow, and"
                f" {target} cannot be one: let its name begin with a letter, and be no"
                " word of Python"
            )
        for group, specs in (
            ("tables", experiment.tables),
            ("figures", experiment.figures),
        ):
            for name, spec in specs.items():
                if spec is None:
                    continue
                if name in _OWN_TABLES:
                    raise BenchError(
                        f"experiments.{paper}.{group}.{name}: the workflow makes a"
                        " table of this name, choose another"
                    )
                if (paper, name) in items:
                    raise BenchError(
                        f"experiments.{paper} has a table and a figure {name}: give one"
                        " another name"
                    )
                where = f"experiments.{paper}.{group}.{name}"
                items[paper, name] = _Expansion(
                    known, paper, experiment, spec, where
                ).item(name)
    if not items:
        raise BenchError(
            "experiments has no table or figure left: leave at least one that is not"
            " null"
        )
    runs: dict[str, Method] = {}
    waiting: list[Any] = [run for item in items.values() for run in item.runs.values()]
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
    return Plan(items=items, runs=runs)


@dataclasses.dataclass(frozen=True)
class _Known:
    """Inputs of the expansion of all items.

    `laid` caches the values of a method at a paper's task.
    """

    configuration: Configuration
    methods: Methods
    datasets: Collection[str] | None
    holdings: Mapping[str, str]
    laid: dict[tuple[str, str, str], dict[str, Any]] = dataclasses.field(
        default_factory=dict
    )

    def dataset(self, name: str, where: str) -> None:
        """Refuse a data set that does not exist."""
        if self.datasets is not None:
            known_name(name, self.datasets, where, "data set")


@dataclasses.dataclass(frozen=True)
class _Expansion:
    """Expansion of one table or figure of a paper; `where` is its dotted key."""

    known: _Known
    paper: str
    experiment: Experiment
    spec: TableSettings | FigureSettings
    where: str

    def item(self, name: str) -> PlannedItem:
        spec = self.spec
        cells = (
            self._table(spec) if isinstance(spec, TableSettings) else self._figure(spec)
        )
        if not cells:
            where = self.where
            raise BenchError(
                f"{where} has no cell left: give it a series that is not null, or set"
                f" {where} to null"
            )
        kind = "table" if isinstance(spec, TableSettings) else spec.kind
        return PlannedItem(
            paper=self.paper, name=name, kind=kind, spec=given(spec), cells=tuple(cells)
        )

    @property
    def _series(self) -> dict[str, Series]:
        """Series of the item that are not null."""
        return {
            name: series
            for name, series in self.spec.series.items()
            if series is not None
        }

    def _other(self, name: str, of: str, where: str) -> Series | None:
        """Return another series of the item, which series `of` names at key `where`."""
        known_name(
            name, [known for known in self.spec.series if known != of], where, "series"
        )
        return self.spec.series[name]

    def _table(self, spec: TableSettings) -> list[PlannedCell]:
        for task in spec.task_seeds:
            known_name(task, self.experiment.tasks, f"{self.where}.task_seeds", "task")
        if spec.share_of is not None:
            known_name(spec.share_of, self._series, f"{self.where}.share_of", "series")
        tried = {
            name: points(series.search, f"{self.where}.series.{name}.search")
            for name, series in self._series.items()
        }
        return [
            self._cell(
                task,
                name,
                series,
                point=point,
                tried=self._compared(name, series, self.where),
            )
            for task in spec.tasks
            for name, series in self._series.items()
            for point in tried[name]
        ]

    def _compared(self, name: str, series: Series, where: str) -> int:
        """Return the number of settings that a search compares; 0 without a search.

        It includes the settings of the search that this one follows.
        """
        search = series.search
        if search is None:
            return 0
        key = f"{where}.series.{name}.search"
        count = len(points(search, key))
        if not search.follows:
            return count
        tables = self.experiment.tables
        other_tables = [table for table in tables if tables[table] is not self.spec]
        known_name(search.follows, other_tables, f"{key}.follows", "table")
        first = tables[search.follows]
        before = None if first is None else first.series.get(name)
        if before is None or before.search is None or before.search.follows:
            raise BenchError(
                f"{key}.follows is {search.follows}, which has no search of its own for"
                f" {name}: name a table that searches its settings first"
            )
        return count + len(points(before.search, key))

    def _figure(self, spec: FigureSettings) -> list[PlannedCell]:
        where = self.where
        needs: tuple[str, ...] = (
            ("key", "values") if spec.kind in ("sweep", "frontier") else ("column",)
        )
        if spec.x.show != "value":
            if spec.kind != "sweep":
                raise BenchError(
                    f"{where}.x.show is {spec.x.show}: a {spec.kind} figure has no ε"
                    " for each point"
                )
            needs = (
                ("key", "values")
                if spec.x.key is not None or spec.x.values is not None
                else ()
            )
        if spec.kind == "account" and spec.x.column is None:
            needs = ("key", "values")
        for key in needs:
            if getattr(spec.x, key) is None:
                raise BenchError(
                    f"{where}.x.{key} is missing: a {spec.kind} figure needs it"
                )
        values = spec.x.values or ()
        also = spec.x.also if spec.x.also is not None else ({},) * len(values)
        if len(also) != len(values):
            raise BenchError(
                f"{where}.x.also has {len(also)} overlays for {len(values)} values:"
                " give one for each, in their order"
            )
        cells = []
        for name, series in self._series.items():
            if series.search is not None:
                raise BenchError(
                    f"{where}.series.{name}.search is for a table: leave it out of a"
                    " figure"
                )
            if spec.kind == "history" and series.curves is None and spec.curves is None:
                raise BenchError(
                    f"{where}.series.{name}.curves is missing: name the columns of"
                    " history.csv to draw"
                )
            if spec.kind == "account" and (
                series.profile is None or series.epsilon is None
            ):
                raise BenchError(
                    f"{where}.series.{name} needs profile and epsilon: a figure of"
                    " accounts shows delta"
                )
            swept = spec.x.key is not None and series.sweep
            for x, more in zip(values, also, strict=True) if swept else ((None, None),):
                cells.append(self._cell(spec.task, name, series, x=x, more=more))
            if spec.kind != "sweep":
                self._check_columns(
                    spec, series, cells[-1].runs[0], f"{where}.series.{name}"
                )
        return cells

    def _check_columns(
        self, spec: FigureSettings, series: Series, run: Method, where: str
    ) -> None:
        """Refuse columns that the run's history.csv does not have."""
        known = {
            *HISTORY,
            *NORMS,
            *MEASURED,
            *(run.client.columns(run) if run.trained else ()),
        }
        named = [spec.x.column] if spec.x.column else []
        for column, curve in ((spec.curves or {}) | (series.curves or {})).items():
            named += [column, *(curve.band or ()), *([curve.per] if curve.per else [])]
        for column in named:
            known_name(
                column,
                {"round"} if spec.kind == "account" else known,
                where,
                "column of history.csv",
            )

    def _cell(
        self,
        task: str,
        name: str,
        series: Series,
        *,
        x: float | None = None,
        more: Mapping[str, Any] | None = None,
        point: Mapping[str, Any] = MappingProxyType({}),
        tried: int = 0,
    ) -> PlannedCell:
        """Return the cell of a series at a task.

        Args:
            task: name of the task.
            name: name of the series.
            series: the series.
            x: the swept value, of a sweep.
            more: overlay of the keys that change with `x`.
            point: overlay of one point of a search.
            tried: number of points of that search.
        """
        spec = self.spec
        where = self.where
        of_series = f"{self.where}.series.{name}"
        known_name(task, self.experiment.tasks, where, "task")
        known_name(series.method, self.known.methods, f"{of_series}.method", "method")
        cls = self.known.methods[series.method]
        axis = spec.x if isinstance(spec, FigureSettings) else None
        swept = (
            series.sweep if isinstance(series.sweep, str) else (axis and axis.key) or ""
        )
        # Values of this cell alone have to fit its method.
        uses = (series.use,) if isinstance(series.use, str) else series.use
        for used in uses:
            known_name(used, self.experiment.variants, f"{of_series}.use", "variant")
        released: dict[str, Any] = {}
        if series.reading == "as-released":
            released = {
                **_released_settings(cls, of_series),
                "reading": series.reading,
            }
        overlay = merge(
            released,
            *(self.experiment.variants[used] for used in uses),
            series.run,
            point,
        )
        figure_test = spec.test if isinstance(spec, FigureSettings) else None
        test: dict[str, Any] = (given(figure_test) if figure_test else {}) | (
            given(series.test) if series.test else {}
        )
        if x is not None and swept.startswith(_TEST):
            test[swept.removeprefix(_TEST)] = _whole(x)
        elif x is not None:
            overlay = merge(set_key(overlay, swept, _whole(x)), more)
        values = fit(cls, merge(self._general(series.method, task), overlay), overlay)
        published_dataset = values.get("dataset", "")
        values["dataset"] = (
            self.known.configuration.stand_ins.get(published_dataset)
            or published_dataset
        )
        self.known.dataset(values["dataset"], f"{where} (task {task})")
        searches = self._searches(task, name, series)
        start = self._start(task, name, series)
        seeds = self.known.configuration.seeds if spec.seeds is None else spec.seeds
        if isinstance(spec, TableSettings):
            seeds = spec.task_seeds.get(task) or seeds
        try:
            check_given(overlay, f"experiments.{self.paper}")
            if searches is not None:
                values["model"] = {
                    **values["model"],
                    "genotype": {"kind": "found", "search": searches},
                }
            if start is not None:
                values["initial"] = start
            first = _read(cls, {**values, "method": series.method, "seed": seeds[0]})
            if first.private and self._searched_on_private_data(series):
                first = first.replace(streams="own")
            runs = (first, *(first.replace(seed=seed) for seed in seeds[1:]))
            if series.search is not None and not first.validation.every:
                raise BenchError(
                    "a search chooses by validation tasks: set validation.every above 0"
                )
            checked = given(MetaTest.read(test, f"{where}.test"))
            tests = tuple(run.tested_at(**checked) for run in runs) if test else ()
            for tested in (first, *tests[:1]):
                check_holdings(tested, self.known.holdings.get(first.dataset, ""))
        except BenchError as error:
            at = f" at {swept} {x:g}" if x is not None else ""
            raise BenchError(
                f"{error} [in {where}, task {task}, series {name}{at}]"
            ) from error
        if axis is not None and axis.symbol and x is not None:
            variant = f"{axis.symbol}={x:g}"
        else:
            variant = (
                ", ".join(
                    f"{key} {_short(value)}" for key, value in leaves(point).items()
                )
                or series.variant
            )
        if not variant and isinstance(spec, TableSettings) and _same_name(spec, series):
            variant = series.label or name
        if first.reading == "as-released":
            variant = ", ".join(filter(None, (variant, AS_RELEASED)))
        if series.repairs:
            self._other(series.repairs, name, of_series)
        return PlannedCell(
            series=name,
            label=", ".join(
                filter(
                    None,
                    (
                        series.label or name,
                        AS_RELEASED if first.reading == "as-released" else "",
                        first.initial.label,
                    ),
                )
            ),
            variant=", ".join(filter(None, (variant, first.initial.label))),
            searched=tried * len(runs),
            repairs=series.repairs,
            x=None if x is None else float(x),
            runs=runs,
            published_dataset=published_dataset,
            mismatch=self._mismatch(first, published_dataset),
            tests=() if tests == runs else tests,
        )

    def _searched_on_private_data(self, series: Series) -> bool:
        """Return whether the run belongs to a search whose runs read private data.

        All searches of tables do. The account composes the runs of a search, so that
        they must not draw the same cohorts and noise. A run with the same settings
        outside a search keeps its streams and its key, and is another run.
        """
        declared = self.known.configuration.tuning.get(series.method)
        return series.search is not None or (
            declared is not None and declared.data == "private"
        )

    def _searches(
        self, task: str, name: str, series: Series
    ) -> Mapping[str, Any] | None:
        """Return the run that finds the cells of a series' network, without its seed.

        It is the run of another series of the item. None without a search.
        """
        if not series.searched_by:
            return None
        where = f"{self.where}.series.{name}.searched_by"
        search = self._other(series.searched_by, name, where)
        if search is None or search.searched_by:
            raise BenchError(
                f"{where} is {series.searched_by}, which is no search: name a series"
                " that searches and is not null"
            )
        return named(self._cell(task, series.searched_by, search).runs[0])

    def _start(self, task: str, name: str, series: Series) -> Mapping[str, Any] | None:
        """Return the initial weights that come from another run; None without one."""
        if series.start is None:
            return None
        values = {
            key: value for key, value in given(series.start).items() if key != "public"
        }
        first_series = Series.read(values, f"{self.where}.series.{name}.start")
        run = self._cell(task, f"{name}.start", first_series).runs[0]
        return {"kind": "run", "public": series.start.public, "run": named(run)}

    def _general(self, method: str, task: str) -> dict[str, Any]:
        """Return the values of a method at a task that the cells share.

        The layers, each merged over the ones before: the configuration's `run`, the
        paper's `run`, the task, the method's defaults, and the configuration's and the
        paper's overlays for the method. So a method's structure overrides a task's
        values.
        """
        configuration = self.known.configuration
        cell = (self.paper, method, task)
        if cell not in self.known.laid:
            self.known.laid[cell] = merge(
                configuration.run,
                self.experiment.run,
                self.experiment.tasks[task],
                self.known.methods[method].defaults,
                configuration.methods.get(method),
                self.experiment.methods.get(method),
            )
        return self.known.laid[cell]

    def _mismatch(self, run: Method, published_dataset: str) -> str:
        if run.dataset != published_dataset:
            return f"published on {published_dataset}, measured on {run.dataset}"
        if not run.trained or not run.participation.rounds:
            return ""  # nothing is trained, so no scale of training sets it apart
        ours = leaves(run.plain())
        published = self.experiment.published_at_methods.get(
            run.method, self.experiment.published_at
        )
        differing = [
            f"{key} {_short(value)} at the published scale, {_short(ours.get(key))}"
            " here"
            for key, value in leaves(published).items()
            if ours.get(key) != value
        ]
        return "; ".join(differing)


def _read(cls: type[Method], values: Mapping[str, Any]) -> Method:
    """Return the run of these plain values.

    Runs are immutable, so that each is read and checked once in a process.
    """
    key = cls, repr(values)
    if key not in _READ:
        _READ[key] = cls.read(values)
    return _READ[key]


def _released_settings(cls: type[Method], where: str) -> dict[str, Any]:
    """Return the settings of a method's released code.

    Raises:
        BenchError: the method's file does not state them.
    """
    released: dict[str, Any] | None = vars(cls).get("released")
    if released is None:
        raise BenchError(
            f"{where}.reading is as-released, but {cls.name} states no settings of its"
            " authors' code: leave reading out"
        )
    return released


def _same_name(table: TableSettings, series: Series) -> bool:
    """Return whether another row of the table would have the same name as this one.

    The name is the method's title alone.
    """
    rows = [
        row for row in table.series.values() if row is not None and row.search is None
    ]
    return sum(row.method == series.method and not row.variant for row in rows) > 1


def named(run: Method) -> dict[str, Any]:
    """Return the values that identify a run in another's settings, without its seed.

    They are the values that differ from the defaults, so that a key that is added later
    does not change the identity.
    """
    identity = run.identity()
    try:
        same = _read(type(run), identity) == run
    except BenchError:
        same = False
    return {
        key: value
        for key, value in (identity if same else run.plain()).items()
        if key != "seed"
    }


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
    drawn = (
        range(count)
        if search.runs is None
        else sorted(random.Random(search.seed).sample(range(count), search.runs))
    )
    chosen = []
    for point_number in drawn:
        point = dict[str, Any]()
        rest = point_number
        for (key, values), size in zip(search.values.items(), sizes, strict=True):
            rest, index = divmod(rest, size)
            point = set_key(point, key, values[index])
        chosen.append(point)
    return chosen


def _whole(value: float) -> float | int:
    """Return a whole number as an integer, for messages."""
    return int(value) if value == int(value) else value


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
