"""Partitions for tests, made by the code that makes a run's clients."""

import functools
from typing import Any

from dpfedbench.config.part import kinds_of
from dpfedbench.config.sections import PartitionScheme
from dpfedbench.data.partition import (
    Partition,
    RecordPartition,
    check_task_sizes,
    partition_of,
    record_partition_of,
)

SIZES = {"examples_per_class": 2, "support_per_class": 1, "query_per_class": 1}


def made_clients(kind: str, **values: Any) -> Any:
    """Return a partition's section; sizes of tasks have small defaults."""
    return kinds_of(PartitionScheme)[kind].read(SIZES | values, "clients")


def make_partition(
    dataset: Any,
    *,
    clients: int,
    ways: int,
    examples_per_class: int,
    kind: str,
    seed: int,
    **own: Any,
) -> Partition:
    """Return few-shot clients of a loaded data set of classes."""
    check_task_sizes(dataset, "train", ways=ways, examples=examples_per_class)
    part = made_clients(
        kind, count=clients, examples_per_class=max(2, examples_per_class), **own
    )
    # Tests of single images need fewer than a configuration allows.
    object.__setattr__(part, "examples_per_class", examples_per_class)
    return partition_of(
        dataset,
        *part.draw(dataset, ways=ways, seed=seed),
        kind=kind,
        seed=seed,
        own=own,
    )


def make_records(
    kind: str, dataset: Any, *, clients: int, seed: int, **own: Any
) -> RecordPartition:
    """Return clients of loaded records."""
    part = made_clients(kind, count=clients, **own)
    return record_partition_of(
        dataset, part.deal(dataset, seed=seed), kind=kind, seed=seed, own=own
    )


make_fragments = functools.partial(make_records, "fragments")
make_dirichlet = functools.partial(make_records, "dirichlet")
