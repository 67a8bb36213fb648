"""Step of one block of the model along one of several sums of a round."""

from __future__ import annotations

from typing import ClassVar

from dpfedbench.config.part import Section, setting
from dpfedbench.config.rules import Rule
from dpfedbench.lazy import torch
from dpfedbench.parts.optimizers.optimizer import (
    OPTIMIZER_WITHOUT_NOISE,
    Optimizer,
    Sgd,
    State,
)
from dpfedbench.parts.schedules.schedule import ConstantRate, Schedule


class StepOfSum(Section):
    """Step of an optimiser along a (noised) mean, with weight decay as in torch's
    optimisers.
    """

    rate: float = setting(
        0.025, gt=0, doc="learning rate", paper="0.025 (weights), 0.0003 (architecture)"
    )
    optimizer: Optimizer = setting(
        Sgd(momentum=0.9), doc="optimiser of the step", paper="sgd 0.9, adam"
    )
    schedule: Schedule = setting(
        ConstantRate(),
        doc="schedule of the rate over the planned rounds",
        paper="cosine",
    )
    decay: float = setting(
        0.0,
        ge=0,
        doc="weight decay: the weights times this are added to the mean",
        paper="0.0003",
    )
    cut: float | None = setting(
        None,
        gt=0,
        doc=(
            "norm to which gradients are clipped, without noise, in a sum that claims"
            " no privacy; null: no clipping"
        ),
    )

    rules: ClassVar[tuple[Rule, ...]] = (OPTIMIZER_WITHOUT_NOISE,)

    def begin(self, weights: torch.Tensor) -> State:
        """Return the state before the first step."""
        return self.optimizer.begin(weights)

    def step(
        self,
        weights: torch.Tensor,
        mean: torch.Tensor,
        state: State,
        *,
        index: int,
        rounds: int,
    ) -> None:
        """Move the weights [block] in place; arguments as in `ServerStep.step`."""
        gradient = mean.to(weights.dtype).cpu()
        if self.decay:
            gradient = gradient + self.decay * weights
        self.optimizer.step(
            weights, gradient, state, self.schedule.rate(self.rate, index, rounds)
        )
