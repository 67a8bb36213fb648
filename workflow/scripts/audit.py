"""Audit the mechanisms of some runs."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "audit"):
        from dpfedbench.audit.report import audit_run
        from dpfedbench.files import sha256, write_text

        folder = Path(snakemake.output.folder)
        for ledger in snakemake.input.ledgers:
            run = Path(ledger).parent
            # The rule `audited` copies the audit and its manifest from this folder to
            # the run's folder.
            copied_folder = folder / f"{run.parent.name}-{run.name}"
            audit_run(run, copied_folder / "audit.json")
        lines = [
            f"{sha256(path)}  {path.relative_to(folder)}"
            for path in sorted(folder.rglob("audit.json"))
        ]
        write_text(snakemake.output.checksums, "\n".join(lines) + "\n")
