"""Plan of a configuration: items (tables and figures) of papers, their cells, and the
runs of these.

Each cell of a table or figure is one configuration of a run and a list of seeds. Runs
are known by their folder, so two cells that need the same run share it.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpfedbench.method import Method
from dpfedbench.reporting import described
from dpfedbench.settings.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One value of a table or a figure: a configuration, with as many runs as seeds.

    `repairs` names the series of the same item whose claim does not hold and this one's
    does, "" where there is none; `published_dataset` is the data set the paper used,
    which `runs` may replace by a stand-in; `mismatch` says why our value may not be
    read against the published one, "" where it may. `tests` are the runs under a
    meta-test that is not their own, none where it is. `searched` is how many runs, this
    cell's among them, a search for settings compares; 0 where nothing is searched.
    """

    series: str
    label: str
    variant: str
    repairs: str
    x: float | None
    runs: tuple[Method, ...]
    published_dataset: str
    mismatch: str
    tests: tuple[Method, ...] = ()
    searched: int = 0


_SAID = ("series", "label", "variant", "x", "published_dataset", "mismatch", "searched")
"""What reporting is told of a cell as it is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper: its specification as configured, and its cells."""

    paper: str
    name: str
    kind: str
    spec: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def runs(self) -> dict[str, Method]:
        """The runs it needs, by folder; none for a figure of accounts."""
        return (
            {}
            if self.kind == "account"
            else {run.folder: run for cell in self.cells for run in cell.runs}
        )

    @property
    def tests(self) -> dict[tuple[str, str], Method]:
        """The meta-tests it needs besides the runs' own, by the run's folder and the
        test's name.
        """
        return {
            (run.folder, test.test_name): test
            for cell in self.cells
            for run, test in zip(cell.runs, cell.tests, strict=False)
        }

    def describe(self) -> described.Item:
        """Return the item as plain data for reporting, which reads results by folder
        and knows no configuration.
        """
        computed = self.kind == "account"
        return described.Item(
            paper=self.paper,
            name=self.name,
            kind=self.kind,
            spec=self.spec,
            cells=tuple(
                described.Cell(
                    **{name: getattr(cell, name) for name in _SAID},
                    method=cell.runs[0].method,
                    title=cell.runs[0].title,
                    dataset=cell.runs[0].dataset,
                    task=cell.runs[0].task_name,
                    tested=(*cell.tests, *cell.runs)[0].task_name,
                    metrics=f"tests/{cell.tests[0].test_name}.json"
                    if cell.tests
                    else "metrics.json",
                    folders=() if computed else tuple(run.folder for run in cell.runs),
                    mechanism=_mechanism(cell.runs[0]) if computed else None,
                )
                for cell in self.cells
            ),
        )


def _mechanism(run: Method) -> described.Mechanism:
    """Return the values that an accountant needs of a run that is not trained."""
    plan, server = (
        getattr(run, "participation", None),
        run.sums[-1] if run.sums else None,
    )
    cohort, rounds = getattr(plan, "cohort", 0), getattr(plan, "rounds", 0)
    noise, clipping = (
        (None, None) if server is None else (server.noise, server.clipping)
    )
    multiplier = getattr(noise, "multiplier", None)
    if getattr(clipping, "noise_by_group", "joint") == "per-group":
        multiplier = None  # how many groups there are is known with the network
    return described.Mechanism(
        sampler={
            "kind": getattr(plan, "kind", ""),
            "clients": run.clients.count,
            "cohort": cohort,
            "rounds": rounds,
            "rate": cohort / run.clients.count,
        },
        noise_multiplier=multiplier,
        counted=clipping is not None and clipping.private,
        mechanism="gaussian" if noise is None else noise.mechanism,
    )


