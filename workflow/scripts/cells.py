"""List which run's folder belongs to which cell of a table or figure."""

from dpfedbench.files import write_text
from dpfedbench.manifest import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "cells"):
        import pandas as pd

        columns = ["paper", "item", "series", "x", "seed", "folder"]
        cells = pd.DataFrame(list(snakemake.params.cells), columns=columns)
        cells["x"] = ["" if pd.isna(x) else f"{x:g}" for x in cells["x"]]
        write_text(
            snakemake.output[0],
            cells.to_csv(sep="\t", index=False, lineterminator="\n"),
        )
