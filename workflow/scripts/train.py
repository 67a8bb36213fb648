"""Train one run."""

from pathlib import Path

from dpfedbench.manifest import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "train"):
        from dpfedbench.federation.engine import train
        from dpfedbench.methods import read_run_file

        machine = snakemake.config["machine"]
        train(
            read_run_file(snakemake.input.config[0]),
            data_dir=Path(snakemake.input.images).parent,
            clients_dir=Path(snakemake.input.clients).parent,
            run_dir=Path(snakemake.output.model).parent,
            threads=snakemake.threads,
            checkpoint_seconds=machine["checkpoint_seconds"],
            device=machine["device"],
            kernels=machine["kernels"] == "auto",
            references={Path(path).name: Path(path) for path in snakemake.input.get("references", ())},
        )
