"""Clients that differ in labels and in size: each label's records are shared out by a Dirichlet draw.

For each label the clients' shares of its records are drawn from Dir(alpha, ..., alpha) (Yurochkin et al., Bayesian
Nonparametric Federated Learning of Neural Networks, 2019, Section 4; Li et al., Federated Learning on Non-IID Data
Silos, 2022). A small alpha gives few labels a client and unequal sizes; a large one approaches equal shares of all.
Every training record goes to one client. Where a client would have fewer records than `least`, all shares are drawn
again, so that the partition is a Dirichlet draw given that no client has fewer.
"""

import numpy as np

from dpfedbench.data.fragments import RecordPartition
from dpfedbench.data.records import RecordDataset
from dpfedbench.errors import BenchError
from dpsum.randomness import stream

KIND = "dirichlet"
_DRAWS = 1000  # before it is said that so many records for each cannot be had


def make_dirichlet(
    dataset: RecordDataset, *, clients: int, concentration: float, least: int, seed: int
) -> RecordPartition:
    """Share out the training records, label by label.

    Args:
        dataset: only its training records are used.
        clients: how many.
        concentration: alpha, above 0.
        least: records that each client has at least.
        seed: the run's seed; drawn from the stream (seed, "partition/dirichlet").

    Raises:
        BenchError: no draw gave each client so many records.
    """
    pool, classes = dataset.splits["train"], len(dataset.class_names)
    of_label = [pool[dataset.labels[pool] == label] for label in range(classes)]
    rng = stream(seed, "partition/dirichlet")
    for _ in range(_DRAWS):
        counts = shared_out(rng, [len(records) for records in of_label], clients, concentration)
        if counts.sum(axis=0).min() >= least:
            break
    else:
        raise BenchError(
            f"in {_DRAWS} draws some client always had fewer than {least} of {dataset.name}'s {len(pool)} training "
            "records: raise clients.concentration, or lower clients.least or clients.count"
        )
    dealt = [
        np.split(rng.permutation(records), np.cumsum(row)[:-1]) for records, row in zip(of_label, counts, strict=True)
    ]
    held = [np.concatenate([parts[client] for parts in dealt]) for client in range(clients)]
    sizes = [len(records) for records in held]
    padded = np.full((clients, max(sizes)), -1, np.int32)
    for row, records in zip(padded, held, strict=True):
        row[: len(records)] = records
    summary = {
        "dataset": dataset.name,
        "dataset_sha256": dataset.summary["sha256"],
        "split": "train",
        "kind": KIND,
        "seed": seed,
        "clients": clients,
        "concentration": concentration,
        "least": least,
        "records_per_client": sizes,
        "label_histogram": counts.T.tolist(),
        "labels_per_client": (counts > 0).sum(axis=0).tolist(),
    }
    return RecordPartition(records=padded, summary=summary, class_names=dataset.class_names)


def shared_out(rng: np.random.Generator, sizes: list[int], clients: int, concentration: float) -> np.ndarray:
    """How many records of each label each client gets: int64 [labels, clients], whose rows add up to `sizes`."""
    shares = rng.dirichlet(np.full(clients, concentration), size=len(sizes))
    ends = np.rint(np.cumsum(shares, axis=1)[:, :-1] * np.array(sizes)[:, None]).astype(np.int64)
    whole = np.array(sizes, np.int64)[:, None]
    return np.diff(np.minimum(ends, whole), axis=1, prepend=0, append=whole)
