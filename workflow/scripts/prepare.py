"""Draw, fetch or unpack a data set."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, f"prepare {snakemake.wildcards.dataset}"):
        from dpfedbench.data.registry import prepare

        prepare(
            snakemake.wildcards.dataset,
            Path(snakemake.output.images).parent,
            snakemake.config["data"]["local_dir"],
            own=snakemake.config["datasets"],
        )
