"""Plan of a configuration: items (tables and figures) of papers, their cells, and the
runs of these.

Each cell of a table or figure is one configuration of a run and a list of seeds. Runs
are known by their folder, so two cells that need the same run share it.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.method import Method
from dpfedbench.settings.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedCell:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedItem:
    """A table or figure of a paper: its specification as configured, and its cells."""

    paper: str
    name: str
    kind: str
    spec: Mapping[str, Any]
    cells: tuple[PlannedCell, ...]

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

    def cell_records(
        self, audited_runs: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Return one mapping for each run of each cell: the columns of
        `results.columns.CELLS` that are known before any run.

        A figure of accounts has one for each cell, without a run but with what an
        accountant has to know.

        Args:
            audited_runs: for each private run, the run whose audit stands for it.
        """
        audited_runs = audited_runs or {}
        kind = self.kind
        if self.spec.get("value") == "milliseconds":
            kind = "time-table"
        records = []
        for number, cell in enumerate(self.cells):
            shared = {
                "paper": self.paper,
                "item": self.name,
                "kind": kind,
                "cell": number,
                **_shared_columns(cell),
            }
            if self.kind == "account":
                mechanism = _mechanism(cell.runs[0])
                records.append({**shared, "run": None, "mechanism": mechanism})
                continue
            for run in cell.runs:
                audited_run = audited_runs.get(run.folder, "")
                records.append(
                    {
                        **shared,
                        "seed": run.seed,
                        "run": run.folder,
                        "audited_run": audited_run,
                    }
                )
        return records

    def describe(self, audited_runs: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the arguments of `results.items.Item`, as plain data for a script."""
        return {
            "paper": self.paper,
            "name": self.name,
            "kind": self.kind,
            "spec": self.spec,
            "cells": self.cell_records(audited_runs),
        }


def _shared_columns(cell: PlannedCell) -> dict[str, Any]:
    """Return the columns that all runs of a cell share."""
    first = cell.runs[0]
    test = cell.tests[0] if cell.tests else None
    return {
        "series": cell.series,
        "label": cell.label,
        "variant": cell.variant,
        "repairs": cell.repairs,
        "x": cell.x,
        "method": first.method,
        "title": first.title,
        "private": first.private,
        "dataset": first.dataset,
        "published_dataset": cell.published_dataset,
        "task": first.task_name,
        "tested": (test or first).task_name,
        "test": test.test_name if test else "",
        "mismatch": cell.mismatch,
        "searched": cell.searched,
        "start": first.initial.told,
        "configured_multiplier": getattr(
            getattr(first, "noise", None), "multiplier", None
        ),
    }


def _mechanism(run: Method) -> dict[str, Any]:
    """Return what an accountant has to know of a run that is not trained.

    `noise_multiplier` is None without noise. `counted` is whether everything that the
    clipping rule reads is a release that an account counts.
    """
    plan = getattr(run, "participation", None)
    server = run.sums()[-1] if run.sums() else None
    cohort = getattr(plan, "cohort", 0)
    rounds = getattr(plan, "rounds", 0)
    noise, clipping = (
        (None, None) if server is None else (server.noise, server.clipping)
    )
    multiplier = getattr(noise, "multiplier", None)
    if getattr(clipping, "noise_by_group", "joint") == "per-group":
        multiplier = None  # how many groups there are is known with the network
    return {
        "sampler": {
            "kind": getattr(plan, "kind", ""),
            "clients": run.clients.count,
            "cohort": cohort,
            "rounds": rounds,
            "rate": cohort / run.clients.count,
        },
        "noise_multiplier": multiplier,
        "counted": clipping is not None and clipping.private,
        "mechanism": "gaussian" if noise is None else noise.mechanism,
    }


def audited_as(run: Method) -> str:
    """Equal for private configurations whose audits put the same mechanism to the test.

    An audit replaces what clients compute and runs the rest: participation, clipping,
    noise, accounting. Neither the seed nor, where whole clients are protected, their
    data, their model and what they compute are in it. Noise that follows a loss is each
    run's own.
    """
    private = [sum_ for sum_ in run.sums() if sum_.private]
    if any(sum_.noise is not None and sum_.noise.follows_loss for sum_ in private):
        return run.key
    identity: dict[str, Any] = {
        "method": run.method,
        "count": run.clients.count,
        "unaccounted": run.unaccounted,
    }
    if run.breaches:
        identity["breaches"] = run.unaccounted_units
    identity |= {
        key: value for key, value in run.plain().items() if key not in Run.model_fields
    }
    update = identity.pop("client_update", None) or {}
    server = identity.pop("server", None)
    if any(
        sum_.noise is not None and sum_.noise.mechanism != "gaussian"
        for sum_ in private
    ):
        identity["server"] = (
            # noise that is correlated over rounds may be planned for the server's steps
            server
        )
    if any(sum_.noise is not None and sum_.noise.by_dimension for sum_ in private):
        identity |= {
            "model": run.model.plain(),
            "dataset": run.dataset,
            "task": run.task.plain(),
        }
    if any(
        sum_.clipping is not None and sum_.clipping.groups != "all" for sum_ in private
    ):
        identity["model"] = run.model.plain()  # how many groups there are
    if any(sum_.unit == "record" for sum_ in private):
        # What a client sums over is in it, and in how many sums a record is.
        clients = run.clients
        identity["examples"] = [
            run.task.ways,
            clients.support_per_class,
            clients.query_per_class,
            clients.own,
        ]
        identity["steps"] = [
            update.get("kind"),
            update.get("inner_steps"),
            update.get("batches"),
        ]
        if run.client_data == "records":
            identity["dataset"] = run.dataset  # how many records there are
    return json.dumps(identity, sort_keys=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a configuration asks for: items by (paper, name), and runs by folder.

    Among the runs are those that no item shows, but of which others take a file
    (`Run.references`).
    """

    items: Mapping[tuple[str, str], PlannedItem]
    runs: Mapping[str, Method]

    @property
    def tests(self) -> dict[tuple[str, str], Method]:
        """The meta-tests of all items besides the runs' own, by the run's folder and
        the test's name.
        """
        return {
            name: test
            for item in self.items.values()
            for name, test in item.tests.items()
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

    def tables(self, paper: str | None = None) -> list[PlannedItem]:
        """The tables of one paper, or of all."""
        return [
            item
            for item in self.items.values()
            if item.kind == "table" and paper in (None, item.paper)
        ]

    def figures(self, paper: str | None = None) -> list[PlannedItem]:
        """The figures of one paper, or of all."""
        return [
            item
            for item in self.items.values()
            if item.kind != "table" and paper in (None, item.paper)
        ]

    def cell_records(
        self, paper: str | None = None, audited_runs: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Return the records of the cells of one paper, or of all (`PlannedItem.cell_records`).

        Figures of accounts have no runs and are left out.
        """
        return [
            record
            for item in self._shown(paper)
            for record in item.cell_records(audited_runs)
        ]

    def _shown(self, paper: str | None) -> list[PlannedItem]:
        return [
            item
            for item in self.items.values()
            if item.kind != "account" and paper in (None, item.paper)
        ]

    def private_runs(self, paper: str | None = None) -> dict[str, list[Method]]:
        """Return the private configurations that tables and figures of one paper, or of
        all, show: their runs in the order of seeds, by the folder that these share.

        Tables come before figures.
        """
        configurations: dict[str, dict[int, Method]] = {}
        for item in sorted(self._shown(paper), key=lambda item: item.kind != "table"):
            for cell in item.cells:
                if cell.runs[0].private:
                    folder = str(Path(cell.runs[0].folder).parent)
                    seeds = configurations.setdefault(folder, {})
                    seeds |= {run.seed: run for run in cell.runs}
        return {
            folder: [seeds[seed] for seed in sorted(seeds)]
            for folder, seeds in configurations.items()
        }

    def audited_runs(self, paper: str | None = None) -> dict[str, str]:
        """Return, for each private run that one paper or all show, the run whose audit
        stands for it.

        It is the first seed of the run's configuration, or of an earlier configuration
        with the same mechanism (`audited_as`).
        """
        audited_runs: dict[str, str] = {}
        by_mechanism: dict[str, str] = {}
        for runs in self.private_runs(paper).values():
            first = runs[0]
            audited = by_mechanism.setdefault(audited_as(first), first.folder)
            audited_runs |= {run.folder: audited for run in runs}
        return audited_runs
