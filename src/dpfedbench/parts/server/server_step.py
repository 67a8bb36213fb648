"""What every server step is: it moves the model by what a round released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from dpfedbench.settings.part import Part
from dpsum.private_sum import PlainSum

if TYPE_CHECKING:
    import torch

State = dict[str, Any]
"""What a server remembers of former steps; a checkpoint saves it as it is."""


class ServerStep(Part):
    """Base of the server steps."""

    place: ClassVar[str] = "dpfedbench.parts.server"

    @property
    def linear(self) -> bool:
        """Whether what all steps together move is linear in the released means."""
        return False

    def begin(self, theta: torch.Tensor) -> State:
        """The state before the first step."""
        return {}

    def plain_sum(self, dimension: int) -> Any:
        """What takes a round's contributions where they are not clipped and noised: `PlainSum`, or the like."""
        return PlainSum(dimension=dimension)

    def mean(self, released: torch.Tensor, denominator: float) -> torch.Tensor:
        """What the model is moved by [d], of what was released."""
        return released / denominator

    def told(self, state: State, deviation: float) -> None:
        """Learn the deviation of the noise on each coordinate of the next mean; 0 where there is none."""

    def step(self, theta: torch.Tensor, mean: torch.Tensor, state: State, *, index: int, rounds: int) -> None:
        """Move the model in place.

        Args:
            theta: weights, float32 [d].
            mean: what was released over the public denominator, float64 [d].
            state: of the steps before.
            index: the round, from 0.
            rounds: planned.
        """
        raise NotImplementedError
