"""Arguments of `contributions`: the model, and the clients of a cohort.

docs/your-method.md has examples of both.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.training.clients import Examples, Setup
from dpsum.randomness import stream

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Gradients, Measured
    from dpsum.sums import SumSpec

GRADIENTS_AT_ONCE = 8
"""Number of record gradients that are added up at once, so that they stay in the cache.
The bits of a result depend on it.
"""


@dataclasses.dataclass(kw_only=True)
class LocalClient:
    """One client of a cohort, as its update sees it.

    Attributes:
        number: number of the client, from 0.
        state: values that the client keeps from one of its rounds to the next, by name:
            tensors, numbers and texts. It is empty in the client's first round. These
            values never leave the client.
        records: inputs and labels of a client that holds records.
        support, query: inputs and labels of a few-shot client.
    """

    number: int
    state: dict[str, Any]
    records: Examples | None = None
    support: Examples | None = None
    query: Examples | None = None


class LocalModel:
    """Model in one round, as one thread computes with it.

    Attributes:
        public_state: state that `receive_broadcast` keeps of the server's releases. Do
            not write to it.
    """

    def __init__(
        self,
        theta: np.ndarray,
        setup: Setup,
        *,
        gradients: Gradients,
        room: torch.Tensor,
        thresholds: Mapping[str, float],
        public_state: Mapping[str, Any],
        shaped_sums: Collection[str],
    ) -> None:
        self._theta = theta
        self._setup = setup
        self._gradients = gradients
        self._room = room
        self._thresholds = thresholds
        self._shaped_sums = shaped_sums
        self.public_state = public_state

    @functools.cached_property
    def shared(self) -> torch.Tensor:
        """Coordinates that clients share with the server, bool [d]."""
        return torch.from_numpy(self._setup.shared.mask.copy())

    @functools.cached_property
    def head(self) -> torch.Tensor:
        """Coordinates of the last layer, bool [d]."""
        return self.mask("head")

    @property
    def weights(self) -> torch.Tensor:
        """Copy of the weights that the server sent, float32 [d]."""
        return torch.from_numpy(self._theta.copy())

    def mask(self, *names: str) -> torch.Tensor:
        """Return the coordinates of tensors or modules, bool [d]; see `Net.mask`."""
        return torch.from_numpy(self._setup.net.mask(*names))

    def stream(self, purpose: str, *indices: int) -> np.random.Generator:
        """Return a random number generator for a purpose of the client update.

        Its numbers follow from the run's seed, the purpose and the indices, such as the
        round and the client. Privacy noise is not drawn from it.
        """
        seed = self._setup.run.stream_seed
        return stream(seed, f"client-update/{purpose}", *indices)

    def gradient(self, weights: torch.Tensor, examples: Examples) -> torch.Tensor:
        """Return the gradient of the examples' mean loss at `weights`, float32 [d]."""
        inputs, labels = examples
        total = self._gradients.summed_record_gradients(
            weights.numpy(), inputs, labels, self._room
        )
        return torch.from_numpy((total / len(labels)).astype(np.float32))

    def evaluate(self, weights: torch.Tensor, examples: Examples) -> Measured:
        """Return the losses and the right answers of the examples at `weights`.

        `loss` and `accuracy` of the result are their means.
        """
        return self._gradients.evaluate(weights.numpy(), *examples)

    def clipped(self, message: torch.Tensor, name: str) -> torch.Tensor:
        """Return a message as a sum of the server counts it.

        The message is zero at coordinates that clients do not share, and is scaled down
        to the sum's threshold.

        Args:
            message: float32 [d], or in the shape of the sum.
            name: name of the sum, which has a constant threshold or is not private.

        Raises:
            BenchError: the threshold changes from round to round.
        """
        if name not in self._thresholds:
            raise BenchError(
                f"the threshold of {name} changes between rounds, so clients cannot"
                " clip to it in advance: take clipping.kind constant"
            )
        threshold = self._thresholds[name]
        counted = message.clone()
        if name not in self._shaped_sums:
            counted = torch.where(self.shared, message, 0.0)
        norm = float(np.sqrt(np.square(counted.numpy(), dtype=np.float64).sum()))
        if threshold < norm < math.inf:
            counted *= threshold / norm
        return counted


def constant_thresholds(sums: Sequence[SumSpec]) -> dict[str, float]:
    """Return the thresholds of the sums whose threshold is the same in all rounds.

    The threshold of a sum without clipping is infinity.
    """
    thresholds = {}
    for sum_ in sums:
        rule = sum_.clipping
        if rule is None:
            thresholds[sum_.name] = math.inf
        elif not rule.moves and rule.groups == "all" and rule.threshold is not None:
            thresholds[sum_.name] = float(rule.threshold)
    return thresholds
