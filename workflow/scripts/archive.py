"""Pack frames, tables, figures, page and provenance into one archive."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "archive"):
        from dpfedbench.results.archive import write_archive

        archive = Path(snakemake.output[0])
        write_archive(snakemake.params.folder, snakemake.input, archive)
