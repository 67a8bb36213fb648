"""Clients that differ in labels and in size: a Dirichlet draw shares out the records of
each label.

For each label the clients' shares of its records are drawn from Dir(alpha, ..., alpha)
(Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, 2019,
Section 4; Li et al., Federated Learning on Non-IID Data Silos, 2022). A small alpha
gives few labels a client and unequal sizes; a large alpha gives nearly equal shares. If
a client would have fewer records than `least`, all shares are drawn again, so that the
partition is a Dirichlet draw conditioned on every client having `least` records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpfedbench.parts.partitions.record_clients import RecordClients
from dpsum.randomness import stream

if TYPE_CHECKING:
    from dpfedbench.data.records import RecordDataset

_DRAWS = 1000  # attempts before the smallest client size is reported as infeasible


class Dirichlet(RecordClients):
    """Clients that share all training records, by Dirichlet shares of each label.

    They differ in labels and in size.
    """

    partition: Literal["dirichlet"] = "dirichlet"
    equal_sizes: ClassVar[bool] = False
    concentration: float = setting(
        ge=1e-3, le=1e6, doc="alpha; clients differ more for smaller values"
    )
    least: int = setting(
        10, ge=1, le=10_000_000, doc="smallest number of records of a client"
    )

    def folder(self, ways: int) -> str:
        return f"{self.count}clients-dirichlet{self.concentration!r}-least{self.least}"

    def check_room(self, dataset: str, *, ways: int, classes: int, each: int) -> None:
        if self.count * self.least > classes * each:
            raise BenchError(
                f"clients.count x clients.least is {self.count * self.least:,}, but"
                f" {dataset} has {classes * each:,} training records: lower one of them"
            )

    def deal(self, dataset: RecordDataset, *, seed: int) -> list[np.ndarray]:
        pool = dataset.splits["train"]
        of_label = [
            pool[dataset.labels[pool] == label]
            for label in range(len(dataset.class_names))
        ]
        rng = stream(seed, "partition/dirichlet")
        for _ in range(_DRAWS):
            counts = shared_out(
                rng,
                [len(records) for records in of_label],
                self.count,
                self.concentration,
            )
            if counts.sum(axis=0).min() >= self.least:
                break
        else:
            raise BenchError(
                f"in each of {_DRAWS} draws, some client had fewer than {self.least}"
                f" of {dataset.name}'s {len(pool)} training records: raise"
                " clients.concentration, or lower clients.least or clients.count"
            )
        dealt = [
            np.split(rng.permutation(records), np.cumsum(row)[:-1])
            for records, row in zip(of_label, counts, strict=True)
        ]
        return [
            np.concatenate([parts[client] for parts in dealt])
            for client in range(self.count)
        ]


def shared_out(
    rng: np.random.Generator, sizes: list[int], clients: int, concentration: float
) -> np.ndarray:
    """Draw the number of records of each label that each client gets.

    Returns:
        int64 [labels, clients], whose rows add up to `sizes`.
    """
    shares = rng.dirichlet(np.full(clients, concentration), size=len(sizes))
    ends = np.rint(np.cumsum(shares, axis=1)[:, :-1] * np.array(sizes)[:, None]).astype(
        np.int64
    )
    whole = np.array(sizes, np.int64)[:, None]
    return np.diff(np.minimum(ends, whole), axis=1, prepend=0, append=whole)
