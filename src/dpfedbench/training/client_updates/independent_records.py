"""Second derivatives of the losses of examples that do not depend on one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpfedbench.lazy import np, torch

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Gradients


def clipped_directions(
    gradients: torch.Tensor,
    direction: torch.Tensor,
    clipped: Sequence[tuple[slice, float]],
) -> torch.Tensor:
    """Return the derivative of clipping at each example's gradient, times a direction.

    The derivative of clip(g) = g min(1, C / |g|) is the identity where |g| <= C, and s
    (I - g g^T / |g|^2) with s = C / |g| elsewhere. It is symmetric. Where groups of
    coordinates are clipped separately, it has one block for each group.

    Args:
        gradients: the examples' gradients g_i [n, d].
        direction: v [d].
        clipped: coordinates of each group, and the group's threshold C.

    Returns:
        The derivative at each g_i, times v: [n, d].
    """
    directions = torch.empty_like(gradients)
    for group, threshold in clipped:
        parts = gradients[:, group]
        along_v = direction[group]
        squares = parts.square().sum(dim=1)
        scale = (threshold / squares.sqrt()).clamp(max=1.0)
        is_clipped = (scale < 1).to(parts.dtype)
        along = is_clipped * (parts @ along_v) / squares.clamp(min=1e-30)
        directions[:, group] = scale[:, None] * (along_v - along[:, None] * parts)
    return directions


class IndependentGradients:
    """Gradients of single examples by the network's own implementation.

    Hessian products treat each example as one task, so that compiled passes compute
    them.

    Args:
        gradients: gradients of a network that does not mix examples.
    """

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self.record_gradients = gradients.record_gradients
        self.add_record_gradients = gradients.add_record_gradients

    def clipped_product(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        directions: torch.Tensor,
        clipped: Sequence[tuple[slice, float]],
    ) -> torch.Tensor:
        """Return (d/dtheta sum_i clip(g_i))^T v for each direction v.

        Arguments and result are those of `CoupledGradients.clipped_product`.
        """
        gradients = self._gradients
        weights = torch.from_numpy(theta).to(gradients.device, gradients.dtype)
        weights = weights.repeat(len(y), 1)
        rows = torch.empty_like(weights)
        point = gradients.task_gradients(
            weights, x[:, None], y[:, None], rows, products=True
        )
        product = torch.empty_like(weights)
        totals = []
        for direction in directions.to(rows.device):
            point.product(clipped_directions(rows, direction, clipped), product)
            totals.append(product.sum(dim=0))
        return torch.stack(totals).cpu()
