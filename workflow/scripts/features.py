"""Compute the features of all records of a data set."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    folder = f"{snakemake.wildcards.dataset}/{snakemake.wildcards.key}"
    with rule_job(snakemake, f"features {folder}"):
        from dpfedbench.evaluation.features import make_features
        from dpfedbench.papers import read_run

        make_features(
            read_run(snakemake.config["features"][folder]),
            data_dir=Path(snakemake.input[0]).parent,
            out_dir=Path(snakemake.output.features).parent,
        )
