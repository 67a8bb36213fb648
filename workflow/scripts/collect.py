"""Collect all runs of the plan into one data frame, and their cells into another."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "collect"):
        from dpfedbench.results import runs_table

        runs = runs_table.collect_runs(
            "results",
            snakemake.params.runs,
            papers=snakemake.params.papers,
            audited_runs=snakemake.params.audited_runs,
        )
        cells = runs_table.collect_cells("results", snakemake.params.cells, runs)
        output = snakemake.output
        runs_table.write_runs(runs, Path(output.runs), Path(output.csv))
        runs_table.write_frame(cells, Path(output.cells))
