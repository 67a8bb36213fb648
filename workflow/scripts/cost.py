"""Estimate the costs of the configuration's runs on this machine."""

from pathlib import Path

from dpfedbench.manifests import RESULTS
from workflow_jobs.manifests import rule_job, seal

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "cost", is_answer=True) as logger:
        from dpfedbench.experiments.cost import Clock, report
        from dpfedbench.papers import read_run

        machine = snakemake.config["machine"]
        params = snakemake.params
        kernels = machine["kernels"] == "auto"
        clock = Clock(
            Path(RESULTS),
            threads=snakemake.threads,
            device=machine["device"],
            kernels=kernels,
        )
        runs = [read_run(values) for values in params.runs]
        folder = Path(params.report)
        report(runs, clock, folder, cores=params.cores, say=logger.info)
        seal(
            "cost",
            [folder / name for name in ("cost.csv", "cost.md", "cost_rates.csv")],
        )
