"""In place of a run's rounds where nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dpfedbench.evaluation.held_out import NoMeasures
from dpfedbench.method import Method
from dpfedbench.models.gradients import Choice
from dpfedbench.parts.client_updates.client_update import Clients, Row
from dpfedbench.processes import Processes
from dpsum.budget import Budget


class Untrained:
    """A model of which nothing is trained."""

    planned, columns, measures = 0, (), NoMeasures()

    def __init__(
        self, net: Any, gradients: Choice, run: Method, processes: Processes | None = None, *, weights: np.ndarray
    ) -> None:
        self.net, self.gradients, self.threads, self.processes = net, gradients, 1, processes or Processes()
        self.theta = torch.from_numpy(weights.copy())
        self.clients = Clients()
        self.budget, self.non_finite = Budget(), 0

    def round(self, index: int) -> tuple[Row, int]:
        """None is planned."""
        raise RuntimeError("an untrained model has no rounds")

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing."""
