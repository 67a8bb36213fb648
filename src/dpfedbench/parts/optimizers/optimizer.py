"""What every optimiser is: settings, and a step that moves weights along a gradient, coordinate by coordinate.

The steps are torch's own functions where torch has them, so their bits are those of `torch.optim` (tests/parts). Those
classes themselves load torch's compiler when the first of them is made: 4.6 of the 11.8 seconds of processor time in
which a training started (two shared cores).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part

if TYPE_CHECKING:
    import torch

State = dict[str, Any]
"""What an optimiser remembers of former steps; a checkpoint saves it as it is."""


class Optimizer(Part):
    """Base of the optimisers."""

    place: ClassVar[str] = "dpfedbench.parts.optimizers"
    linear: ClassVar[bool] = False
    """Whether what all steps together move is linear in the gradients."""
    reads_noise: ClassVar[bool] = False
    """Whether its steps follow from the deviation of the gradients' noise, so that somebody has to tell it (`told`)."""

    def begin(self, weights: torch.Tensor) -> State:
        """The state before the first step."""
        raise NotImplementedError

    def told(self, state: State, deviation: float) -> None:
        """Learn the deviation of the noise on each coordinate of the next step's gradient; 0 where there is none."""

    def refuse_untold(self, where: str) -> None:
        """Refuse an optimiser that has to be told the noise at a place where nobody tells it.

        Raises:
            BenchError: names the key.
        """
        if self.reads_noise:
            raise BenchError(
                f"{where}.optimizer is {self.kind}, which takes the noise's variance out of its moments, but nothing "
                "tells it the noise there: it is for server, and for client_update.kind local-steps"
            )

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, state: State, rate: float) -> None:
        """Move the weights in place along the gradient, of the same shape and type."""
        raise NotImplementedError
