"""Compute a run's epsilons from its ledger, one for each accounting profile."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "account"):
        from dpfedbench.papers import read_run_file
        from dpfedbench.training.accounts import account_run
        from dpsum.accounting.tuning import Search

        files = snakemake.input
        clients = files.get("clients")
        account_run(
            read_run_file(files.config[0]),
            Path(files.ledger).parent,
            Path(snakemake.output[0]),
            clients_dir=Path(clients[0]).parent if clients else None,
            search=Search.of(snakemake.params.search),
            references={
                Path(path).name: Path(path) for path in files.get("references", ())
            },
        )
