"""From a configuration to its plan: papers' items into cells, and cells into runs."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import (
    Configuration,
    Experiment,
    Figure,
    MetaTest,
    Series,
    Table,
    given,
)
from dpfedbench.experiments.datasets import known_name
from dpfedbench.experiments.plan import Cell, Item, Plan
from dpfedbench.methods import METHODS
from dpfedbench.methods.method import Method
from dpfedbench.settings import layers
from dpfedbench.settings.layers import leaves, set_key
from dpfedbench.settings.part import shapes
from dpfedbench.settings.words import dotted

Methods = Mapping[str, type[Method]]
_TEST = "test."


def make_plan(
    configuration: Configuration, *, methods: Methods = METHODS, datasets: Collection[str] | None = None
) -> Plan:
    """Expand a configuration into items and runs.

    Args:
        configuration: the whole.
        methods: by name.
        datasets: the names of the data sets there are; None takes any.

    Raises:
        BenchError: a bad key or value, by its full name; a method, task or data set that does not exist.
    """
    for section in (configuration.methods, configuration.tuning):
        for name in section:
            known_name(name, methods, f"{'tuning' if section is configuration.tuning else 'methods'}.{name}", "method")
    for name, stand_in in configuration.stand_ins.items():
        for used in (name, stand_in):
            if used is not None and datasets is not None:
                known_name(used, datasets, f"stand_ins.{name}", "data set")
    check_overlays(configuration, methods)
    items: dict[tuple[str, str], Item] = {}
    for paper, experiment in configuration.experiments.items():
        if experiment is None:
            continue
        expand = _Expansion(configuration, paper, experiment, methods, datasets)
        for group, specs in (("tables", experiment.tables), ("figures", experiment.figures)):
            for name, spec in specs.items():
                if spec is not None:
                    items[paper, name] = expand.item(group, name, spec)
    if not items:
        raise BenchError("experiments has no table or figure left: leave at least one that is not null")
    runs: dict[str, Method] = {}
    waiting: list[Any] = [run for item in items.values() for run in item.runs.values()]
    while waiting:
        run = waiting.pop(0)
        if runs.setdefault(run.folder, run) != run:
            raise BenchError(f"two different runs share the folder {run.folder}: report this as a fault of dpfedbench")
        waiting += [other for other in run.references.values() if other.folder not in runs]
    return Plan(items=items, runs=runs)


def check_overlays(configuration: Configuration, methods: Methods) -> None:
    """Refuse what no method knows in overlays for all methods, and what does not fit in those for one.

    Raises:
        BenchError: by the full name of the key.
    """
    everything = list(methods.values())
    for where, overlay in _general(configuration):
        _check_given(overlay, where)
        layers.check(everything, overlay, where)
    for where, overlay in _of_methods(configuration):
        method = where.rpartition(".")[2]
        known_name(method, methods, where, "method")
        _check_given(overlay, where)
        _check_fits(methods, method, overlay, where)
        layers.check(methods[method], overlay, where, owner=method)


def _general(configuration: Configuration) -> list[tuple[str, Mapping[str, Any]]]:
    """The overlays that are for all methods, by their keys."""
    found: list[tuple[str, Mapping[str, Any]]] = [("run", configuration.run)]
    for paper, experiment in configuration.experiments.items():
        if experiment is not None:
            where = f"experiments.{paper}"
            found += [(f"{where}.run", experiment.run), (f"{where}.published_at", experiment.published_at)]
            found += [(f"{where}.tasks.{name}", overlay) for name, overlay in experiment.tasks.items()]
            found += [(f"{where}.variants.{name}", overlay) for name, overlay in experiment.variants.items()]
    return found


def _of_methods(configuration: Configuration) -> list[tuple[str, Mapping[str, Any]]]:
    """The overlays that are for one method, by their keys."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    found += [(f"methods.{name}", overlay) for name, overlay in configuration.methods.items()]
    for paper, experiment in configuration.experiments.items():
        if experiment is not None:
            found += [(f"experiments.{paper}.methods.{name}", overlay) for name, overlay in experiment.methods.items()]
    return found


