"""Audit the mechanisms of some runs."""

from pathlib import Path

from dpfedbench.jobs import job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "audit"):
        from dpfedbench.audit.report import audit_run

        for ledger, written in zip(snakemake.input.ledgers, snakemake.output, strict=True):
            audit_run(Path(ledger).parent, Path(written))
