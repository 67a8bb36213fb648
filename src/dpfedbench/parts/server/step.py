"""A step of an optimiser along the released mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.parts.optimizers.adam import Adam
from dpfedbench.parts.optimizers.optimizer import Optimizer
from dpfedbench.parts.schedules.constant import ConstantRate
from dpfedbench.parts.schedules.schedule import Schedule
from dpfedbench.parts.server.server_step import ServerStep, State
from dpfedbench.settings.part import setting

if TYPE_CHECKING:
    import torch

    from dpfedbench.settings.run import Run


class Step(ServerStep):
    """The (noised) mean is the gradient of a step of the server's optimiser."""

    kind: Literal["step"] = "step"
    rate: float = setting(0.01, gt=0, le=1e6, doc="learning rate, eta_2", paper="0.01")
    optimizer: Optimizer = setting(Adam(), doc="what takes the step")
    schedule: Schedule = setting(ConstantRate(), doc="how the rate moves over the planned rounds")

    @property
    def linear(self) -> bool:
        return self.optimizer.linear

    def check(self, run: Run) -> None:
        self.schedule.check_rate(self.rate)

    def begin(self, theta: torch.Tensor) -> State:
        return {"optimizer": self.optimizer.begin(theta)}

    def told(self, state: State, deviation: float) -> None:
        self.optimizer.told(state["optimizer"], deviation)

    def step(self, theta: torch.Tensor, mean: torch.Tensor, state: State, *, index: int, rounds: int) -> None:
        rate = self.schedule.rate(self.rate, index, rounds)
        self.optimizer.step(theta, mean.to(theta.dtype).cpu(), state["optimizer"], rate)
