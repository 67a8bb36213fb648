"""Plan of a configuration: tables and figures (items) of papers, their cells, and the
cells' runs.

Each cell of a table or figure is one configuration of a run and a list of seeds. A
run's folder identifies it, so that two cells that need the same run share it.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dpfedbench.breaches import breaches_of, unaccounted_releases, unaccounted_units
from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """One value of a table or a figure: a configuration, with one run for each seed.

    Attributes:
        series: name of the series.
        label: label in a figure.
        variant: text that a table adds to the method's title.
        repairs: series of the same item whose claim is void, and valid in this one; ""
            without one.
        x: the swept value, of a sweep.
        runs: one run for each seed.
        published_dataset: data set of the paper, which `runs` may replace by a
            stand-in.
        mismatch: reason why our value is not comparable with the published one; "" if
            it is.
        tests: the runs under a meta-test that is not their own; empty without one.
        searched: number of runs that a search for settings compares, including this
            cell's; 0 without a search.
    """

    series: str
    label: str
    variant: str
    repairs: str
    x: float | None
    runs: tuple[Run, ...]
    published_dataset: str
    mismatch: str
    tests: tuple[Run, ...] = ()
    searched: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedItem:
    """Table or figure of a paper: its specification as configured, and its cells."""

    paper: str
    name: str
    kind: str
    spec: Mapping[str, Any]
    cells: tuple[PlannedCell, ...]

    @property
    def runs(self) -> dict[str, Run]:
        """Runs that the item needs, by folder; none for a figure of accounts."""
        if self.kind == "account":
            return {}
        return {run.folder: run for cell in self.cells for run in cell.runs}

    @property
    def tests(self) -> dict[tuple[str, str], Run]:
        """Meta-tests that the item needs besides the runs' own, by the run's folder and
        the test's name.
        """
        return {
            (run.folder, test.test_name): test
            for cell in self.cells
            for run, test in zip(cell.runs, cell.tests, strict=False)
        }

    def cell_records(self, audited_runs: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return one mapping for each run of each cell.

        Its keys are the columns of `results.columns.CELLS` that are known before any
        run. A figure of accounts has one mapping for each cell, with the inputs of an
        accountant in place of a run.

        Args:
            audited_runs: for each private run, the run whose audit represents it.
        """
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

    def describe(self, audited_runs: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of `results.items.Item`, as plain data for a script; see
        `cell_records`.
        """
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
        "task": first.task.label,
        "tested": (test or first).task.label,
        "test": test.test_name if test else "",
        "mismatch": cell.mismatch,
        "searched": cell.searched,
        "client_origin": first.client_origin,
        "start": first.initial.label,
        "configured_multiplier": getattr(
            getattr(first, "noise", None), "multiplier", None
        ),
    }


def _mechanism(run: Run) -> dict[str, Any]:
    """Return the inputs of an accountant for a run that is not trained.

    `noise_multiplier` is None without noise. `counted` is whether all values that the
    clipping rule reads are releases that an account counts.
    """
    plan = getattr(run, "participation", None)
    server = run.all_sums[-1] if run.all_sums else None
    cohort = getattr(plan, "cohort", 0)
    rounds = getattr(plan, "rounds", 0)
    noise = server.noise if server else None
    clipping = server.clipping if server else None
    multiplier = getattr(noise, "multiplier", None)
    if getattr(clipping, "noise_by_group", "joint") == "per-group":
        multiplier = None  # only the network gives the number of groups
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


def audited_as(run: Run) -> str:
    """Return a text that is equal for runs whose audits test the same mechanism.

    An audit replaces the clients' computation and runs the rest: participation,
    clipping, noise, accounting. The text does not depend on the seed. Where whole
    clients are protected, it does not depend on their data, model and computation
    either. Noise that follows a loss is different in each run.
    """
    private = [sum_ for sum_ in run.all_sums if sum_.private]
    noises = [sum_.noise for sum_ in private if sum_.noise is not None]
    rules = [sum_.clipping for sum_ in private if sum_.clipping is not None]
    if any(noise.follows_loss for noise in noises):
        return run.key
    identity: dict[str, Any] = {
        "method": run.method,
        "count": run.clients.count,
        "unaccounted_releases": unaccounted_releases(run),
    }
    if breaches_of(run):
        identity["breaches"] = unaccounted_units(run)
    identity |= {
        key: value
        for key, value in run.plain().items()
        if key not in Method.model_fields
    }
    update = identity.pop("client_update", None) or {}
    server = identity.pop("server", None)
    if any(noise.mechanism != "gaussian" for noise in noises):
        # Correlated noise may be planned for the server's steps.
        identity["server"] = server
    if any(noise.by_dimension for noise in noises):
        identity |= {
            "model": run.model.plain(),
            "dataset": run.dataset,
            "task": run.task.plain(),
        }
    if any(rule.groups != "all" for rule in rules):
        identity["model"] = run.model.plain()  # gives the number of groups
    if any(sum_.unit == "record" for sum_ in private):
        # It depends on the examples of a client's sums, and on the number of sums that
        # a record is in.
        clients = run.clients
        identity["examples"] = [
            run.task.ways,
            clients.support_per_class,
            clients.query_per_class,
            clients.own_values,
        ]
        identity["steps"] = [
            update.get("kind"),
            update.get("inner_steps"),
            update.get("batches"),
        ]
        if run.client_data == "records":
            identity["dataset"] = run.dataset  # gives the number of records
    return json.dumps(identity, sort_keys=True)


def with_references(items: Collection[PlannedItem]) -> dict[str, Run]:
    """Return the runs of all items, and those whose files they need, by folder.

    Raises:
        BenchError: two runs have one folder.
    """
    runs: dict[str, Run] = {}
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a configuration needs: items and runs.

    Items have keys (paper, name), runs are by folder.

    The runs include those that no item shows, but whose files other runs need
    (`Run.references`). Notices are for whoever makes the plan.
    """

    items: Mapping[tuple[str, str], PlannedItem]
    runs: Mapping[str, Run]
    notices: tuple[str, ...] = ()
    _audited_as: dict[str, str] = dataclasses.field(
        default_factory=dict, init=False, compare=False
    )
    """Results of `audited_as`, by the run's folder."""

    def tests_of(self, paper: str | None) -> dict[tuple[str, str], Run]:
        """Return the meta-tests of one paper, or of all, besides the runs' own, by the
        run's folder and the test's name.
        """
        return {
            name: test
            for item in self.items_of(paper)
            for name, test in item.tests.items()
        }

    @property
    def searches(self) -> dict[str, dict[str, Any]]:
        """Largest search that compares a run, by the run's folder, as `tuning` would
        declare it.
        """
        sizes: dict[str, int] = {}
        for item in self.items.values():
            for cell in item.cells:
                for run in cell.runs if cell.searched else ():
                    sizes[run.folder] = max(cell.searched, sizes.get(run.folder, 0))
        return {
            folder: {
                "runs": size,
                "data": "private" if self.runs[folder].private else "public",
            }
            for folder, size in sizes.items()
        }

    def items_of(self, paper: str | None) -> list[PlannedItem]:
        """Return the tables and figures of one paper, or of all."""
        items = self.items.values()
        return [item for item in items if paper in (None, item.paper)]

    def runs_of(self, paper: str | None) -> dict[str, Run]:
        """Return the runs of one paper, or of all, by folder, with the runs whose files
        they need.
        """
        return with_references(self.items_of(paper))

    def private_runs(self, paper: str | None = None) -> dict[str, list[Run]]:
        """Return the private configurations that a paper, or all papers, show.

        Tables come before figures.

        Returns:
            The runs of each configuration in the order of seeds, by the folder that
            they share.
        """
        configurations: dict[str, dict[int, Run]] = {}
        for item in sorted(self.items_of(paper), key=lambda item: item.kind != "table"):
            for cell in item.cells:
                if cell.runs[0].private and item.kind != "account":
                    folder = str(Path(cell.runs[0].folder).parent)
                    seeds = configurations.setdefault(folder, {})
                    seeds |= {run.seed: run for run in cell.runs}
        return {
            folder: [seeds[seed] for seed in sorted(seeds)]
            for folder, seeds in configurations.items()
        }

    def audited_runs(self, paper: str | None = None) -> dict[str, str]:
        """Return the run whose audit represents each private run of a paper, or of all.

        It is the first seed of the run's configuration, or of an earlier configuration
        with the same mechanism (`audited_as`).
        """
        audited_runs: dict[str, str] = {}
        by_mechanism: dict[str, str] = {}
        for runs in self.private_runs(paper).values():
            first = runs[0]
            if first.folder not in self._audited_as:
                self._audited_as[first.folder] = audited_as(first)
            mechanism = self._audited_as[first.folder]
            audited = by_mechanism.setdefault(mechanism, first.folder)
            audited_runs |= {run.folder: audited for run in runs}
        return audited_runs
