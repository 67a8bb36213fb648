"""Note what made the results."""

from pathlib import Path

from dpfedbench.files import write_json
from dpfedbench.manifest import rule_job
from dpfedbench.reporting.provenance import provenance

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "provenance"):
        found = provenance(
            Path(snakemake.scriptdir).parents[1],
            snakemake.params.command,
            preset=snakemake.params.preset,
            stand_ins=snakemake.params.stand_ins,
        )
        write_json(snakemake.output[0], found)
