"""Give each client its classes and examples."""

from pathlib import Path
from typing import Any

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import make_partition
from dpfedbench.jobs import job


def partition(data_dir: Path, out_dir: Path, **sizes: Any) -> None:
    """Partition a prepared data set and save it in `out_dir`."""
    make_partition(load_dataset(data_dir), **sizes).save(out_dir)


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with job(snakemake.log[0], f"partition {snakemake.wildcards.dataset} {snakemake.wildcards.clients}"):
        partition(
            Path(snakemake.input[0]).parent,
            Path(snakemake.output.clients).parent,
            **dict(snakemake.params.items()),
        )
