"""Deal the classes and examples, or the records, of a data set out to clients."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(
        snakemake,
        f"partition {snakemake.wildcards.dataset} {snakemake.wildcards.clients}",
    ):
        from dpfedbench.config.sections import PartitionScheme

        clients, ways = PartitionScheme.from_settings(snakemake.params.drawn_from)
        partition = clients.make(
            Path(snakemake.input[0]).parent, ways=ways, seed=snakemake.params.seed
        )
        partition.save(Path(snakemake.output.clients).parent)
