"""What every optimiser is: settings, and a step that moves weights along a gradient, coordinate by coordinate.

The steps are torch's own functions where torch has them, so their bits are those of `torch.optim` (tests/parts). Those
classes themselves load torch's compiler when the first of them is made: 4.6 of the 11.8 seconds of processor time in
which a training started (two shared cores).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

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

    def begin(self, weights: torch.Tensor) -> State:
        """The state before the first step."""
        raise NotImplementedError

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, state: State, rate: float) -> None:
        """Move the weights in place along the gradient, of the same shape and type."""
        raise NotImplementedError
