"""Give each client its classes and examples."""

from pathlib import Path
from typing import Any

from dpfedbench.manifest import rule_job


def partition(
    data_dir: Path, out_dir: Path, *, kind: str, clients: int, seed: int, fragments: Any, **sizes: Any
) -> None:
    """Partition a prepared data set and save it in `out_dir`."""
    from dpfedbench.data.dirichlet import make_dirichlet
    from dpfedbench.data.fragments import make_fragments
    from dpfedbench.data.images import load_dataset
    from dpfedbench.data.partition import make_partition
    from dpfedbench.data.records import load_any_records
    from dpfedbench.data.text_tasks import make_text_partition
    from dpfedbench.data.tokens import is_text, load_texts

    if kind == "fragments" and fragments is not None:  # RunConfig refuses the kind without their number
        make_fragments(load_any_records(data_dir), clients=clients, fragments=fragments, seed=seed).save(out_dir)
    elif kind == "dirichlet":
        alpha, least = fragments
        dataset = load_any_records(data_dir)
        make_dirichlet(dataset, clients=clients, concentration=alpha, least=least, seed=seed).save(out_dir)
    elif is_text(data_dir):
        make_text_partition(load_texts(data_dir), clients=clients, kind=kind, seed=seed).save(out_dir)
    else:
        make_partition(load_dataset(data_dir), clients=clients, kind=kind, seed=seed, **sizes).save(out_dir)


if __name__ == "__main__":
    snakemake = globals()["snakemake"]
    with rule_job(snakemake, f"partition {snakemake.wildcards.dataset} {snakemake.wildcards.clients}"):
        partition(
            Path(snakemake.input[0]).parent,
            Path(snakemake.output.clients).parent,
            **dict(snakemake.params.items()),
        )
