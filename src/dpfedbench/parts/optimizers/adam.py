"""Adam (Kingma and Ba 2015)."""

from __future__ import annotations

from typing import Literal

from dpfedbench.lazy import torch
from dpfedbench.parts.optimizers.optimizer import Optimizer, State
from dpsum.lazy import Lazy

_steps = Lazy("torch.optim.adam")  # torch.optim itself does not name that module


class Adam(Optimizer):
    """Adam with torch's betas 0.9 and 0.999 and epsilon 1e-8."""

    kind: Literal["adam"] = "adam"

    def begin(self, weights: torch.Tensor) -> State:
        return {"steps": torch.tensor(0.0), "mean": torch.zeros_like(weights), "square": torch.zeros_like(weights)}

    def step(self, weights: torch.Tensor, gradient: torch.Tensor, state: State, rate: float) -> None:
        _steps.adam(
            [weights], [gradient], [state["mean"]], [state["square"]], [], [state["steps"]], foreach=False,
            amsgrad=False, beta1=0.9, beta2=0.999, lr=rate, weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip
