"""Make the page of results."""

import csv
import time
from pathlib import Path

from dpfedbench.files import write_text
from dpfedbench.manifest import rule_job
from dpfedbench.reporting.described import Item, Private

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "page"):
        from dpfedbench.reporting.page import Made, make

        with open(snakemake.input.datasets, newline="", encoding="utf-8") as handle:
            datasets = list(csv.DictReader(handle, delimiter="\t"))
        folder, command = Path(snakemake.output[0]).parent, snakemake.config["command"]
        shown = [
            Made(
                path=given["path"],
                command=command.replace(
                    "{target}", (folder / given["path"]).as_posix()
                ),
                item=given["item"] and Item.read(given["item"]),
            )
            for given in snakemake.params.shown
        ]
        text = make(
            shown,
            private=[Private.read(entry) for entry in snakemake.params.private],
            results="results",
            folder=folder,
            provenance=Path(snakemake.input.provenance[0]),
            published=snakemake.input.published,
            papers=snakemake.params.papers,
            datasets=datasets,
            made=time.strftime("%Y-%m-%d %H:%M %Z"),
        )
        write_text(snakemake.output[0], text)
