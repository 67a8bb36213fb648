"""From the configuration to the runs it needs.

An experiment file names a paper's tasks, tables and figures; a table is tasks × series, a figure one task ×
series, some of them swept over values of one key. Each of their cells is one run configuration and a list
of seeds. Runs are known by their folder, so two cells that need the same run share it.
"""

import csv
import dataclasses
import json
import pkgutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from dpfedbench import data
from dpfedbench.config import RunConfig, check, leaves, merge, nearest, schema, set_key
from dpfedbench.errors import BenchError
from dpfedbench.privacy.clipping import make_rule
from dpfedbench.reporting import described

_TEST = "test."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One value of a table or a figure: a configuration, with as many runs as seeds.

    `repairs` names the series of the same item whose claim does not hold and this one's does, "" where there is none;
    `published_dataset` is the data set the paper used, which `runs` may replace by a stand-in;
    `mismatch` says why our value may not be read against the published one, "" where it may.
    `tests` are the runs under a meta-test that is not their own, none where it is.
    """

    series: str
    label: str
    variant: str
    repairs: str
    x: float | None
    runs: tuple[RunConfig, ...]
    published_dataset: str
    mismatch: str
    tests: tuple[RunConfig, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper: its specification as configured, and its cells."""

    paper: str
    name: str
    kind: str
    spec: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def runs(self) -> dict[str, RunConfig]:
        """The runs it needs, by folder; none for a figure of accounts."""
        return {} if self.kind == "account" else {run.folder: run for cell in self.cells for run in cell.runs}

    @property
    def tests(self) -> dict[tuple[str, str], RunConfig]:
        """The meta-tests it needs besides the runs' own, by the run's folder and the test's name."""
        return {
            (run.folder, test.test_name): test
            for cell in self.cells
            for run, test in zip(cell.runs, cell.tests, strict=False)
        }

    def describe(self, titles: Mapping[str, str]) -> described.Item:
        """What reporting needs to know: it reads results by folder and knows no configuration.

        Args:
            titles: for each method's name, the title to print.
        """
        computed = self.kind == "account"
        return described.Item(
            paper=self.paper,
            name=self.name,
            kind=self.kind,
            spec=self.spec,
            cells=tuple(
                described.Cell(
                    series=cell.series,
                    label=cell.label,
                    variant=cell.variant,
                    x=cell.x,
                    method=cell.runs[0].method,
                    title=titles[cell.runs[0].method],
                    dataset=cell.runs[0].dataset,
                    published_dataset=cell.published_dataset,
                    task=cell.runs[0].task_name,
                    tested=(*cell.tests, *cell.runs)[0].task_name,
                    mismatch=cell.mismatch,
                    metrics=f"tests/{cell.tests[0].test_name}.json" if cell.tests else "metrics.json",
                    folders=() if computed else tuple(run.folder for run in cell.runs),
                    mechanism=_mechanism(cell.runs[0]) if computed else None,
                )
                for cell in self.cells
            ),
        )


def _mechanism(run: RunConfig) -> described.Mechanism:
    """What an accountant has to know of a run that is not trained."""
    plan = run.participation
    return described.Mechanism(
        sampler={
            "kind": plan.kind, "clients": run.clients.count, "cohort": plan.cohort, "rounds": plan.rounds,
            "rate": plan.cohort / run.clients.count,
        },
        noise_multiplier=None if run.noise is None else run.noise.multiplier,
        counted=run.clipping is not None and make_rule(run.clipping, first=1.0).private,
    )  # fmt: skip


