"""The server update: a step along the released mean, by one of torch's optimisers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from dpfedbench.errors import BenchError
from dpfedbench.federation.optimizers import OPTIMIZERS, Optimizer


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
        self._theta = torch.from_numpy(theta.copy())
        more = {"momentum": momentum} if momentum else {}
        self._optimizer: Optimizer = OPTIMIZERS[optimizer](self._theta, rate=rate, **more)
        self._first, self._last = rate, rate if final_rate is None else final_rate
        self._rounds, self._steps = rounds, 0

    @property
    def theta(self) -> np.ndarray:
        """The meta-model's weights [d], as of now."""
        return self._theta.numpy()

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        if not self._rounds or self._last == self._first:
            return self._first
        return self._last + (self._first - self._last) * (1 + math.cos(math.pi * self._steps / self._rounds)) / 2

    def step(self, gradient: torch.Tensor) -> None:
        """Take one step; `gradient` [d] is what was released, divided by the public denominator."""
        self._optimizer.rate = self.rate
        self._optimizer.step(gradient.to(self._theta.dtype).cpu())
        self._steps += 1

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        return {
            "theta": self._theta.clone(),
            "optimizer": self._optimizer.state(),
            "steps": self._steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._theta.copy_(state["theta"])
        self._optimizer.restore(state["optimizer"])
        self._steps = state["steps"]
