"""Cells of tables and figures: a series at a task, expanded to its runs.

The values of a run begin with those of its method's class. Overlays lie over them, of
which later ones override earlier ones: those of several runs (`_shared_values`), then
those of the cell alone (`TableCell._overlays`).
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpfedbench.config.merge import (
    KeyFault,
    keep_declared,
    lay,
    leaves,
    merge,
    set_key,
)
from dpfedbench.config.schema import plain
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import (
    Configuration,
    Experiment,
    FigureSettings,
    MetaTest,
    Series,
    Start,
    TableSettings,
    XAxis,
    explicit_values,
)
from dpfedbench.experiments.datasets import (
    check_holdings,
    check_shared_budget,
    known_name,
    owner_counts,
    with_natural_count,
)
from dpfedbench.experiments.overlays import check_method_and_seed
from dpfedbench.experiments.plan import PlannedCell
from dpfedbench.method import Method
from dpfedbench.papers import METHODS
from dpfedbench.run import Run

if TYPE_CHECKING:
    import numpy as np

AS_RELEASED = "as released, no finite ε"
"""Label of a row or line whose run repeats the authors' code."""

_TEST = "test."

_READ: dict[tuple[type[Method], str], Run] = {}
"""Cache of runs by their method and plain values, as text. Most runs of a plan belong
to several cells.
"""


