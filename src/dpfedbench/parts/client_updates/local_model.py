"""Arguments of `contributions`: the model, and the clients of a cohort.

docs/client-updates.md documents both.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpsum.randomness import stream

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Gradients, Measured
    from dpfedbench.models.net import Net
    from dpsum.sums import SumSpec

Examples = tuple["np.ndarray", "np.ndarray"]
"""Inputs [n, ...] and labels int64 [n]."""

GRADIENTS_AT_ONCE = 8
"""Record gradients that are added up at once: they stay in the cache. Part of what a
result's bits are.
"""


@dataclasses.dataclass(kw_only=True)
class LocalClient:
    """One client of a cohort, as its update sees it.

    Attributes:
        number: of the client, from 0.
        state: values that the client keeps from one of its rounds to the next, by name:
            tensors, numbers and texts. It is empty in the client's first round. What is
            written here never leaves the client.
        records: inputs and labels, of clients that hold records.
        support, query: inputs and labels of a few-shot client.
    """

    number: int
    state: dict[str, Any]
    records: Examples | None = None
    support: Examples | None = None
    query: Examples | None = None


class LocalModel:
    """The model in one round, as one thread computes with it.

    Attributes:
        shared: coordinates that clients share with the server, bool [d].
        public_state: what `receive_broadcast` has kept of the server's releases. Do not
            write to it.
    """

    def __init__(
        self,
        theta: np.ndarray,
        *,
        net: Net,
        gradients: Gradients,
        room: torch.Tensor,
        shared: torch.Tensor,
        thresholds: Mapping[str, float],
        public_state: Mapping[str, Any],
        seed: int,
    ) -> None:
        self._theta = theta
        self._net = net
        self._gradients = gradients
        self._room = room
        self._thresholds = thresholds
        self._seed = seed
        self.shared = shared
        self.public_state = public_state

    @functools.cached_property
    def head(self) -> torch.Tensor:
        """Coordinates of the last layer, bool [d]."""
        return self.mask("head")

    @property
    def weights(self) -> torch.Tensor:
        """A copy of the weights that the server sent, float32 [d]."""
        return torch.from_numpy(self._theta.copy())

    def mask(self, *names: str) -> torch.Tensor:
        """Return which coordinates belong to tensors or modules, bool [d]; names as of
        `Net.mask`.
        """
        return torch.from_numpy(self._net.mask(*names))

    def stream(self, purpose: str, *indices: int) -> np.random.Generator:
        """Return a generator of random numbers that follow from the run's seed, the
        purpose and the indices, such as the round and the client. No noise is drawn
        from it.
        """
        return stream(self._seed, f"client-update/{purpose}", *indices)

    def gradient(self, weights: torch.Tensor, examples: Examples) -> torch.Tensor:
        """Return the gradient of the examples' mean loss at `weights`, float32 [d]."""
        inputs, labels = examples
        total = self._gradients.added(weights.numpy(), inputs, labels, self._room)
        return torch.from_numpy((total / len(labels)).astype(np.float32))

    def evaluate(self, weights: torch.Tensor, examples: Examples) -> Measured:
        """Return losses and right answers of the examples at `weights`; `loss` and
        `accuracy` are their means.
        """
        return self._gradients.evaluate(weights.numpy(), *examples)

    def clipped(self, message: torch.Tensor, name: str) -> torch.Tensor:
        """Return a message as a sum of the server counts it: zero where clients share
        nothing, and scaled down to the sum's threshold.

        Args:
            message: float32 [d].
            name: of the sum, whose threshold is constant, or which is not private.

        Raises:
            BenchError: the threshold moves from round to round.
        """
        if name not in self._thresholds:
            raise BenchError(
                f"the threshold of {name} moves from round to round, so that clients"
                " cannot clip to it beforehand: take clipping.kind constant"
            )
        threshold = self._thresholds[name]
        counted = torch.where(self.shared, message, 0.0)
        norm = float(np.sqrt(np.square(counted.numpy(), dtype=np.float64).sum()))
        if threshold < norm < math.inf:
            counted *= threshold / norm
        return counted


def constant_thresholds(sums: Sequence[SumSpec]) -> dict[str, float]:
    """Return the thresholds of sums that have the same one in all rounds; infinity
    where a sum is not clipped.
    """
    thresholds = {}
    for sum_ in sums:
        rule = sum_.clipping
        if rule is None:
            thresholds[sum_.name] = math.inf
        elif not rule.moves and rule.groups == "all" and rule.threshold is not None:
            thresholds[sum_.name] = float(rule.threshold)
    return thresholds
