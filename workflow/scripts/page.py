"""Write the page of results, of all papers or of those that are finished so far."""

import time
from pathlib import Path

from dpfedbench.files import write_text
from workflow_jobs.page_so_far import write_page_so_far
from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "page"):
        from dpfedbench.results.items import Item
        from dpfedbench.results.page import Product, make

        output = Path(snakemake.output[0])
        missing = snakemake.params.get("missing", ())
        folder = Path(snakemake.params.folder)
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
            # A page so far lies where that of all papers will.
            page_folder=folder if missing else output.parent,
            provenance=Path(snakemake.input.provenance[0]),
            published=snakemake.input.published,
            papers=snakemake.params.papers,
            made=time.strftime("%Y-%m-%d %H:%M %Z"),
            missing=missing,
        )
        if missing:
            write_page_so_far(
                text,
                folder / "index.html",
                output,
                inputs=snakemake.input,
                finished=[paper["title"] for paper in snakemake.params.papers.values()],
                missing=missing,
            )
        else:
            write_text(output, text)
