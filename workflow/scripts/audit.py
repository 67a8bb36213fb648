"""Audit the mechanism of a run."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "audit"):
        from dpfedbench.audit.report import audit_run

        audit_run(Path(snakemake.input.ledger).parent, snakemake.output[0])
