"""Server steps: each moves the model by what a round released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.lazy import np, torch
from dpfedbench.parts.optimizers.optimizer import Adam, Optimizer
from dpfedbench.parts.schedules.schedule import ConstantRate, Schedule
from dpfedbench.settings.part import Part, setting
from dpfedbench.settings.run import Run
from dpsum.private_sum import PlainSum

if TYPE_CHECKING:
    from dpfedbench.models.shared_coordinates import SharedCoordinates

State = dict[str, Any]
"""What a server remembers of former steps; a checkpoint saves it as it is."""


class ServerStep(Part):
    """Base of the server steps."""

    package: ClassVar[str] = "dpfedbench.parts.server"

    @property
    def linear(self) -> bool:
        """Whether what all steps together move is linear in the released means."""
        return False

    def response(self, rounds: int) -> np.ndarray:
        """Return how far the model has moved after each round for a unit in the mean of
        each, float64 [after, of].
        """
        model = torch.zeros(rounds, dtype=torch.float64)
        state = self.begin(model)
        moved = np.zeros((rounds, rounds))
        for index in range(rounds):
            unit = torch.zeros(rounds, dtype=torch.float64)
            unit[index] = 1.0
            self.step(model, unit, state, index=index, rounds=rounds)
            moved[index] = -model.numpy()
        return moved

    def begin(self, theta: torch.Tensor) -> State:
        """The state before the first step."""
        return {}

    def receive_layout(self, state: State, layout: SharedCoordinates) -> None:
        """Learn which tensors the coordinates [d] of `theta` and `mean` belong to, once
        after `begin`: `layout.head`, for instance, is bool [d]. Keep it in `state`.
        """

    def plain_sum(self, dimension: int) -> Any:
        """Return the sum that takes a round's contributions where they are not clipped
        and noised: `PlainSum`, or the like.
        """
        return PlainSum(dimension=dimension)

    def mean(self, released: torch.Tensor, denominator: float) -> torch.Tensor:
        """Return the change of the model [d] that follows from a release."""
        return released / denominator

    def told(self, state: State, deviation: Any) -> None:
        """Learn the deviation of the noise on each coordinate of the next mean; 0 where
        there is none.
        """

    def step(
        self,
        theta: torch.Tensor,
        mean: torch.Tensor,
        state: State,
        *,
        index: int,
        rounds: int,
    ) -> None:
        """Move the model in place.

        Args:
            theta: weights that clients share, float32 [d].
            mean: what was released over the public denominator, float64 [d].
            state: of the steps before.
            index: the round, from 0.
            rounds: planned.
        """
        raise NotImplementedError


class Step(ServerStep):
    """The (noised) mean is the gradient of a step of the server's optimiser."""

    kind: Literal["step"] = "step"
    rate: float = setting(0.01, gt=0, le=1e6, doc="learning rate, eta_2", paper="0.01")
    optimizer: Optimizer = setting(Adam(), doc="what takes the step")
    schedule: Schedule = setting(
        ConstantRate(), doc="how the rate moves over the planned rounds"
    )

    @property
    def linear(self) -> bool:
        return self.optimizer.linear

    def check(self, run: Run) -> None:
        self.schedule.check_rate(self.rate)

    def begin(self, theta: torch.Tensor) -> State:
        return {"optimizer": self.optimizer.begin(theta)}

    def told(self, state: State, deviation: Any) -> None:
        self.optimizer.told(state["optimizer"], deviation)

    def step(
        self,
        theta: torch.Tensor,
        mean: torch.Tensor,
        state: State,
        *,
        index: int,
        rounds: int,
    ) -> None:
        rate = self.schedule.rate(self.rate, index, rounds)
        self.optimizer.step(theta, mean.to(theta.dtype).cpu(), state["optimizer"], rate)


class Average(ServerStep):
    """The model becomes the mean of the clients' models (FedAvg, McMahan et al. 2017;
    Adap DP-FL, line 23).

    Each client holds as many records.
    """

    kind: Literal["average"] = "average"

    def plain_sum(self, dimension: int) -> Any:
        return _Models(dimension)

    def mean(self, released: torch.Tensor, denominator: float) -> torch.Tensor:
        return released

    def step(
        self,
        theta: torch.Tensor,
        mean: torch.Tensor,
        state: State,
        *,
        index: int,
        rounds: int,
    ) -> None:
        theta.copy_(mean)


class _Models:
    """The models of all clients; their mean in single precision is what is released."""

    non_finite = 0
    one_by_one = True

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._models: list[np.ndarray] = []

    def add(self, contributions: np.ndarray) -> None:
        self._models.append(contributions.copy())

    def release_with(self, standard: None = None) -> np.ndarray:
        # By torch, whose mean in single precision has other last bits than numpy's.
        return (
            torch.cat([torch.from_numpy(models) for models in self._models])
            .mean(dim=0)
            .numpy()
        )
