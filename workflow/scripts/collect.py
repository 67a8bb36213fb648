"""Collect all runs of the plan into one data frame."""

from pathlib import Path

from dpfedbench.manifest import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "collect"):
        from dpfedbench.results.runs_table import collect_runs, write_cells, write_runs

        frame = collect_runs(
            "results",
            snakemake.params.runs,
            papers=snakemake.params.papers,
            audited_runs=snakemake.params.audited_runs,
        )
        write_runs(frame, Path(snakemake.output.runs), Path(snakemake.output.csv))
        write_cells(snakemake.params.cells, Path(snakemake.output.cells))
