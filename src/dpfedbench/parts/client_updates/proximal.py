"""FedProx (Li et al., Federated Optimization in Heterogeneous Networks, 2020): local
steps held near the model.

A client k takes its steps on h_k(w; w_t) = F_k(w) + mu/2 ||w - w_t||^2 (their eq. 2),
where w_t is the model that it got. So each step's gradient is that of its records plus
mu (w - w_t). What a client sends is one vector, as before, and the server clips it: the
guarantee, its unit and its account are those of the model difference, whatever mu is.
"""

from __future__ import annotations

from typing import Literal

from dpfedbench.lazy import torch
from dpfedbench.parts.client_updates.model_difference import ModelDifference
from dpfedbench.settings.part import setting


class Proximal(ModelDifference):
    """The model difference of steps with a proximal term; with mu = 0 it is the model
    difference itself.
    """

    kind: Literal["proximal"] = "proximal"  # type: ignore[assignment]  # each kind has its name

    mu: float = setting(
        0.1,
        ge=0,
        le=1e6,
        doc="of the proximal term mu/2 ||w - w_t||^2",
        paper="0.001 to 1",
    )

    def local_gradient(
        self, gradient: torch.Tensor, model: torch.Tensor, start: torch.Tensor
    ) -> torch.Tensor:
        return gradient.add_(model - start, alpha=self.mu)
