"""The step of one block of the model along one of several sums of a round."""

from __future__ import annotations

from dpfedbench.lazy import torch
from dpfedbench.parts.optimizers.optimizer import Optimizer, Sgd
from dpfedbench.parts.schedules.schedule import ConstantRate, Schedule
from dpfedbench.parts.server.server_step import State
from dpfedbench.settings.part import Section, setting
from dpfedbench.settings.run import Run


class StepOfSum(Section):
    """A step of an optimiser along a (noised) mean, after which the weights decay as
    torch's optimisers have it.
    """

    rate: float = setting(
        0.025, gt=0, doc="learning rate", paper="0.025 (weights), 0.0003 (architecture)"
    )
    optimizer: Optimizer = setting(
        Sgd(momentum=0.9), doc="what takes the step", paper="sgd 0.9, adam"
    )
    schedule: Schedule = setting(
        ConstantRate(), doc="how the rate moves over the planned rounds", paper="cosine"
    )
    decay: float = setting(
        0.0,
        ge=0,
        doc="weight decay: so much of the weights is added to the mean",
        paper="0.0003",
    )
    cut: float | None = setting(
        None,
        gt=0,
        doc=(
            "of a sum that claims nothing: gradients are cut to this norm, without"
            " noise; null: they are not"
        ),
    )

    def check(self, run: Run) -> None:
        self.schedule.check_rate(self.rate)
        self.optimizer.refuse_untold("client_update")

    def begin(self, weights: torch.Tensor) -> State:
        """The state before the first step."""
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
        """Move the weights [block] in place; arguments as of `ServerStep.step`."""
        gradient = mean.to(weights.dtype).cpu()
        if self.decay:
            gradient = gradient + self.decay * weights
        self.optimizer.step(
            weights, gradient, state, self.schedule.rate(self.rate, index, rounds)
        )
