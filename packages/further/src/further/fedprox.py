"""FedProx (Li et al., Federated Optimization in Heterogeneous Networks, 2020).

A client takes its steps on h_k(w; w_t) = F_k(w) + mu/2 ||w - w_t||^2 (their eq. 2):
each step's gradient is that of its records plus mu (w - w_t). It sends one vector, so
that the guarantee of DP-FedAvg holds for every mu. `fedavg` and `dp-fedavg` take this
update.
"""

from __future__ import annotations

from typing import Literal

from dpfedbench.config.part import setting
from dpfedbench.lazy import torch
from dpfedbench.training.client_updates.model_difference import ModelDifference


class Proximal(ModelDifference):
    """FedProx: the model difference of steps with a proximal term.

    With mu = 0 it is the plain model difference.
    """

    kind: Literal["proximal"] = "proximal"  # type: ignore[assignment]  # each kind has its name

    mu: float = setting(
        0.1,
        ge=0,
        le=1e6,
        doc="weight of the proximal term mu/2 ||w - w_t||^2",
        paper="0.001 to 1",
    )

    def local_gradient(
        self, gradient: torch.Tensor, model: torch.Tensor, start: torch.Tensor
    ) -> torch.Tensor:
        return gradient.add_(model - start, alpha=self.mu)
