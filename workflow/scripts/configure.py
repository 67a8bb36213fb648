"""Write a run's resolved configuration, in the format of `Method.to_yaml`.

The values come from the plan, so the script does not import the methods.
"""

from pathlib import Path

from workflow_jobs.rule_job import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "configure"):
        import yaml

        from dpfedbench.files import write_text

        write_text(
            Path(snakemake.output[0]),
            yaml.safe_dump(dict(snakemake.params.run), sort_keys=False),
        )
