"""Server steps: each moves the model according to the releases of a round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import Part, setting
from dpfedbench.lazy import np, torch
from dpfedbench.parts.optimizers.optimizer import Adam, Optimizer, State
from dpfedbench.parts.schedules.schedule import ConstantRate, Schedule
from dpsum.private_sum import PlainSum

if TYPE_CHECKING:
    from dpfedbench.models.shared_coordinates import SharedCoordinates


class ServerStep(Part):
    """Base of the server steps."""

    package: ClassVar[str] = "dpfedbench.parts.server"

    @property
    def linear(self) -> bool:
        """Whether the total change of the model is linear in the released means."""
        return False

    def response(self, rounds: int) -> np.ndarray:
        """Return the model's movement after each round for a unit in each mean.

        Returns:
            float64 [after, of]: row `after` is the round after which the movement is
            measured, column `of` the round whose mean has the unit.
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
        """Return the state before the first step."""
        return {}

    def receive_layout(self, state: State, layout: SharedCoordinates) -> None:
        """Receive the tensors that the coordinates [d] of `theta` and `mean` belong to.

        The loop calls this once, after `begin`. An override keeps what it needs in
        `state`: `layout.head`, for instance, is bool [d].
        """

    def plain_sum(self, dimension: int) -> Any:
        """Return the sum of contributions that are neither clipped nor noised.

        It is `PlainSum`, or a class like it.
        """
        return PlainSum(dimension=dimension)

    def mean(self, released: torch.Tensor, denominator: float) -> torch.Tensor:
        """Return the change of the model [d] that follows from a release."""
        return released / denominator

    def set_noise_deviation(self, state: State, deviation: Any) -> None:
        """Receive the standard deviation of the noise in the next mean.

        Args:
            state: the state of the steps, which keeps the deviation.
            deviation: of each coordinate; 0 without noise.
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
            mean: release divided by the public denominator, float64 [d].
            state: state of the steps before.
            index: number of the round, from 0.
            rounds: number of planned rounds.
        """
        raise NotImplementedError


class Step(ServerStep):
    """Step of the server's optimiser, with the (noised) mean as gradient."""

    kind: Literal["step"] = "step"
    rate: float = setting(0.01, gt=0, le=1e6, doc="learning rate, eta_2", paper="0.01")
    optimizer: Optimizer = setting(Adam(), doc="optimiser of the server's step")
    schedule: Schedule = setting(
        ConstantRate(), doc="schedule of the rate over the planned rounds"
    )

    @property
    def linear(self) -> bool:
        return self.optimizer.linear

    def begin(self, theta: torch.Tensor) -> State:
        return {"optimizer": self.optimizer.begin(theta)}

    def set_noise_deviation(self, state: State, deviation: Any) -> None:
        self.optimizer.set_noise_deviation(state["optimizer"], deviation)

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
    """Replacement of the model by the mean of the clients' models (FedAvg, McMahan et
    al. 2017; Adap DP-FL, line 23).

    All clients hold equally many records.
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
    """Models of all clients; the release is their mean in single precision."""

    non_finite = 0
    one_by_one = True

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._models: list[np.ndarray] = []

    def add(self, contributions: np.ndarray) -> None:
        self._models.append(contributions.copy())

    def release(self, standard: None = None) -> np.ndarray:
        # torch's mean in single precision has other last bits than numpy's.
        return (
            torch.cat([torch.from_numpy(models) for models in self._models])
            .mean(dim=0)
            .numpy()
        )
