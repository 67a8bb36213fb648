"""Few-shot clients of different alphabets: each draws its classes from its own mixture
over groups of classes.

A client's mixture over the groups that have training classes is drawn from Dir(alpha
p), where p_g is the group's share of these classes (Hsu et al., Measuring the Effects
of Non-Identical Data Distribution, 2019, with labels in place of groups). The client's
classes are drawn one after another without replacement, each with probability
proportional to its group's weight over the number of the group's classes. For large
alpha this is the partition `shared`; for small alpha a client has one alphabet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.data.partition import BLOCK, distinct
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np
from dpfedbench.parts.partitions.task_clients import TaskClients
from dpsum.randomness import stream

if TYPE_CHECKING:
    from dpfedbench.data.images import ImageDataset


class Alphabets(TaskClients):
    """Clients that differ in their alphabets, or in other groups of classes.

    The names of the classes give the groups (`ImageDataset.groups`).
    """

    partition: Literal["alphabets"] = "alphabets"
    disjoint: ClassVar[bool] = False
    concentration: float = setting(
        1.0, ge=1e-3, le=1e6, doc="alpha; clients differ more for smaller values"
    )

    def folder(self, ways: int) -> str:
        return f"{super().folder(ways)}{self.concentration!r}"

    def draw(
        self, dataset: ImageDataset, *, ways: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        pool = dataset.splits["train"]
        per_class = dataset.examples_per_class
        names, group = np.unique(np.array(dataset.groups)[pool], return_inverse=True)
        if len(names) < 2:
            raise BenchError(
                f"clients.partition is {self.partition}, but the training classes of"
                f" {dataset.name} have no groups: name classes GROUP/CLASS, or"
                f" clients.partition {self.default_kind}"
            )
        sizes = np.bincount(group)
        classes = np.empty((self.count, ways), np.int64)
        examples = np.empty((self.count, ways, self.examples_per_class), np.int64)
        for block, start in enumerate(range(0, self.count, BLOCK)):
            # Whole blocks are drawn and the last one is cut, so that a client does not
            # depend on the number of clients.
            rng = stream(seed, "partition/alphabets", block)
            stop = min(start + BLOCK, self.count)
            weights = log_dirichlet(
                rng, self.concentration * sizes / len(pool), BLOCK
            ) - np.log(sizes)
            # The largest sums of log weights and standard Gumbel draws are such a
            # sample (Yellott 1977).
            keys = weights[:, group] + rng.gumbel(size=(BLOCK, len(pool)))
            chosen = pool[np.argsort(-keys, axis=1, kind="stable")[:, :ways]]
            picked = distinct(rng, BLOCK * ways, per_class, self.examples_per_class)
            classes[start:stop] = chosen[: stop - start]
            examples[start:stop] = picked.reshape(BLOCK, ways, -1)[: stop - start]
        return classes, examples


def log_dirichlet(
    rng: np.random.Generator, alphas: np.ndarray, count: int
) -> np.ndarray:
    """Return the logarithms of draws from Dir(alphas), each up to an additive constant.

    A draw of Gamma(a) is a draw of Gamma(a + 1) times U^(1/a). The logarithms stay
    distinct where the draws themselves would underflow to 0.

    Args:
        rng: random number generator.
        alphas: float64 [groups].
        count: number of draws.

    Returns:
        float64 [count, groups].
    """
    gammas = rng.standard_gamma(alphas + 1.0, size=(count, len(alphas)))
    return np.log(gammas) + np.log(1.0 - rng.random((count, len(alphas)))) / alphas
