"""List which run's folder belongs to which cell of a table or figure."""

import csv
import io
from pathlib import Path

from dpfedbench.files import write_text
from dpfedbench.manifest import rule_job

COLUMNS = ("paper", "item", "series", "x", "seed", "folder")

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "cells"):
        text = io.StringIO()
        writer = csv.writer(text, delimiter="\t", lineterminator="\n")
        writer.writerow(COLUMNS)
        for paper, item, series, x, seed, folder in snakemake.params.cells:
            writer.writerow((paper, item, series, "" if x is None else f"{x:g}", seed, folder))
        write_text(Path(snakemake.output[0]), text.getvalue())
