"""Server steps: each moves the model according to the releases of a round."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import Part, setting
from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.parts.optimizers.optimizer import Adam, Optimizer, State
from dpfedbench.parts.schedules.schedule import ConstantRate, Schedule
from dpsum.private_sum import PlainSum

if TYPE_CHECKING:
    from dpfedbench.models.shared_coordinates import SharedCoordinates


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundReleases:
    """All releases of the server's sums in one round.

    `releases["NAME"]` is the release of the sum of that name: float64, not divided, in
    the shape of the sum (`SumSpec.shape`; without one, [d] as `mean`).

    Attributes:
        mean: release of the server's own sum, divided by its public denominator,
            float64 [d].
        sums: the releases by the names of their sums.
        index: number of the round, from 0.
        rounds: number of planned rounds.
    """

    mean: torch.Tensor
    sums: Mapping[str, torch.Tensor]
    index: int
    rounds: int

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return the release of a sum.

        Raises:
            BenchError: the method takes no sum of this name.
        """
        if name not in self.sums:
            raise BenchError(
                f"server.kind reads the release of {name}, but the sums of this method"
                f" are {', '.join(self.sums)}: add a SumSpec of that name to its sums()"
            )
        return self.sums[name]


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
            releases = RoundReleases(mean=unit, sums={}, index=index, rounds=rounds)
            self.step(model, releases, state)
            moved[index] = -model.numpy()
        return moved

    def begin(self, theta: torch.Tensor) -> State:
        """Return the state before the first step."""
        return {}

    def receive_layout(self, state: State, layout: SharedCoordinates) -> None:
        """Receive the tensors that the coordinates [d] of `weights` and
        `releases.mean` belong to.

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
        self, weights: torch.Tensor, releases: RoundReleases, state: State
    ) -> None:
        """Move the model in place.

        Args:
            weights: weights that clients share, float32 [d].
            releases: all releases of the round.
            state: state of the steps before.
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
        self, weights: torch.Tensor, releases: RoundReleases, state: State
    ) -> None:
        rate = self.schedule.rate(self.rate, releases.index, releases.rounds)
        gradient = releases.mean.to(weights.dtype).cpu()
        self.optimizer.step(weights, gradient, state["optimizer"], rate)


class Average(ServerStep):
    """Mean of the clients' models (FedAvg, McMahan et al. 2017; Adap DP-FL, line 23).

    All clients hold equally many records.
    """

    kind: Literal["average"] = "average"

    def plain_sum(self, dimension: int) -> Any:
        return _Models(dimension)

    def mean(self, released: torch.Tensor, denominator: float) -> torch.Tensor:
        return released

    def step(
        self, weights: torch.Tensor, releases: RoundReleases, state: State
    ) -> None:
        weights.copy_(releases.mean)


class _Models:
    """Models of all clients; the release is their mean in single precision."""

    non_finite = 0
    one_by_one = True

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._models: list[torch.Tensor] = []

    def add(self, contributions: torch.Tensor) -> None:
        self._models.append(contributions.clone())

    def release(self, standard: None = None) -> np.ndarray:
        # torch's mean in single precision has other last bits than numpy's.
        return torch.cat(self._models).mean(dim=0).numpy()
