"""Write down a run's resolved configuration, as `Method.to_yaml` does: without the
methods, which the plan has read.
"""

from pathlib import Path

import yaml

from dpfedbench.files import write_text
from workflow_jobs.manifests import rule_job

if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "configure"):
        write_text(
            Path(snakemake.output[0]),
            yaml.safe_dump(dict(snakemake.params.run), sort_keys=False),
        )
