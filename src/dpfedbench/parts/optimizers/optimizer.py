"""Optimisers: settings, and a step that moves weights along a gradient, coordinate by
coordinate.

The steps are torch's own functions where torch has them, so that their bits are those
of `torch.optim` (tests/parts). The classes of `torch.optim` are not used: creating the
first one loads torch's compiler, which takes several seconds.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from dpfedbench.config.part import Part, setting
from dpfedbench.config.rules import Rule
from dpfedbench.lazy import torch
from dpsum.lazy import Lazy

_adam, _sgd = (
    Lazy("torch.optim.adam"),
    Lazy("torch.optim.sgd"),
)  # torch.optim itself does not name these modules

State = dict[str, Any]
"""State that an optimiser keeps between steps; a checkpoint saves it unchanged."""


class Optimizer(Part):
    """Base of the optimisers."""

    package: ClassVar[str] = "dpfedbench.parts.optimizers"
    linear: ClassVar[bool] = False
    """Whether the total change of the weights is linear in the gradients."""
    reads_noise: ClassVar[bool] = False
    """Whether its steps depend on the standard deviation of the gradients' noise, which
    the caller then has to pass to `set_noise_deviation`.
    """

    def begin(self, weights: torch.Tensor) -> State:
        """Return the state before the first step."""
        raise NotImplementedError

    def set_noise_deviation(self, state: State, deviation: Any) -> None:
        """Receive the standard deviation of the noise in the next step's gradient.

        Args:
            state: the state of the optimiser, which keeps the deviation.
            deviation: of each coordinate; 0 without noise.
        """

    def step(
        self, weights: torch.Tensor, gradient: torch.Tensor, state: State, rate: float
    ) -> None:
        """Move the weights in place along the gradient of the same shape and type."""
        raise NotImplementedError


OPTIMIZER_WITHOUT_NOISE = Rule(
    lambda update, run: update.optimizer.reads_noise,
    "client_update.optimizer is {part.optimizer.kind}, which subtracts the noise"
    " variance from its moments, but the variance is unknown there: use it only for"
    " server, or for client_update.kind local-steps",
)
"""Rule of client updates whose optimiser does not learn the deviation of the noise."""


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015) with torch's beta2 0.999 and epsilon 1e-8."""

    kind: Literal["adam"] = "adam"
    beta1: float = setting(
        0.9,
        ge=0,
        lt=1,
        doc="decay of the mean of gradients; 0: no momentum",
        paper="0 (Nichol et al. 2018)",
    )

    def begin(self, weights: torch.Tensor) -> State:
        return {
            "steps": torch.tensor(0.0),
            "mean": torch.zeros_like(weights),
            "square": torch.zeros_like(weights),
        }

    def step(
        self, weights: torch.Tensor, gradient: torch.Tensor, state: State, rate: float
    ) -> None:
        _adam.adam(
            [weights],
            [gradient],
            [state["mean"]],
            [state["square"]],
            [],
            [state["steps"]],
            foreach=False,
            amsgrad=False,
            beta1=self.beta1,
            beta2=0.999,
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class Sgd(Optimizer):
    """Gradient descent, with optional momentum (FedAvgM, Hsu et al. 2019).

    The step is v <- momentum v + g, weights <- weights - rate v.
    """

    kind: Literal["sgd"] = "sgd"
    linear = True
    momentum: float = setting(0.0, ge=0, lt=1, doc="momentum of the steps; 0: none")

    def begin(self, weights: torch.Tensor) -> State:
        return {"velocity": None}

    def step(
        self, weights: torch.Tensor, gradient: torch.Tensor, state: State, rate: float
    ) -> None:
        velocity = [state["velocity"]]
        _sgd.sgd(
            [weights],
            [gradient],
            velocity,
            foreach=False,
            weight_decay=0.0,
            momentum=self.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        state["velocity"] = velocity[0]
