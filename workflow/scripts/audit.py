"""Audit a run's mechanism."""

from pathlib import Path

from dpfedbench.jobs import job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "audit"):
        from dpfedbench.audit.report import audit_run

        audit_run(Path(snakemake.input.ledger).parent, Path(snakemake.output[0]))
