"""Read a run's ledger under each accounting profile."""

from pathlib import Path

from dpfedbench.jobs import job
from dpfedbench.privacy.accounting import account_run

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "account"):
        account_run(Path(snakemake.input.ledger).parent, Path(snakemake.output[0]))
