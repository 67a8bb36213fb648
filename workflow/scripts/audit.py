"""Audit the mechanisms of some runs."""

from pathlib import Path

from dpfedbench.jobs import job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "audit"):
        from dpfedbench.audit.report import audit_run

        folder = Path(snakemake.output[0])
        folder.mkdir(parents=True, exist_ok=True)
        for ledger in snakemake.input.ledgers:
            run = Path(ledger).parent
            audit_run(run, folder / f"{run.parent.name}-{run.name}.json")