def _check_given(overlay: Mapping[str, Any], where: str) -> None:
    for key in ("method", "seed"):
        if key in overlay:
            raise BenchError(f"unknown key {where}.{key}: a run has its method from its series and its seed from seeds")


def _check_fits(methods: Methods, name: str, overlay: Mapping[str, Any], where: str) -> None:
    """Refuse a section that a method does not have and others have: it would be another method."""
    for key in overlay:
        if key in shapes(methods[name]) or key == "method":
            continue
        having = [other for other, cls in methods.items() if key in shapes(cls)]
        if having:
            raise BenchError(
                f"{dotted(where, key)}: {name} has no {key}; leave it out, or take one of {', '.join(having)}"
            )


@dataclasses.dataclass(frozen=True)
class _Expansion:
    """The expansion of one paper's experiment."""

    configuration: Configuration
    paper: str
    experiment: Experiment
    methods: Methods
    datasets: Collection[str] | None
    _laid: dict[tuple[str, str], dict[str, Any]] = dataclasses.field(default_factory=dict)

    def item(self, group: str, name: str, spec: Table | Figure) -> Item:
        where = f"experiments.{self.paper}.{group}.{name}"
        cells = self._table(spec, where) if isinstance(spec, Table) else self._figure(spec, where)
        if not cells:
            raise BenchError(f"{where} has no cell left: give it a series that is not null, or set {where} to null")
        kind = "table" if isinstance(spec, Table) else spec.kind
        return Item(paper=self.paper, name=name, kind=kind, spec=given(spec), cells=tuple(cells))

    def _table(self, spec: Table, where: str) -> list[Cell]:
        return [
            self._cell(spec, task, name, series, where)
            for task in spec.tasks
            for name, series in spec.series.items()
            if series is not None
        ]

    def _figure(self, spec: Figure, where: str) -> list[Cell]:
        needs: tuple[str, ...] = ("key", "values") if spec.kind in ("sweep", "frontier") else ("column",)
        if spec.x.show != "value":
            if spec.kind != "sweep":
                raise BenchError(f"{where}.x.show is {spec.x.show}: a {spec.kind} figure has no ε for each point")
            needs = ("key", "values") if spec.x.key is not None or spec.x.values is not None else ()
        if spec.kind == "account" and spec.x.column is None:
            needs = ("key", "values")
        for key in needs:
            if getattr(spec.x, key) is None:
                raise BenchError(f"{where}.x.{key} is missing: a {spec.kind} figure needs it")
        values = spec.x.values or ()
        also = spec.x.also if spec.x.also is not None else ({},) * len(values)
        if len(also) != len(values):
            raise BenchError(
                f"{where}.x.also has {len(also)} overlays for {len(values)} values: give one for each, in their order"
            )
        cells = []
        for name, series in spec.series.items():
            if series is None:
                continue
            if spec.kind == "history" and series.curves is None and spec.curves is None:
                raise BenchError(f"{where}.series.{name}.curves is missing: name the columns of history.csv to draw")
            if spec.kind == "account" and (series.profile is None or series.epsilon is None):
                raise BenchError(f"{where}.series.{name} needs profile and epsilon: a figure of accounts shows delta")
            swept = spec.x.key is not None and series.sweep
            for x, more in zip(values, also, strict=True) if swept else ((None, None),):
                cells.append(self._cell(spec, spec.task, name, series, where, x, more))
        return cells

    def _cell(
        self,
        spec: Table | Figure,
        task: str,
        name: str,
        series: Series,
        where: str,
        x: float | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Cell:
        known_name(task, self.experiment.tasks, where, "task")
        known_name(series.method, self.methods, f"{where}.series.{name}.method", "method")
        axis = spec.x if isinstance(spec, Figure) else None
        swept, symbol = (axis.key or "", axis.symbol) if axis is not None else ("", None)
        if isinstance(series.sweep, str):
            swept = series.sweep
        # What is said of this cell alone has to fit its method.
        cls = self.methods[series.method]
        uses = (series.use,) if isinstance(series.use, str) else series.use
        for used in uses:
            known_name(used, self.experiment.variants, f"{where}.series.{name}.use", "variant")
        overlay = layers.merge(cls, *(self.experiment.variants[used] for used in uses), series.run)
        own = spec.test if isinstance(spec, Figure) else None
        test: dict[str, Any] = (given(own) if own else {}) | (given(series.test) if series.test else {})
        if x is not None and swept.startswith(_TEST):
            test[swept.removeprefix(_TEST)] = _whole(x)
        elif x is not None:
            overlay = layers.merge(cls, set_key(overlay, swept, _whole(x)), more)
        values = layers.resolve(cls, self._general(series.method, task), overlay)
        published_dataset = values.get("dataset", "")
        values["dataset"] = self.configuration.stand_ins.get(published_dataset) or published_dataset
        if self.datasets is not None:
            known_name(values["dataset"], self.datasets, f"{where} (task {task})", "data set")
        point = f" at {swept} {x:g}" if x is not None else ""
        seeds = self.configuration.seeds if spec.seeds is None else spec.seeds
        if isinstance(spec, Table):
            seeds = spec.task_seeds.get(task) or seeds
        try:
            _check_given(overlay, f"experiments.{self.paper}")
            _check_fits(self.methods, series.method, overlay, "")
            first = cls.read({**values, "method": series.method, "seed": seeds[0]})
            runs = (first, *(first.replace(seed=seed) for seed in seeds[1:]))
            checked = given(MetaTest.read(test, f"{where}.test"))
            tests = tuple(run.tested_at(**checked) for run in runs) if test else ()
        except BenchError as error:
            raise BenchError(f"{error} [in {where}, task {task}, series {name}{point}]") from error
        return Cell(
            series=name,
            label=series.label or name,
            variant=f"{symbol}={x:g}" if symbol and x is not None else series.variant,
            repairs=self._repaired(spec, name, series, where),
            x=None if x is None else float(x),
            runs=runs,
            published_dataset=published_dataset,
            mismatch=self._mismatch(first, published_dataset),
            tests=() if tests == runs else tests,
        )

    def _general(self, method: str, task: str) -> dict[str, Any]:
        """What is said for more runs than one cell's.

        The layers, each over the ones before: the configuration's `run`, the paper's, the task, what makes the method
        (its defaults), and the overlays for the method, the configuration's and the paper's. So a method's structure
        wins over a task's values.
        """
        if (method, task) not in self._laid:
            self._laid[method, task] = layers.lay(
                self.methods[method],
                self.configuration.run,
                self.experiment.run,
                self.experiment.tasks[task],
                self.methods[method].defaults,
                self.configuration.methods.get(method),
                self.experiment.methods.get(method),
            )
        return self._laid[method, task]

    def _repaired(self, spec: Table | Figure, name: str, series: Series, where: str) -> str:
        if series.repairs:
            others = [known for known in spec.series if known != name]
            known_name(series.repairs, others, f"{where}.series.{name}", "series")
        return series.repairs

    def _mismatch(self, run: Method, published_dataset: str) -> str:
        if run.dataset != published_dataset:
            return f"published on {published_dataset}, measured on {run.dataset}"
        if not getattr(getattr(run, "participation", None), "rounds", 0):
            return ""  # nothing is trained, so no scale of training sets it apart
        ours = leaves(run.plain())
        differing = [
            f"{key} {_short(value)} at the published scale, {_short(ours.get(key))} here"
            for key, value in leaves(self.experiment.published_at).items()
            if ours.get(key) != value
        ]
        return "; ".join(differing)


def _whole(value: float) -> float | int:
    """A whole number as such, for messages."""
    return int(value) if value == int(value) else value


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
