"""The runs of the page: one entry for each configuration, with its seeds, plots, files
and the items that show it.
"""

import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from dpfedbench.errors import BenchError
from dpfedbench.files import text_of
from dpfedbench.results import history_svg
from dpfedbench.results.items import Item
from dpfedbench.results.summary import read_rows

Links = Sequence[tuple[str, str]]
"""Names, and the files that they link to from the page."""


class Facet(NamedTuple):
    """The values that the page can be filtered by: `epsilon` is the upper end of the
    proven ε, None where none is finite.
    """

    paper: str
    dataset: str
    method: str
    epsilon: float | None

    @classmethod
    def of(cls, row: Any, paper: str | None = None) -> "Facet":
        """Return the facet of a row, of its own paper unless another is given."""
        epsilon = row.epsilon_proven_high
        return cls(
            paper or row.paper,
            row.dataset,
            row.method,
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One configuration as the page shows it.

    Attributes:
        row: its runs, as `summary.summarize`.
        name: the method, and what a table or figure calls the configuration.
        facets: one for each paper that shows it.
        shown_in: names and anchors of the tables and figures that show it.
        plots: labels and images of its history.
        spark: a small plot of all seeds.
        configuration: its settings as text, without the seed.
        seeds: its runs.
    """

    row: Any
    name: str
    facets: Sequence[Facet]
    shown_in: Links
    plots: Sequence[tuple[str, Markup]]
    spark: Markup
    configuration: str
    seeds: Sequence[SeedRun]

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        return run_anchor(self.row.folder)

    @property
    def seconds(self) -> float | None:
        """Duration of training, all seeds together; None where a run has none."""
        known = [seed.seconds for seed in self.seeds if seed.seconds is not None]
        return sum(known) if len(known) == len(self.seeds) else None


def anchor_of(path: str) -> str:
    """Return the place on the page of a table or figure, by its path:
    "tables-dp-fedmeta-table2", for instance.
    """
    return re.sub(r"[^\w-]+", "-", str(Path(path).with_suffix("")))


def run_anchor(folder: str) -> str:
    """Return the place on the page of a configuration, by its folder."""
    return f"run-{Path(folder).name}"


def configurations(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the configurations that some items show, one mapping for each run; none of
    figures of accounts.

    `labels` are the names that items give the configuration, and `items` are (paper,
    item, kind) of these.
    """
    by_folder: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        for cell in item.cells:
            if cell["run"]:
                by_folder.setdefault(str(Path(cell["run"]).parent), []).append(cell)
    records = []
    for number, cells in enumerate(by_folder.values()):
        appearances = [(cell["paper"], cell["item"], cell["kind"]) for cell in cells]
        labels = [cell["variant"] or cell["label"] for cell in cells]
        shared = {
            **cells[0],
            "item": "",
            "cell": number,
            "test": "",
            "labels": tuple(dict.fromkeys(labels)),
            "items": tuple(dict.fromkeys(appearances)),
        }
        seeds = {cell["seed"]: cell["run"] for cell in cells}
        for seed in sorted(seeds):
            records.append({**shared, "seed": seed, "run": seeds[seed]})
    return records


def read_configurations(items: Sequence[Item], results: str | Path) -> pd.DataFrame:
    """Return one row for each configuration that some items show."""
    return read_rows(results, configurations(items))


def read_entry(row: Any, runs: pd.DataFrame, results: Path, folder: Path) -> Entry:
    """Read the histories and files of a configuration.

    Args:
        row: of `read_configurations`.
        runs: the frame of runs, by their names.
        results: the results folder.
        folder: the folder of the page.

    Raises:
        BenchError: a file of a run is missing or damaged.
    """
    places = {run: results / "runs" / run for run in row.runs}
    numbers = [int(runs.loc[run, "seed"]) for run in row.runs]
    histories = [place / "history.csv" for place in places.values()]
    curves = history_svg.read_curves(list(zip(numbers, histories, strict=True)))
    labelled = [(history_svg.QUANTITIES[name], drawn) for name, drawn in curves.items()]

    def spark(indices: Sequence[int]) -> Markup:
        if not labelled:
            return Markup("")
        label, drawn = labelled[0]
        return history_svg.draw(
            [drawn[index] for index in indices], label=label, small=True
        )

    settings = text_of(places[row.runs[0]] / "config.yaml").splitlines()
    seeds = []
    for index, run in enumerate(row.runs):
        facts = runs.loc[run]
        seconds = None if pd.isna(facts["seconds"]) else float(facts["seconds"])
        seeds.append(
            SeedRun(
                seed=numbers[index],
                accuracy=f"{facts['accuracy']:.1f}",
                rounds=_rounds(facts),
                seconds=seconds,
                spark=spark([index]),
                links=_files(places[run], folder),
            )
        )
    return Entry(
        row=row,
        name=_name(row),
        facets=[
            Facet.of(row, paper) for paper in dict.fromkeys(p for p, *_ in row.items)
        ],
        shown_in=[
            (f"{paper}, {item}", anchor_of(f"{_folder_of(kind)}/{paper}/{item}"))
            for paper, item, kind in row.items
        ],
        plots=[
            (label, history_svg.draw(drawn, label=label)) for label, drawn in labelled
        ],
        spark=spark(range(len(numbers))),
        configuration="\n".join(
            line for line in settings if not line.startswith("seed:")
        ),
        seeds=seeds,
    )


def _folder_of(kind: str) -> str:
    return "tables" if kind in ("table", "time-table") else "figures"


def _name(row: Any) -> str:
    """Return the method, and what an item calls the configuration where that says
    more.
    """
    plain = {row.title.casefold(), row.method}
    telling = [label for label in row.labels if label.casefold() not in plain]
    return ": ".join([row.title, *telling[:1]])


def _rounds(facts: pd.Series) -> str:
    """Return how many rounds, of how many where not all were run, and what stopped
    training.
    """
    run, planned = facts["rounds_run"], facts["rounds_planned"]
    if pd.isna(planned) or planned == run:
        return f"{run:,.0f}"
    return f"{run:,.0f} of {planned:,.0f} ({facts['stopped_by']})"


def _files(place: Path, folder: Path) -> Links:
    """Return the files of a run's folder for a reader, then its logs."""
    if not (place / "ledger.jsonl").exists():
        raise BenchError(
            f"{place / 'ledger.jsonl'} is missing: run the workflow again to make it"
        )
    files = [
        path
        for path in sorted(place.iterdir())
        if path.is_file() and not path.name.startswith(".")
    ]
    logs = sorted((place / "logs").glob("*.log"))
    return [(path.name, link_to(path, folder)) for path in [*files, *logs]]


def link_to(path: Path, folder: Path) -> str:
    """Return a path as seen from the page, with slashes on every system."""
    return Path(os.path.relpath(path, folder)).as_posix()
