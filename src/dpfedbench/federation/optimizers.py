"""Torch's optimisers on one flat vector, or on vectors one above the other: what they do is coordinate by coordinate.

The steps are torch's own functions, so their bits are those of `torch.optim.Adam` and `torch.optim.SGD`
(tests/federation). These classes themselves load torch's compiler when the first of them is made: 4.6 of the 11.8
seconds of processor time in which a training started (two shared cores).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class Optimizer(Protocol):
    """Moves weights; `rate` may be set from step to step."""

    weights: torch.Tensor
    rate: float

    def step(self, gradient: torch.Tensor) -> None:
        """Move the weights in place along the gradient, of the same shape and type."""

    def state(self) -> dict[str, Any]:
        """What it remembers of former steps."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""


class Adam:
    """Adam (Kingma and Ba 2015) with torch's betas 0.9 and 0.999 and epsilon 1e-8."""

    def __init__(self, weights: torch.Tensor, *, rate: float) -> None:
        self.weights, self.rate = weights, rate
        self._steps = torch.tensor(0.0)
        self._mean, self._square = torch.zeros_like(weights), torch.zeros_like(weights)

    def step(self, gradient: torch.Tensor) -> None:
        """Move the weights."""
        adam(
            [self.weights], [gradient], [self._mean], [self._square], [], [self._steps], foreach=False, amsgrad=False,
            beta1=0.9, beta2=0.999, lr=self.rate, weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Steps taken, and the moments."""
        return {"steps": self._steps.clone(), "mean": self._mean.clone(), "square": self._square.clone()}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._steps, self._mean, self._square = (state[name].clone() for name in ("steps", "mean", "square"))


class Sgd:
    """Gradient descent; with momentum v <- momentum v + g, weights <- weights - rate v."""

    def __init__(self, weights: torch.Tensor, *, rate: float, momentum: float = 0.0) -> None:
        self.weights, self.rate, self._momentum = weights, rate, momentum
        self._velocity: list[torch.Tensor | None] = [None]

    def step(self, gradient: torch.Tensor) -> None:
        """Move the weights."""
        sgd(
            [self.weights], [gradient], self._velocity, foreach=False, weight_decay=0.0, momentum=self._momentum,
            lr=self.rate, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """The velocity."""
        velocity = self._velocity[0]
        return {"velocity": None if velocity is None else velocity.clone()}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        velocity = state["velocity"]
        self._velocity = [None if velocity is None else velocity.clone()]


OPTIMIZERS = {"adam": Adam, "sgd": Sgd}
