"""Read a run's ledger under each accounting profile."""

from pathlib import Path

from dpfedbench.jobs import job
from dpfedbench.privacy.accounting import account_run
from dpfedbench.privacy.tuning import Search

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], "account"):
        clients = snakemake.input.get("clients")
        account_run(
            Path(snakemake.input.ledger).parent,
            Path(snakemake.output[0]),
            clients_dir=Path(clients[0]).parent if clients else None,
            search=Search.of(snakemake.params.search),
        )
