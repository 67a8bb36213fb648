"""The server update: a step along the released mean, by one of torch's optimisers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dpfedbench.errors import BenchError

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


class Server:
    """Holds the meta-model and moves it.

    Args:
        theta: initial weights, float32 [d].
        optimizer: "adam" or "sgd".
        rate: its learning rate (eta_2).
        momentum: of sgd, from 0 to below 1: v <- momentum v + g, theta <- theta - rate v (FedAvgM, Hsu et al. 2019).
        final_rate: what the rate falls to over `rounds` steps, on half a period of a cosine; None: it stays.
        rounds: steps planned.
    """

    def __init__(
        self,
        theta: np.ndarray,
        *,
        optimizer: str,
        rate: float,
        momentum: float = 0.0,
        final_rate: float | None = None,
        rounds: int = 0,
    ) -> None:
        if optimizer not in OPTIMIZERS or not rate > 0:
            raise BenchError(f"server needs optimizer adam or sgd and rate > 0, not {optimizer} and {rate}")
        if not 0 <= momentum < 1 or (momentum and optimizer != "sgd"):
            raise BenchError(f"server.momentum is {momentum}: it must be from 0 to below 1, and is for sgd only")
        self._theta = torch.nn.Parameter(torch.from_numpy(theta.copy()))
        more = {"momentum": momentum} if momentum else {}
        self._optimizer = OPTIMIZERS[optimizer]([self._theta], lr=rate, **more)
        self._schedule = (
            None
            if final_rate is None or not rounds
            else torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, T_max=rounds, eta_min=final_rate)
        )

    @property
    def theta(self) -> np.ndarray:
        """The meta-model's weights [d], as of now."""
        return self._theta.detach().numpy()

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self, gradient: torch.Tensor) -> None:
        """Take one step; `gradient` [d] is what was released, divided by the public denominator."""
        self._theta.grad = gradient.to(self._theta.dtype).cpu()
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        return {
            "theta": self._theta.detach().clone(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": None if self._schedule is None else self._schedule.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        with torch.no_grad():
            self._theta.copy_(state["theta"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])
