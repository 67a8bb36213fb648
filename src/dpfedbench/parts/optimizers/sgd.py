"""Gradient descent, with or without momentum."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpfedbench.lazy import torch
from dpfedbench.parts.optimizers.optimizer import Optimizer, State
from dpfedbench.settings.part import setting
from dpsum.lazy import Lazy

_steps = Lazy("torch.optim.sgd")  # torch.optim itself does not name that module


class Sgd(Optimizer):
    """Gradient descent; with momentum v <- momentum v + g, weights <- weights - rate v (FedAvgM, Hsu et al. 2019)."""

    kind: Literal["sgd"] = "sgd"
    linear: ClassVar[bool] = True
    momentum: float = setting(0.0, ge=0, lt=1, doc="of the steps; 0: none")

    def begin(self, weights: torch.Tensor) -> State:
        return {"velocity": None}

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, state: State, rate: float) -> None:
        velocity = [state["velocity"]]
        _steps.sgd(
            [weights], [gradient], velocity, foreach=False, weight_decay=0.0, momentum=self.momentum, lr=rate,
            dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip
        state["velocity"] = velocity[0]
