"""Measure the time to collect 2,000 runs into one frame, and the size of their page.

python benchmarks/results_page.py RESULTS [--runs 2000]

RESULTS is the results folder of a finished default run. The benchmark links its runs
repeatedly under other keys, in a temporary folder, until there are 2,000. RESULTS does
not change.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpfedbench.experiments.configuration import Configuration, read_shipped
from dpfedbench.experiments.expand import make_plan
from dpfedbench.results.items import Item
from dpfedbench.results.page import Product, make
from dpfedbench.results.runs_table import collect_runs

CONFIG = Path(__file__).resolve().parents[1] / "config"


def main() -> None:
    """Collect linked copies of the runs, make the page, and print times and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--runs", type=int, default=2000)
    arguments = parser.parse_args()
    configuration = Configuration.read(read_shipped(CONFIG))
    plan = make_plan(configuration)
    audited_runs = plan.audited_runs()
    items = [item.describe(audited_runs) for item in plan.items.values()]
    cells = [cell for item in items for cell in item["cells"] if cell["run"]]
    with tempfile.TemporaryDirectory() as temporary_folder:
        results = Path(temporary_folder, "results")
        results.mkdir()
        for name in ("tables", "figures", "provenance.json"):
            (results / name).symlink_to((arguments.results / name).resolve())
        runs = sorted(plan.runs)
        copies = list(link_runs(arguments.results, results, runs, arguments.runs))
        names = [run for copy in copies for run in copy.values()]
        start = time.perf_counter()
        collect_runs(results, names)
        print(f"collecting {len(names)} runs: {time.perf_counter() - start:.1f} s")
        every_cell = [
            {**cell, "run": copy[cell["run"]], "audited_run": ""}
            | find_audited_run(cell, copy)
            for copy in copies
            for cell in cells
            if cell["run"] in copy
        ]
        start = time.perf_counter()
        html = make(
            list(list_products(items, results)),
            cells=every_cell,
            results=results,
            folder=results,
            page_folder=results,
            published=CONFIG / "published.csv",
            papers={
                name: {"title": paper.title, "source": paper.source}
                for name, paper in configuration.experiments.items()
                if paper
            },
            made="now",
            provenance=results / "provenance.json",
        )
        size = len(html.encode()) / 1e6
        print(f"page: {size:.2f} MB in {time.perf_counter() - start:.1f} s")


def find_audited_run(cell: dict[str, Any], copy: dict[str, str]) -> dict[str, str]:
    """Return the run of a copy whose audit a cell shows, as a column of the cell.

    Args:
        cell: the cell.
        copy: names of the copied runs, by run.
    """
    audited_run = cell["audited_run"]
    return {"audited_run": copy[audited_run]} if audited_run in copy else {}


def link_runs(
    source: Path, results: Path, runs: list[str], count: int
) -> Iterator[dict[str, str]]:
    """Link copies of all runs until there are `count` of them.

    Args:
        source: results folder of the runs.
        results: results folder of the copies.
        runs: names of the runs.
        count: number of copied runs.

    Yields:
        The names of the copied runs, by run, for each copy.
    """
    missing = count
    number = 0
    while missing > 0:
        copy = {}
        for run in runs[:missing]:
            *parents, key, seed = Path(run).parts
            name = Path(*parents, f"{int(key, 16) + number:010x}"[-10:], seed)
            if number == 0:
                name = Path(run)
            target = results / "runs" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink((source / "runs" / run).resolve(), target)
            copy[run] = name.as_posix()
        yield copy
        missing -= len(copy)
        number += 1


def list_products(items: list[dict[str, Any]], results: Path) -> Iterator[Product]:
    """Yield the tables and figures of a results folder."""
    for name in ("tables/answer.csv", "figures/privacy.png"):
        yield Product(path=name, command=f"snakemake {name}", item=None)
    for description in items:
        item = Item(**json.loads(json.dumps(description)))
        is_table = item.kind == "table"
        path = f"figures/{item.paper}/{item.name}.png"
        if is_table:
            path = f"tables/{item.paper}/{item.name}.csv"
        if (results / path).exists():
            yield Product(path=path, command=f"snakemake {path}", item=item)


if __name__ == "__main__":
    main()
