"""Write the provenance of the results: command, configuration files, versions."""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "provenance"):
        from dpfedbench.files import write_json
        from workflow_jobs.provenance import provenance

        target = snakemake.wildcards.get("paper", "").replace("-", "_")
        command = (
            snakemake.config["command"]
            .replace("{target}", target)
            .replace("  ", " ")
            .strip()
        )
        root = Path(snakemake.scriptdir).resolve().parents[1]
        params = dict(snakemake.params.items())
        files = snakemake.config["configuration_files"]
        write_json(
            snakemake.output[0],
            provenance(root, command, configuration_files=files, **params),
        )