def audited_as(run: RunConfig) -> str:
    """Equal for private configurations whose audits put the same mechanism to the test.

    An audit replaces what clients compute and runs the rest: participation, clipping, noise, accounting. Neither
    the seed nor, where whole clients are protected, their data, their model and what they compute are in it. Noise that
    follows a loss is each run's own.
    """
    if run.noise is not None and run.noise.decay < 1:
        return run.key
    whole = run.to_dict()
    kept: dict[str, Any] = {"count": run.clients.count}
    kept |= {key: whole[key] for key in ("method", "participation", "clipping", "noise", "budget", "local")}
    if run.local is not None or run.by_record:
        # What a client sums over is in it, and in how many sums a record is.
        clients = run.clients
        kept["examples"] = [run.task.ways, clients.support_per_class, clients.query_per_class, clients.fragments]
        kept["steps"] = run.client_update.inner_steps
    if run.by_record:
        kept["dataset"] = run.dataset  # how many records there are
    return json.dumps(kept, sort_keys=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a configuration asks for: items by (paper, name), and runs by folder.

    Among the runs are those that no item shows, but that others find their threshold in (`RunConfig.reference`).
    """

    items: Mapping[tuple[str, str], Item]
    runs: Mapping[str, RunConfig]

    @property
    def tests(self) -> dict[tuple[str, str], RunConfig]:
        """The meta-tests of all items besides the runs' own, by the run's folder and the test's name."""
        return {place: test for item in self.items.values() for place, test in item.tests.items()}

    def tables(self, paper: str | None = None) -> list[Item]:
        """The tables of one paper, or of all."""
        return [item for item in self.items.values() if item.kind == "table" and paper in (None, item.paper)]

    def private(self, titles: Mapping[str, str]) -> list[dict[str, Any]]:
        """Every private configuration that a table or figure shows, once, as plain data for reporting.

        Tables come before figures, so that a configuration has the name it has in a table, and the seeds of all items.
        `audited` is the run whose audit stands for it: its own first seed's, or that of an earlier configuration with
        the same mechanism (`audited_as`).
        """
        found: dict[str, dict[str, Any]] = {}
        shown = [item for item in self.items.values() if item.kind != "account"]
        for item in sorted(shown, key=lambda item: item.kind != "table"):
            for cell in item.cells:
                first = cell.runs[0]
                if not first.private:
                    continue
                known = found.setdefault(
                    str(Path(first.folder).parent),
                    {
                        "paper": item.paper,
                        "tables": [],
                        "method": first.method,
                        "title": titles[first.method],
                        "variant": cell.variant or cell.label,
                        "multiplier": first.noise.multiplier if first.noise else None,
                        "dataset": first.dataset,
                        "published_dataset": cell.published_dataset,
                        "task": first.task_name,
                        "mismatch": cell.mismatch,
                        "seeds": {},
                    },
                )
                if item.kind == "table" and item.spec.get("value") != "milliseconds":
                    known["tables"].append({"item": item.name, "series": cell.series, "repairs": cell.repairs})
                seeds = {run.seed: run.folder for run in cell.runs} | known["seeds"]
                known["seeds"] = {seed: seeds[seed] for seed in sorted(seeds)}
        entries, audited = [], dict[str, str]()
        for known in found.values():
            folders = list(known.pop("seeds").values())
            audit_of = audited.setdefault(audited_as(self.runs[folders[0]]), folders[0])
            entries.append({**known, "folders": folders, "audited": audit_of})
        return entries

    def figures(self, paper: str | None = None) -> list[Item]:
        """The figures of one paper, or of all."""
        return [item for item in self.items.values() if item.kind != "table" and paper in (None, item.paper)]


def read_datasets(path: str | Path) -> dict[str, str]:
    """The data sets there are, with the version of each, from config/datasets.tsv.

    Raises:
        BenchError: the file is missing or lacks a column.
    """
    try:
        with open(path, newline="", encoding="utf-8") as handle:
            return {row["name"]: row["version"] for row in csv.DictReader(handle, delimiter="\t")}
    except (OSError, KeyError) as error:
        raise BenchError(f"{path} cannot be read ({error}): restore it from the repository") from error


def known_datasets(path: str | Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The data sets there are: those of config/datasets.tsv, and those that the configuration states.

    Args:
        path: of config/datasets.tsv.
        config: the merged configuration.

    Returns:
        For each name what its content depends on: the version, or all that the configuration says of it.

    Raises:
        BenchError: a bad key or value, a name that is taken, or a reader that does not exist.
    """
    check(config, schema("config"))
    known = read_datasets(path)
    readers = {module.name.replace("_", "-") for module in pkgutil.iter_modules(data.__path__)}
    for name, values in config["datasets"].items():
        if values is None:
            continue
        if name in known:
            raise BenchError(f"datasets.{name}: dpfedbench comes with a data set of this name, choose another")
        _known(values["reader"], readers, f"datasets.{name}.reader", "module in src/dpfedbench/data for")
        known[name] = json.dumps(values, sort_keys=True)
    return known


def resolve(
    config: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any],
    paper: Mapping[str, Any] | None,
    task: Mapping[str, Any],
    cell: Mapping[str, Any],
) -> dict[str, Any]:
    """The values of one run, all but its seed.

    The layers, each over the ones before: the configuration's `run`, the paper's `run`, the task, what makes
    the method (its DEFAULTS), the configuration's overlay for the method, the cell. So a method's structure
    wins over a task's values, and whatever an experiment states wins over all.

    Args:
        config: the whole configuration.
        defaults: the method's DEFAULTS.
        paper: the experiment's `run`.
        task: the task's overlay.
        cell: the cell's own overlay, `method` in it.
    """
    return merge(config["run"], paper, task, defaults, config["methods"].get(cell["method"]), cell)


def make_plan(
    config: Mapping[str, Any],
    *,
    method_defaults: Mapping[str, Mapping[str, Any]],
    datasets: Collection[str] | None = None,
) -> Plan:
    """Check a configuration and expand it into items and runs.

    Args:
        config: the merged configuration.
        method_defaults: for each method's name, the overlay that makes it.
        datasets: the names of the data sets there are; None takes any.

    Raises:
        BenchError: a bad key or value, by its full name; a method, task or data set that does not exist.
    """
    check(config, schema("config"))
    for name in config["methods"]:
        _known(name, method_defaults, f"methods.{name}", "method")
    for name in config.get("tuning", {}):
        _known(name, method_defaults, f"tuning.{name}", "method")
    for name, stand_in in config["stand_ins"].items():
        for used in (name, stand_in):
            if used is not None and datasets is not None:
                _known(used, datasets, f"stand_ins.{name}", "data set")
    _check_base(config)
    items: dict[tuple[str, str], Item] = {}
    for paper, experiment in config["experiments"].items():
        if experiment is None:
            continue
        expand = _Expansion(config, paper, experiment, method_defaults, datasets)
        for group in ("tables", "figures"):
            for name, spec in (experiment.get(group) or {}).items():
                if spec is not None:
                    items[paper, name] = expand.item(group, name, spec)
    if not items:
        raise BenchError("experiments has no table or figure left: leave at least one that is not null")
    runs: dict[str, RunConfig] = {}
    for item in items.values():
        references = [run.reference for run in item.runs.values() if run.reference is not None]
        for folder, run in (item.runs | {run.folder: run for run in references}).items():
            if runs.setdefault(folder, run) != run:
                raise BenchError(f"two different runs share the folder {folder}: report this as a fault of dpfedbench")
    return Plan(items=items, runs=runs)


def _check_base(config: Mapping[str, Any]) -> None:
    """The default run must be whole by itself, so that a fault in it is named there and not in some cell."""
    try:
        RunConfig.from_dict(merge(config["run"], {"method": "any", "seed": config["seeds"][0]}))
    except BenchError as error:
        raise BenchError(f"{error} [in run]") from error


def _known(name: str, valid: Collection[str], where: str, what: str) -> None:
    if name not in valid:
        raise BenchError(f"{where}: there is no {what} {name!r}, the nearest is {nearest(name, valid)!r}")


@dataclasses.dataclass(frozen=True)
class _Expansion:
    """The expansion of one paper's experiment."""

    config: Mapping[str, Any]
    paper: str
    experiment: Mapping[str, Any]
    method_defaults: Mapping[str, Mapping[str, Any]]
    datasets: Collection[str] | None

    def item(self, group: str, name: str, spec: Mapping[str, Any]) -> Item:
        where = f"experiments.{self.paper}.{group}.{name}"
        build: Callable[..., list[Cell]] = self._table if group == "tables" else self._figure
        cells = build(spec, where)
        if not cells:
            raise BenchError(f"{where} has no cell left: give it a series that is not null, or set {where} to null")
        kind = "table" if group == "tables" else spec["kind"]
        return Item(paper=self.paper, name=name, kind=kind, spec=spec, cells=tuple(cells))

    def _table(self, spec: Mapping[str, Any], where: str) -> list[Cell]:
        return [
            self._cell(spec, task, name, series, where)
            for task in spec["tasks"]
            for name, series in spec["series"].items()
            if series is not None
        ]

    def _figure(self, spec: Mapping[str, Any], where: str) -> list[Cell]:
        needs: tuple[str, ...] = ("key", "values") if spec["kind"] == "sweep" else ("column",)
        if spec["kind"] == "account" and "column" not in spec["x"]:
            needs = ("key", "values")
        for key in needs:
            if key not in spec["x"]:
                raise BenchError(f"{where}.x.{key} is missing: a {spec['kind']} figure needs it")
        values = spec["x"].get("values", ())
        beside = spec["x"].get("with", [{}] * len(values))
        if len(beside) != len(values):
            raise BenchError(
                f"{where}.x.with has {len(beside)} overlays for {len(values)} values: give one for each, in their order"
            )
        cells = []
        for name, series in spec["series"].items():
            if series is None:
                continue
            if spec["kind"] == "history" and "curves" not in series and "curves" not in spec:
                raise BenchError(f"{where}.series.{name}.curves is missing: name the columns of history.csv to draw")
            if spec["kind"] == "account" and not {"profile", "epsilon"} <= series.keys():
                raise BenchError(f"{where}.series.{name} needs profile and epsilon: a figure of accounts shows delta")
            swept = "key" in spec["x"] and series.get("sweep", True)
            for x, more in zip(values, beside, strict=True) if swept else ((None, None),):
                cells.append(self._cell(spec, spec["task"], name, series, where, x, more))
        return cells

    def _cell(
        self,
        spec: Mapping[str, Any],
        task: str,
        name: str,
        series: Mapping[str, Any],
        where: str,
        x: float | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Cell:
        method = series["method"]
        _known(task, self.experiment["tasks"], where, "task")
        _known(method, self.method_defaults, f"{where}.series.{name}.method", "method")
        overlay = merge(series.get("run"), {"method": method})
        test = merge(spec.get("test"), series.get("test"))
        if x is not None and spec["x"]["key"].startswith(_TEST):
            test[spec["x"]["key"].removeprefix(_TEST)] = x
        elif x is not None:
            overlay = merge(set_key(overlay, spec["x"]["key"], x), more)
        values = resolve(
            self.config,
            defaults=self.method_defaults[method],
            paper=self.experiment.get("run"),
            task=self.experiment["tasks"][task],
            cell=overlay,
        )
        published_dataset = values["dataset"]
        values["dataset"] = self.config["stand_ins"].get(published_dataset) or published_dataset
        if self.datasets is not None:
            _known(values["dataset"], self.datasets, f"{where} (task {task})", "data set")
        point = f" at {spec['x']['key']} {x:g}" if x is not None else ""
        try:
            seeds = spec.get("task_seeds", {}).get(task) or spec.get("seeds", self.config["seeds"])
            runs = tuple(RunConfig.from_dict(merge(values, {"seed": seed})) for seed in seeds)
            tests = tuple(run.tested_at(**self._test(test, f"{where}.test")) for run in runs) if test else ()
        except BenchError as error:
            raise BenchError(f"{error} [in {where}, task {task}, series {name}{point}]") from error
        symbol = spec.get("x", {}).get("symbol")
        variant = f"{symbol}={x:g}" if symbol and x is not None else series.get("variant", "")
        return Cell(
            series=name,
            label=series.get("label", name),
            variant=variant,
            repairs=self._repaired(spec, name, series, where),
            x=None if x is None else float(x),
            runs=runs,
            published_dataset=published_dataset,
            mismatch=self._mismatch(runs[0], published_dataset),
            tests=() if tests == runs else tests,
        )

    @staticmethod
    def _test(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """The values of a meta-test, checked: a swept one has not been yet."""
        check(values, schema("config")["$defs"]["test"], where)
        return values

    def _repaired(self, spec: Mapping[str, Any], name: str, series: Mapping[str, Any], where: str) -> str:
        repaired = series.get("repairs", "")
        if repaired:
            _known(repaired, [known for known in spec["series"] if known != name], f"{where}.series.{name}", "series")
        return repaired

    def _mismatch(self, run: RunConfig, published_dataset: str) -> str:
        if run.dataset != published_dataset:
            return f"published on {published_dataset}, measured on {run.dataset}"
        if run.participation.rounds == 0:
            return ""  # nothing is trained, so no scale of training sets it apart
        ours = leaves(run.to_dict())
        differing = [
            f"{key} {_short(value)} at the published scale, {_short(ours.get(key))} here"
            for key, value in leaves(self.experiment.get("published_at") or {}).items()
            if ours.get(key) != value
        ]
        return "; ".join(differing)


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