@dataclasses.dataclass(frozen=True)
class CellFault:
    """Fault of one cell.

    Attributes:
        message: the message, without its place.
        location: name of the cell; "" if the message has it.
        keys: dotted keys in the configuration that may have the fault, the most likely
            first.
    """

    message: str
    location: str
    keys: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Known:
    """Inputs of the expansion of all items.

    Attributes:
        configuration: the whole configuration.
        datasets: names of the existing data sets; None accepts any.
        holdings: contents of the data sets with known sizes.
        shared_values: values that cells share, by paper, task and method
            (`_shared_values`), each laid once.
        owner_counts: results of `count_owners`, each counted once.
        faults: faults of the cells that were planned.
    """

    configuration: Configuration
    datasets: Collection[str] | None
    holdings: Mapping[str, str]
    shared_values: dict[tuple[str, str, str], dict[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    owner_counts: "dict[str, np.ndarray | None]" = dataclasses.field(
        default_factory=dict
    )

    faults: list[CellFault] = dataclasses.field(default_factory=list)

    def planned(self, cells: "Sequence[TableCell]") -> list[PlannedCell]:
        """Return cells with their runs, without those that have a fault (`faults`)."""
        planned = []
        for cell in cells:
            try:
                planned.append(cell.plan())
            except BenchError as error:
                self.faults.append(cell.fault_of(error))
        return planned

    def count_owners(self, name: str) -> "np.ndarray | None":
        """Return how many training examples each owner of a data set has."""
        if name not in self.owner_counts:
            self.owner_counts[name] = owner_counts(name, self.configuration)
        return self.owner_counts[name]

    def check_dataset(self, name: str, where: str) -> None:
        """Refuse a data set that does not exist."""
        if self.datasets is not None:
            known_name(name, self.datasets, where, "data set")


@dataclasses.dataclass(frozen=True)
class ItemContext:
    """Table or figure of a paper, and what its cells depend on.

    Attributes:
        known: inputs of all items.
        paper: name of the paper.
        experiment: settings of the paper.
        spec: settings of the table or figure.
        where: its dotted key.
    """

    known: Known
    paper: str
    experiment: Experiment
    spec: TableSettings | FigureSettings
    where: str

    @property
    def series(self) -> dict[str, Series]:
        """Series of the item that are not null."""
        series = self.spec.series.items()
        return {name: settings for name, settings in series if settings is not None}

    @property
    def axis(self) -> XAxis | None:
        """Horizontal axis of a figure; None for a table."""
        return self.spec.x if isinstance(self.spec, FigureSettings) else None

    def seeds_of(self, task: str) -> tuple[int, ...]:
        """Return the seeds of the runs at a task."""
        if isinstance(self.spec, TableSettings):
            seeds = self.spec.task_seeds.get(task)
            if seeds:
                return seeds
        return self.spec.seeds or self.known.configuration.seeds

    def other_series(self, name: str, of: str, where: str) -> Series | None:
        """Return another series of the item, which series `of` names at key `where`."""
        candidates = [series for series in self.spec.series if series != of]
        known_name(name, candidates, where, "series")
        return self.spec.series[name]


@dataclasses.dataclass(frozen=True)
class TableCell:
    """One cell: a series at a task, and its point of a sweep or search.

    Attributes:
        item: the table or figure.
        task: name of the task.
        name: name of the series.
        series: the series.
        x: the swept value, of a sweep.
        further: overlay of the keys that change with `x`.
        point: overlay of one point of a search.
        tried: number of points of that search.
        followed: number of runs of the search that this one follows.
    """

    item: ItemContext
    task: str
    name: str
    series: Series
    x: float | None = None
    further: Mapping[str, Any] | None = None
    point: Mapping[str, Any] | None = None
    tried: int = 0
    followed: int = 0

    def plan(self) -> PlannedCell:
        """Return the cell with its runs.

        Raises:
            BenchError: a name that does not exist, or a value that does not fit.
        """
        item = self.item
        method = self._check_names()
        values = self._values(method)
        published_dataset = values.get("dataset", "")
        stand_in = item.known.configuration.stand_ins.get(published_dataset)
        values["dataset"] = stand_in or published_dataset
        item.known.check_dataset(values["dataset"], f"{item.where} (task {self.task})")
        values = self._with_other_runs(values)
        try:
            values = with_natural_count(values, item.known.count_owners)
            runs = self._read_runs(method, values)
            tests = self._tests_of(runs)
            for run in (runs[0], *tests[:1]):
                check_holdings(run, item.known.holdings.get(run.dataset, ""))
            check_shared_budget(runs[0])
        except BenchError as error:
            raise BenchError(f"{error} [in {self._location}]") from error
        if self.series.repairs:
            item.other_series(self.series.repairs, self.name, self._where)
        first = runs[0]
        as_released = AS_RELEASED if first.reading == "as-released" else ""
        start = first.initial.label
        return PlannedCell(
            series=self.name,
            label=_join(self.series.label or self.name, as_released, start),
            variant=_join(self._variant, as_released, start),
            searched=self.tried * len(runs) + self.followed,
            repairs=self.series.repairs,
            x=None if self.x is None else float(self.x),
            runs=runs,
            published_dataset=published_dataset,
            mismatch=self._mismatch(first, published_dataset),
            tests=() if tests == runs else tests,
        )

    def fault_of(self, error: BenchError) -> CellFault:
        """Return the fault of this cell, with the keys that may have it.

        They are the keys that the message names, in the overlays of the cell that
        override others first, and then the series.
        """
        message = str(error).removesuffix(f" [in {self._location}]")
        location = self._location if len(message) < len(str(error)) else ""
        keys = [error.key] if isinstance(error, KeyFault) else []
        for key in re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+\b", message):
            keys += [f"{overlay}.{key}" for overlay in self._overlay_keys()]
        keys += [*self._stand_in_keys(), self._where, self.item.where]
        return CellFault(message, location, tuple(dict.fromkeys(keys)))

    def _stand_in_keys(self) -> list[str]:
        """Return the key that replaces the data set of the cell; none without one."""
        try:
            published = self._values(self._check_names()).get("dataset", "")
        except BenchError:
            return []
        is_replaced = self.item.known.configuration.stand_ins.get(published)
        return [f"stand_ins.{published}"] if is_replaced else []

    def _overlay_keys(self) -> list[str]:
        """Return the dotted keys of the overlays of the cell, the last laid first."""
        paper = f"experiments.{self.item.paper}"
        method = METHODS.get(self.series.method)
        groups = list(method.groups())[::-1] if method is not None else []
        return [
            f"{self._where}.run",
            *(f"{paper}.variants.{name}" for name in reversed(self._variants)),
            *(f"{paper}.methods.{group}" for group in groups),
            *(f"methods.{group}" for group in groups),
            f"{paper}.tasks.{self.task}",
            f"{paper}.run",
            "run",
            *(f"small.{group}" for group in groups),
        ]

    @property
    def _where(self) -> str:
        """Dotted key of the series."""
        return f"{self.item.where}.series.{self.name}"

    @property
    def _location(self) -> str:
        """Name of the cell for messages."""
        location = f"{self.item.where}, task {self.task}, series {self.name}"
        if self.x is None:
            return location
        return f"{location} at {self._swept_key} {self.x:g}"

    @property
    def _swept_key(self) -> str:
        """Key whose value is `x`."""
        if isinstance(self.series.sweep, str):
            return self.series.sweep
        return (self.item.axis and self.item.axis.key) or ""

    @property
    def _variants(self) -> tuple[str, ...]:
        """Names of the variants that the series uses."""
        use = self.series.use
        return (use,) if isinstance(use, str) else use

    def _check_names(self) -> type[Method]:
        """Return the series' method. Refuse names that do not exist."""
        experiment = self.item.experiment
        known_name(self.task, experiment.tasks, self.item.where, "task")
        known_name(self.series.method, METHODS, f"{self._where}.method", "method")
        for name in self._variants:
            known_name(name, experiment.variants, f"{self._where}.use", "variant")
        return METHODS[self.series.method]

    # Values

    def _values(self, method: type[Method]) -> dict[str, Any]:
        """Return the values of the method's class with all overlays laid over them.

        Raises:
            KeyFault: an overlay has a key that the method does not have.
        """
        try:
            name = (self.item.paper, self.task, method.name)
            shared = self.item.known.shared_values
            if name not in shared:
                shared[name] = _shared_values(self.item, self.task, method)
            values = dict(shared[name])
            for where, overlay in self._overlays(method):
                check_method_and_seed(overlay, where)
                values = lay(method, values, overlay, where)
        except KeyFault as fault:
            message = f"{fault} [in {self._location}]"
            raise KeyFault(message, fault.key) from None
        return values

    def _overlays(
        self, method: type[Method]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the overlays of this cell alone, with their dotted keys.

        They are the settings of the released code, the variants that the series uses,
        its `run`, the point of a search, and the swept value.
        """
        paper = f"experiments.{self.item.paper}"
        yield f"{method.name}.released", self._released_settings(method)
        for name in self._variants:
            yield f"{paper}.variants.{name}", self.item.experiment.variants[name]
        yield f"{self._where}.run", self.series.run
        yield f"{self._where}.search.values", self.point or {}
        if self.x is not None and not self._swept_key.startswith(_TEST):
            swept = set_key({}, self._swept_key, _whole(self.x))
            yield f"{self.item.where}.x.key", swept
            yield f"{self.item.where}.x.also", self.further or {}

    def _released_settings(self, method: type[Method]) -> dict[str, Any]:
        """Return the settings of the method's released code, if the series repeats it.

        Raises:
            BenchError: the method's file does not state them.
        """
        if self.series.reading != "as-released":
            return {}
        released = vars(method).get("released")
        if released is None:
            raise BenchError(
                f"{self._where}.reading is as-released, but {method.name} states no"
                " settings of its authors' code: leave reading out"
            )
        return {**released, "reading": self.series.reading}

    def _with_other_runs(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with the runs that the series names: the search of its
        network, and the run that it starts from.
        """
        if self.series.searched_by:
            search = {"kind": "found", "search": named(self._search_run())}
            values = set_key(values, "model.genotype", search)
        start = self.series.start
        if start is not None:
            run = {
                "kind": "run",
                "public": start.public,
                "run": named(self._start_run(start)),
            }
            values = {**values, "initial": run}
        return values

    def _search_run(self) -> Run:
        """Return the run of another series that finds the cells of the network."""
        name = self.series.searched_by
        where = f"{self._where}.searched_by"
        search = self.item.other_series(name, self.name, where)
        if search is None or search.searched_by:
            raise BenchError(
                f"{where} is {name}, which does not search: name a series that searches"
                " and is not null"
            )
        return TableCell(self.item, self.task, name, search).plan().runs[0]

    def _start_run(self, start: Start) -> Run:
        """Return the run that the runs of the series start from."""
        settings = explicit_values(start)
        settings.pop("public", None)
        series = Series.read(settings, f"{self._where}.start")
        return (
            TableCell(self.item, self.task, f"{self.name}.start", series).plan().runs[0]
        )

    # Runs

    def _read_runs(
        self, method: type[Method], values: Mapping[str, Any]
    ) -> tuple[Run, ...]:
        """Return the runs of these values, one for each seed."""
        seeds = self.item.seeds_of(self.task)
        first = _read(method, {**values, "method": method.name, "seed": seeds[0]})
        if first.private and self._is_searched_privately():
            first = first.replace(streams="own")
        if self.series.search is not None and not first.validation.every:
            raise BenchError(
                "a search chooses by validation tasks: set validation.every above 0"
            )
        declared = self.item.known.configuration.tuning.get(self.series.method)
        if self.series.search and declared and declared.number != "fixed":
            raise BenchError(
                f"tuning.{method.name}.number is {declared.number}, but this series"
                " compares a fixed number of runs: set it to fixed, or leave out the"
                " search"
            )
        return (first, *(first.with_seed(seed) for seed in seeds[1:]))

    def _is_searched_privately(self) -> bool:
        """Return whether the run belongs to a search whose runs read private data.

        All searches of tables do. The account composes the runs of a search, so that
        they must not draw the same cohorts and noise. A run with the same settings
        outside a search keeps its streams and its key, and is another run.
        """
        declared = self.item.known.configuration.tuning.get(self.series.method)
        is_declared = declared is not None and declared.data == "private"
        return is_declared or self.series.search is not None

    def _tests_of(self, runs: tuple[Run, ...]) -> tuple[Run, ...]:
        """Return the runs under the meta-test of the figure or series, if it has one."""
        spec = self.item.spec
        sections = [self.series.test]
        if isinstance(spec, FigureSettings):
            sections.insert(0, spec.test)
        test = merge(
            *(explicit_values(section) for section in sections if section is not None)
        )
        if self.x is not None and self._swept_key.startswith(_TEST):
            test[self._swept_key.removeprefix(_TEST)] = _whole(self.x)
        if not test:
            return ()
        checked = explicit_values(MetaTest.read(test, f"{self.item.where}.test"))
        first = runs[0].tested_at(**checked)
        return (first, *(first.with_seed(run.seed) for run in runs[1:]))

    # Labels

    @property
    def _variant(self) -> str:
        """Text that a table adds to the method's title."""
        axis = self.item.axis
        if axis is not None and axis.symbol and self.x is not None:
            return f"{axis.symbol}={self.x:g}"
        values = leaves(self.point or {}).items()
        variant = _join(*(f"{key} {_short(value)}" for key, value in values))
        variant = variant or self.series.variant
        if variant or not self._shares_its_name():
            return variant
        return self.series.label or self.name

    def _shares_its_name(self) -> bool:
        """Return whether another row of the table has the method's title alone too."""
        if not isinstance(self.item.spec, TableSettings):
            return False
        rows = [
            row
            for row in self.item.series.values()
            if row.search is None
            and row.method == self.series.method
            and not row.variant
        ]
        return len(rows) > 1

    def _mismatch(self, run: Run, published_dataset: str) -> str:
        """Return why the cell is not comparable with the published value; "" if so.

        Of the published scale, keys count that the run has: no cohort for lots.
        """
        if run.dataset != published_dataset:
            return f"published on {published_dataset}, measured on {run.dataset}"
        if not run.trained or not run.participation.rounds:
            return ""  # nothing is trained, so no scale of training sets it apart
        experiment = self.item.experiment
        published = experiment.published_at_methods.get(
            run.method, experiment.published_at
        )
        ours = leaves({key: plain(getattr(run, key, None)) for key in published})
        return "; ".join(
            f"{key} {_short(value)} at the published scale, {_short(ours[key])} here"
            for key, value in leaves(published).items()
            if key in ours and ours[key] != value
        )


def _shared_values(
    item: ItemContext, task: str, method: type[Method]
) -> dict[str, Any]:
    """Return the values that the cells of a method at a task of a paper share.

    They are those of the method's class, and over them the configuration's small values
    (unless the paper has the published sizes), its overlay for all methods, the
    overlays of the paper and of the task for all methods, the method's defaults, and
    the overlays for groups of methods and for the method (the configuration's, then the
    paper's).
    """
    configuration = item.known.configuration
    experiment = item.experiment
    where = f"experiments.{item.paper}"
    small = configuration.small if experiment.sizes == "small" else {}
    values = method.default_values()
    for key, overlay in (
        *_sections(method, "small", small),
        ("run", keep_declared(method, configuration.run)),
        (f"{where}.run", keep_declared(method, experiment.run)),
        (f"{where}.tasks.{task}", keep_declared(method, experiment.tasks[task])),
        (f"{method.name}.defaults", method.defaults),
        *_sections(method, "methods", configuration.methods),
        *_sections(method, f"{where}.methods", experiment.methods),
    ):
        values = lay(method, values, overlay, key)
    return values


def _sections(
    method: type[Method], where: str, sections: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the overlays for a method with their keys, those for more methods first.

    The one for all methods is without the parts that are not for this method.
    """
    for group in method.groups():
        if group in sections:
            overlay = sections[group]
            if group == "all":
                overlay = keep_declared(method, overlay)
            yield f"{where}.{group}", overlay


def _read(method: type[Method], values: Mapping[str, Any]) -> Run:
    """Return the run of these plain values.

    Runs are immutable, so that each is read and checked once in a process.
    """
    key = method, repr(values)
    if key not in _READ:
        _READ[key] = method.read(values)
    return _READ[key]


def named(run: Run) -> dict[str, Any]:
    """Return the values that identify a run in another's settings, without its seed.

    They are the values that differ from the defaults, so that a key that is added later
    does not change the identity.
    """
    identity = run.identity()
    try:
        is_complete = type(run).of_identity(identity) == run
    except BenchError:
        is_complete = False
    values = identity if is_complete else run.plain()
    return {key: value for key, value in values.items() if key != "seed"}


def _whole(value: float) -> float | int:
    """Return a whole number as an integer, for messages."""
    return int(value) if value == int(value) else value


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _join(*texts: str) -> str:
    """Return the texts that are not empty, separated by commas."""
    return ", ".join(filter(None, texts))
