"""Gradient descent, with or without momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.parts.optimizers.optimizer import Optimizer, State
from dpfedbench.settings.part import setting

if TYPE_CHECKING:
    import torch


class Sgd(Optimizer):
    """Gradient descent; with momentum v <- momentum v + g, weights <- weights - rate v (FedAvgM, Hsu et al. 2019)."""

    kind: Literal["sgd"] = "sgd"
    linear: ClassVar[bool] = True
    momentum: float = setting(0.0, ge=0, lt=1, doc="of the steps; 0: none")

    def begin(self, weights: torch.Tensor) -> State:
        return {"velocity": None}

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, state: State, rate: float) -> None:
        from torch.optim.sgd import sgd

        velocity = [state["velocity"]]
        sgd(
            [weights], [gradient], velocity, foreach=False, weight_decay=0.0, momentum=self.momentum, lr=rate,
            dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip
        state["velocity"] = velocity[0]
