"""Note what made the results."""

from pathlib import Path

from dpfedbench.files import write_json
from dpfedbench.jobs import job
from dpfedbench.reporting.provenance import provenance

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "provenance"):
        write_json(snakemake.output[0], provenance(Path(snakemake.scriptdir).parents[1], snakemake.params.command))
