"""Audit the mechanisms of some runs."""

from pathlib import Path

from dpfedbench.files import sha256, write_text
from workflow_jobs.manifests import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "audit"):
        from dpfedbench.audit.report import audit_run

        folder = Path(snakemake.output.folder)
        for ledger in snakemake.input.ledgers:
            run = Path(ledger).parent
            # A folder for each, whose content goes into the run's: the audit, and the
            # manifest that vouches for it.
            audit_run(run, folder / f"{run.parent.name}-{run.name}" / "audit.json")
        lines = [
            f"{sha256(path)}  {path.relative_to(folder)}"
            for path in sorted(folder.rglob("audit.json"))
        ]
        write_text(snakemake.output.checksums, "\n".join(lines) + "\n")
