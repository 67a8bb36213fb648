"""The average of the clients' models (FedAvg, McMahan et al. 2017; Adap DP-FL, line 23)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.parts.server.server_step import ServerStep, State

if TYPE_CHECKING:
    import torch


class Average(ServerStep):
    """The model becomes the mean of the clients' models: each client holds as many records."""

    kind: Literal["average"] = "average"

    def plain_sum(self, dimension: int) -> Any:
        return _Rows()

    def mean(self, released: torch.Tensor, denominator: float) -> torch.Tensor:
        return released

    def step(self, theta: torch.Tensor, mean: torch.Tensor, state: State, *, index: int, rounds: int) -> None:
        theta.copy_(mean)


class _Rows:
    """The models of all clients; their mean in single precision is what is released."""

    non_finite = 0

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []

    def add(self, contributions: torch.Tensor) -> None:
        self._rows.append(contributions.clone())

    def release(self, generator: None = None) -> torch.Tensor:
        import torch

        return torch.cat(self._rows).mean(dim=0)
