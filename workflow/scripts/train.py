"""Train one run."""

from pathlib import Path

from dpfedbench.config import RunConfig
from dpfedbench.jobs import job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "train"):
        from dpfedbench.federation.engine import train

        train(
            RunConfig.from_yaml(snakemake.input.config[0]),
            data_dir=Path(snakemake.input.images).parent,
            clients_dir=Path(snakemake.input.clients).parent,
            reference=Path(snakemake.input.reference[0]) if snakemake.input.get("reference") else None,
            run_dir=Path(snakemake.output.model).parent,
            threads=snakemake.threads,
            checkpoint_seconds=snakemake.config["machine"]["checkpoint_seconds"],
            gpus=snakemake.resources.gpu,
        )
