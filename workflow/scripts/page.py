"""Make the page of results."""

import csv
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedbench.files import write_text
from dpfedbench.jobs import job
from dpfedbench.reporting.page import make


def page(
    items: Sequence[Mapping[str, Any]],
    *,
    results: Path,
    published: Path,
    datasets: Path,
    papers: Mapping[str, Mapping[str, str]],
    output: Path,
) -> None:
    """Write the page of these tables and figures, which lie beside it."""
    with open(datasets, newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    made = time.strftime("%Y-%m-%d %H:%M %Z")
    text = make(
        items, results=results, folder=output.parent, published=published, papers=papers, datasets=rows, made=made
    )
    write_text(output, text)


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "page"):
        page(
            snakemake.params.shown,
            results=Path("results"),
            published=Path(snakemake.input.published),
            datasets=Path(snakemake.input.datasets),
            papers=snakemake.params.papers,
            output=Path(snakemake.output[0]),
        )
