"""Estimate the costs of the configuration's runs on this machine."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "cost", is_answer=True) as logger:
        from dpfedbench.experiments.cost import Clock, report
        from dpfedbench.manifests import RESULTS
        from dpfedbench.papers import read_run
        from workflow_jobs.manifests import seal

        machine = snakemake.config["machine"]
        params = snakemake.params
        kernels = machine["kernels"] == "auto"
        clock = Clock(
            Path(RESULTS),
            threads=snakemake.threads,
            device=machine["device"],
            kernels=kernels,
        )
        for name, planned_runs in params.reports.items():
            runs = [read_run(values) for values in planned_runs]
            folder = Path(name)
            report(runs, clock, folder, cores=params.cores, say=logger.info)
            files = ("cost.csv", "cost.md", "cost_rates.csv")
            seal("cost", [folder / file for file in files])
