"""Note what made the results."""

from pathlib import Path

from dpfedbench.files import write_json
from dpfedbench.jobs import job
from dpfedbench.reporting.provenance import provenance

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "provenance"):
        target = snakemake.wildcards.get("paper", "").replace("-", "_")
        command = snakemake.config["command"].replace("{target}", target).replace("  ", " ").strip()
        found = provenance(
            Path(snakemake.scriptdir).resolve().parents[1],
            command,
            preset=snakemake.params.preset,
            stand_ins=snakemake.params.stand_ins,
        )
        write_json(snakemake.output[0], found)
