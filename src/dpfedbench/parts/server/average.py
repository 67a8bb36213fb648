"""The average of the clients' models (FedAvg, McMahan et al. 2017; Adap DP-FL, line 23)."""

from __future__ import annotations

from typing import Any, Literal

from dpfedbench.lazy import np, torch
from dpfedbench.parts.server.server_step import ServerStep, State


class Average(ServerStep):
    """The model becomes the mean of the clients' models: each client holds as many records."""

    kind: Literal["average"] = "average"

    def plain_sum(self, dimension: int) -> Any:
        return _Rows(dimension)

    def mean(self, released: torch.Tensor, denominator: float) -> torch.Tensor:
        return released

    def step(self, theta: torch.Tensor, mean: torch.Tensor, state: State, *, index: int, rounds: int) -> None:
        theta.copy_(mean)


class _Rows:
    """The models of all clients; their mean in single precision is what is released."""

    non_finite, one_by_one = 0, True

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._rows: list[np.ndarray] = []

    def add(self, contributions: np.ndarray) -> None:
        self._rows.append(contributions.copy())

    def release(self, generator: None = None) -> np.ndarray:
        # By torch, whose mean in single precision has other last bits than numpy's.
        return torch.cat([torch.from_numpy(rows) for rows in self._rows]).mean(dim=0).numpy()