def audited_as(run: Method) -> str:
    """Equal for private configurations whose audits put the same mechanism to the test.

    An audit replaces what clients compute and runs the rest: participation, clipping,
    noise, accounting. Neither the seed nor, where whole clients are protected, their
    data, their model and what they compute are in it. Noise that follows a loss is each
    run's own.
    """
    private = [sum_ for sum_ in run.sums if sum_.private]
    if any(sum_.noise is not None and sum_.noise.follows_loss for sum_ in private):
        return run.key
    kept: dict[str, Any] = {
        "method": run.method,
        "count": run.clients.count,
        "unaccounted": run.unaccounted,
    }
    if run.breaches:
        kept["breaches"] = run.unaccounted_units
    kept |= {
        key: value for key, value in run.plain().items() if key not in Run.model_fields
    }
    update = kept.pop("client_update", None) or {}
    server = kept.pop("server", None)
    if any(
        sum_.noise is not None and sum_.noise.mechanism != "gaussian"
        for sum_ in private
    ):
        kept["server"] = (
            # noise that is correlated over rounds may be planned for the server's steps
            server
        )
    if any(sum_.noise is not None and sum_.noise.by_dimension for sum_ in private):
        kept |= {
            "model": run.model.plain(),
            "dataset": run.dataset,
            "task": run.task.plain(),
        }
    if any(
        sum_.clipping is not None and sum_.clipping.groups != "all" for sum_ in private
    ):
        kept["model"] = run.model.plain()  # how many groups there are
    if any(sum_.unit == "record" for sum_ in private):
        # What a client sums over is in it, and in how many sums a record is.
        clients = run.clients
        kept["examples"] = [
            run.task.ways,
            clients.support_per_class,
            clients.query_per_class,
            clients.own,
        ]
        kept["steps"] = [
            update.get("kind"),
            update.get("inner_steps"),
            update.get("batches"),
        ]
        if run.client_data == "records":
            kept["dataset"] = run.dataset  # how many records there are
    return json.dumps(kept, sort_keys=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a configuration asks for: items by (paper, name), and runs by folder.

    Among the runs are those that no item shows, but of which others take a file
    (`Run.references`).
    """

    items: Mapping[tuple[str, str], Item]
    runs: Mapping[str, Method]

    @property
    def tests(self) -> dict[tuple[str, str], Method]:
        """The meta-tests of all items besides the runs' own, by the run's folder and
        the test's name.
        """
        return {
            place: test
            for item in self.items.values()
            for place, test in item.tests.items()
        }

    @property
    def searches(self) -> dict[str, dict[str, Any]]:
        """For each run that a search compares, by folder: the largest such search, as
        `tuning` would declare it.
        """
        by_run: dict[str, dict[str, Any]] = {}
        for cell in (
            cell for item in self.items.values() for cell in item.cells if cell.searched
        ):
            for run in cell.runs:
                runs = max(cell.searched, by_run.get(run.folder, {"runs": 0})["runs"])
                by_run[run.folder] = {
                    "runs": runs,
                    "data": "private" if run.private else "public",
                }
        return by_run

    def tables(self, paper: str | None = None) -> list[Item]:
        """The tables of one paper, or of all."""
        return [
            item
            for item in self.items.values()
            if item.kind == "table" and paper in (None, item.paper)
        ]

    def figures(self, paper: str | None = None) -> list[Item]:
        """The figures of one paper, or of all."""
        return [
            item
            for item in self.items.values()
            if item.kind != "table" and paper in (None, item.paper)
        ]

    def cells(self) -> Iterator[tuple[str, str, str, float | None, int, str]]:
        """Yield the run of each cell: paper, item, series, swept value, seed and the
        run's folder.
        """
        for item in self.items.values():
            for cell in item.cells:
                for run in cell.runs if item.kind != "account" else ():
                    yield (
                        item.paper,
                        item.name,
                        cell.series,
                        cell.x,
                        run.seed,
                        run.folder,
                    )

    def private(self, paper: str | None = None) -> list[dict[str, Any]]:
        """Every private configuration that a table or figure of one paper, or of all,
        shows, once, as plain data.

        Tables come before figures, so that a configuration has the name it has in a
        table, and the seeds of all items. `audited` is the run whose audit stands for
        it: its own first seed's, or that of an earlier configuration with the same
        mechanism (`audited_as`).
        """
        mechanisms: dict[str, dict[str, Any]] = {}
        shown = [
            item
            for item in self.items.values()
            if item.kind != "account" and paper in (None, item.paper)
        ]
        for item in sorted(shown, key=lambda item: item.kind != "table"):
            for cell in item.cells:
                first = cell.runs[0]
                if not first.private:
                    continue
                known = mechanisms.setdefault(
                    str(Path(first.folder).parent),
                    {
                        "paper": item.paper,
                        "tables": [],
                        "method": first.method,
                        "title": first.title,
                        "variant": cell.variant or cell.label,
                        "start": first.initial.told,
                        "multiplier": getattr(
                            getattr(first, "noise", None), "multiplier", None
                        ),
                        "dataset": first.dataset,
                        "published_dataset": cell.published_dataset,
                        "task": first.task_name,
                        "mismatch": cell.mismatch,
                        "seeds": {},
                    },
                )
                if item.kind == "table" and item.spec.get("value") != "milliseconds":
                    place = {
                        "paper": item.paper,
                        "item": item.name,
                        "series": cell.series,
                        "repairs": cell.repairs,
                    }
                    known["tables"].append(place)
                seeds = {run.seed: run.folder for run in cell.runs} | known["seeds"]
                known["seeds"] = {seed: seeds[seed] for seed in sorted(seeds)}
        entries, audited = [], dict[str, str]()
        for known in mechanisms.values():
            folders = list(known.pop("seeds").values())
            audit_of = audited.setdefault(audited_as(self.runs[folders[0]]), folders[0])
            entries.append({**known, "folders": folders, "audited": audit_of})
        return entries
