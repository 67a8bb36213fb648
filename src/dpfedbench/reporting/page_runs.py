"""The runs of the page: one entry for each configuration, with its seeds, plots, files
and where it is shown.
"""

import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from dpfedbench.errors import BenchError
from dpfedbench.files import text_of
from dpfedbench.reporting import history_svg
from dpfedbench.reporting.described import Cell, Item, Private
from dpfedbench.reporting.results import CellResult, RunFiles

Links = Sequence[tuple[str, str]]
"""Names, and where they lead from the page."""


class Facet(NamedTuple):
    """What the page can be filtered by: `epsilon` is the upper end of the ε that holds,
    None where none is finite.
    """

    paper: str
    dataset: str
    method: str
    epsilon: float | None

    @classmethod
    def of(cls, paper: str, shown: Cell | Private, epsilon: float) -> "Facet":
        """Of a cell of a paper."""
        return cls(
            paper,
            shown.dataset,
            shown.method,
            epsilon if math.isfinite(epsilon) else None,
        )


class SeedRun(NamedTuple):
    """One seed of a configuration: its facts and its files, as links from the page."""

    seed: int
    accuracy: str
    rounds: str
    seconds: float | None
    spark: Markup
    links: Links


@dataclasses.dataclass(kw_only=True)
class Group:
    """A configuration: its folder, a cell with all seeds that any item shows, and the
    items that do.
    """

    folder: str
    cell: Cell
    labels: list[str] = dataclasses.field(default_factory=list)
    items: list[Item] = dataclasses.field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        return run_anchor(self.folder)

    @property
    def name(self) -> str:
        """The method, and what a table or figure calls the configuration where that
        says more.
        """
        plain = {self.cell.title.casefold(), self.cell.method}
        return ": ".join(
            [
                self.cell.title,
                *[label for label in self.labels if label.casefold() not in plain][:1],
            ]
        )

    @property
    def shown_in(self) -> Links:
        """The names and places of the items."""
        kinds = [
            ("tables" if item.kind == "table" else "figures", item)
            for item in self.items
        ]
        return [
            (
                f"{item.paper}, {item.name}",
                anchor_of(f"{kind}/{item.paper}/{item.name}"),
            )
            for kind, item in kinds
        ]


class Runs:
    """The runs of one configuration, a seed each, as the page shows them; its links
    lead from `folder`.

    Raises:
        BenchError: a file of a run is missing or damaged.
    """

    def __init__(self, group: Group, result: CellResult, folder: Path) -> None:
        self.group, self.result = group, result
        numbers = [int(run.folder.name.removeprefix("seed")) for run in result.runs]
        paths = [run.folder / "history.csv" for run in result.runs]
        curves = history_svg.read_curves(list(zip(numbers, paths, strict=True)))
        self._curves = [
            (history_svg.QUANTITIES[column], drawn) for column, drawn in curves.items()
        ]
        self.plots = [
            (label, history_svg.draw(drawn, label=label))
            for label, drawn in self._curves
        ]
        self.spark = self._spark(*range(len(numbers)))
        # The configuration as text, less the seed, which is not shared.
        lines = text_of(result.runs[0].folder / "config.yaml").splitlines()
        self.configuration = "\n".join(
            line for line in lines if not line.startswith("seed:")
        )
        self.seeds = [
            SeedRun(
                number,
                f"{run.metrics['accuracy']:.1f}",
                _rounds(run.training),
                run.training.get("seconds"),
                self._spark(index),
                _files(run.folder, folder),
            )
            for index, (number, run) in enumerate(
                zip(numbers, result.runs, strict=True)
            )
        ]
        papers = dict.fromkeys(item.paper for item in group.items)
        self.facets = [
            Facet.of(paper, group.cell, result.holds.epsilon_high) for paper in papers
        ]

    def _spark(self, *seeds: int) -> Markup:
        """A small plot of what tells most about these seeds."""
        for label, drawn in self._curves[:1]:
            return history_svg.draw(
                [drawn[seed] for seed in seeds], label=label, small=True
            )
        return Markup("")

    @property
    def seconds(self) -> float | None:
        """Of training, all seeds together; None where that is not told."""
        told = [run.seconds for run in self.seeds if run.seconds is not None]
        return sum(told) if len(told) == len(self.seeds) else None


def anchor_of(path: str) -> str:
    """The place on the page of a table or figure, by its path:
    "tables-dp-fedmeta-table2", for instance.
    """
    return re.sub(r"[^\w-]+", "-", str(Path(path).with_suffix("")))


def run_anchor(group: str) -> str:
    """The place on the page of a configuration, by its folder."""
    return f"run-{Path(group).name}"


def groups_of(items: Sequence[Item]) -> list[Group]:
    """The configurations that the items show; none of what is computed and not
    trained.
    """
    groups: dict[str, Group] = {}
    for item, cell in (
        (shown, cell) for shown in items for cell in shown.cells if cell.folders
    ):
        group = groups.setdefault(cell.group, Group(folder=cell.group, cell=cell))
        folders = sorted(
            {*group.cell.folders, *cell.folders}, key=lambda name: (len(name), name)
        )
        group.cell = dataclasses.replace(group.cell, folders=tuple(folders))
        label = cell.variant or cell.label
        group.labels += [label] * (label not in group.labels)
        group.items += [item] * (item not in group.items)
    return list(groups.values())


def _rounds(training: Mapping[str, Any]) -> str:
    """How many rounds, of how many where they are not all, and what stopped it."""
    run, planned = training.get("rounds_run", 0), training.get("rounds_planned")
    if planned is None or planned == run:
        return f"{run:,}"
    return f"{run:,} of {planned:,} ({training.get('stopped_by', 'stopped')})"


def _files(place: Path, folder: Path) -> Links:
    """What lies in a run's folder for a reader: its files, then its logs."""
    if not (place / "ledger.jsonl").exists():
        raise BenchError(
            f"{place / 'ledger.jsonl'} is missing: run the workflow again to make it"
        )
    files = [
        path
        for path in sorted(place.iterdir())
        if path.is_file() and not path.name.startswith(".")
    ]
    return [
        (path.name, link_to(path, folder))
        for path in [*files, *sorted((place / "logs").glob("*.log"))]
    ]


def trained_with(run: RunFiles) -> str:
    """Where and with what a run was trained, as it wrote down itself: not always what
    made the page.
    """
    training = run.training
    versions = ", ".join(
        f"{library} {version}"
        for library, version in training.get("versions", {}).items()
    )
    return (
        f"{training.get('device', 'unknown')}, {training.get('machine', 'unknown')}:"
        f" {versions}"
    )


def link_to(path: Path, folder: Path) -> str:
    """From the page, with slashes on every system."""
    return Path(os.path.relpath(path, folder)).as_posix()
