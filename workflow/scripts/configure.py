"""Write down a run's resolved configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.files import write_text
from dpfedbench.manifest import rule_job


def configure(values: Mapping[str, Any], path: Path) -> None:
    """Check the values once more and write them as YAML."""
    from dpfedbench.methods import read_run

    write_text(path, read_run(values).to_yaml())


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, "configure"):
        configure(snakemake.params.run, Path(snakemake.output[0]))
