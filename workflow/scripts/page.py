"""Write the page of results."""

import csv
import time
from pathlib import Path

from dpfedbench.files import write_text
from workflow_jobs.manifests import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "page"):
        from dpfedbench.results.items import Item
        from dpfedbench.results.page import Product, make

        with open(snakemake.input.datasets, newline="", encoding="utf-8") as handle:
            datasets = list(csv.DictReader(handle, delimiter="\t"))
        folder = Path(snakemake.output[0]).parent
        command = snakemake.config["command"]
        products = [
            Product(
                path=product["path"],
                command=command.replace(
                    "{target}", (folder / product["path"]).as_posix()
                ),
                item=Item(**product["item"]) if product["item"] else None,
            )
            for product in snakemake.params.shown
        ]
        text = make(
            products,
            cells=snakemake.params.cells,
            results="results",
            folder=folder,
            provenance=Path(snakemake.input.provenance[0]),
            published=snakemake.input.published,
            papers=snakemake.params.papers,
            datasets=datasets,
            made=time.strftime("%Y-%m-%d %H:%M %Z"),
        )
        write_text(snakemake.output[0], text)
