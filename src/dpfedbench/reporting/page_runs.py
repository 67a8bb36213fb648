"""The runs of the page: one entry for each configuration, with its seeds, plots, files and where it is shown."""

import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from dpfedbench.errors import BenchError
from dpfedbench.reporting import history_svg
from dpfedbench.reporting.described import Cell, Item, Private
from dpfedbench.reporting.results import CellResult, RunFiles

Links = Sequence[tuple[str, str]]
"""Names, and where they lead from the page."""


class Facet(NamedTuple):
    """What the page can be filtered by: `epsilon` is the upper end of the ε that holds, None where none is finite."""

    paper: str
    dataset: str
    method: str
    epsilon: float | None


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
    """A configuration: its folder, a cell with all seeds that any item shows, and the items that do."""

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
        """The method, and what a table or figure calls the configuration where that says more."""
        plain = {self.cell.title.casefold(), self.cell.method}
        return ": ".join([self.cell.title, *[label for label in self.labels if label.casefold() not in plain][:1]])

    @property
    def shown_in(self) -> list[tuple[str, str]]:
        """The names and places of the items."""
        kinds = [("tables" if item.kind == "table" else "figures", item) for item in self.items]
        return [(f"{item.paper}, {item.name}", anchor_of(f"{kind}/{item.paper}/{item.name}")) for kind, item in kinds]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of one configuration, a seed each."""

    group: Group
    result: CellResult
    seeds: Sequence[SeedRun]
    configuration: str
    spark: Markup
    plots: Sequence[tuple[str, Markup]]
    facets: Sequence[Facet]

    @property
    def seconds(self) -> float | None:
        """Of training, all seeds together; None where that is not told."""
        told = [run.seconds for run in self.seeds if run.seconds is not None]
        return sum(told) if len(told) == len(self.seeds) else None


def anchor_of(path: str) -> str:
    """The place on the page of a table or figure, by its path."""
    return re.sub(r"[^\w-]+", "-", str(Path(path).with_suffix("")))


def run_anchor(group: str) -> str:
    """The place on the page of a configuration, by its folder."""
    return f"run-{Path(group).name}"


def facet_of(paper: str, of: Cell | Private, epsilon: float) -> Facet:
    """What a cell of a paper can be filtered by."""
    return Facet(paper, of.dataset, of.method, epsilon if math.isfinite(epsilon) else None)


def groups_of(items: Sequence[Item]) -> list[Group]:
    """The configurations that the items show; none of what is computed and not trained."""
    found: dict[str, Group] = {}
    for item in items:
        for cell in (cell for cell in item.cells if cell.folders):
            group = found.setdefault(cell.group, Group(folder=cell.group, cell=cell))
            folders = sorted({*group.cell.folders, *cell.folders}, key=lambda name: (len(name), name))
            group.cell = dataclasses.replace(group.cell, folders=tuple(folders))
            if (label := cell.variant or cell.label) not in group.labels:
                group.labels.append(label)
            if item not in group.items:
                group.items.append(item)
    return list(found.values())


def runs_of(group: Group, result: CellResult, folder: Path) -> Runs:
    """A configuration's runs, with links from the page's folder.

    Raises:
        BenchError: a file of a run is missing or damaged.
    """
    seeds = [int(run.folder.name.removeprefix("seed")) for run in result.runs]
    paths = [run.folder / "history.csv" for run in result.runs]
    curves = history_svg.read_curves(list(zip(seeds, paths, strict=True)))
    drawn = [(history_svg.QUANTITIES[column], found) for column, found in curves.items()]

    def spark(*chosen: int) -> Markup:
        if not drawn:
            return Markup("")
        label, found = drawn[0]
        return history_svg.draw([found[index] for index in chosen], label=label, small=True)

    told = []
    for index, (seed, run) in enumerate(zip(seeds, result.runs, strict=True)):
        accuracy, seconds = f"{run.metrics['accuracy']:.1f}", run.training.get("seconds")
        files = _files(run.folder, folder)
        told.append(SeedRun(seed, accuracy, _rounds(run.training), seconds, spark(index), files))
    return Runs(
        group=group,
        result=result,
        seeds=told,
        configuration=_configuration(result.runs[0].folder / "config.yaml"),
        spark=spark(*range(len(seeds))),
        plots=[(label, history_svg.draw(found, label=label)) for label, found in drawn],
        facets=[
            facet_of(paper, group.cell, result.holds.epsilon_high) for paper in {item.paper: 0 for item in group.items}
        ],
    )


def _rounds(training: Mapping[str, Any]) -> str:
    """How many rounds, of how many where they are not all, and what stopped it."""
    run, planned = training.get("rounds_run", 0), training.get("rounds_planned")
    if planned is None or planned == run:
        return f"{run:,}"
    return f"{run:,} of {planned:,} ({training.get('stopped_by', 'stopped')})"


def _files(place: Path, folder: Path) -> list[tuple[str, str]]:
    """What lies in a run's folder for a reader: its files, then its logs."""
    if not (place / "ledger.jsonl").exists():
        raise BenchError(f"{place / 'ledger.jsonl'} is missing: run the workflow again to make it")
    files = [path for path in sorted(place.iterdir()) if path.is_file() and not path.name.startswith(".")]
    return [(path.name, link_to(path, folder)) for path in [*files, *sorted((place / "logs").glob("*.log"))]]


def _configuration(path: Path) -> str:
    """The resolved configuration as text, less the seed, which is not shared."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BenchError(f"{path} is missing: run the workflow again to make it") from error
    return "\n".join(line for line in lines if not line.startswith("seed:"))


def trained_with(run: RunFiles) -> str:
    """Where and with what a run was trained, as it wrote down itself: not always what made the page."""
    training = run.training
    said = ", ".join(f"{library} {version}" for library, version in training.get("versions", {}).items())
    return f"{training.get('device', 'unknown')}, {training.get('machine', 'unknown')}: {said}"


def link_to(path: Path, folder: Path) -> str:
    """From the page, with slashes on every system."""
    return Path(os.path.relpath(path, folder)).as_posix()
