"""Derivatives of MAML along private sums, without the guarantee for a record.

    theta_{k+1} = theta_k - rate / n * (sum_i clip(g_i(theta_k)) + noise)
    v_K = grad L_query(theta_K)
    v_k = v_{k+1} - rate / n * (d/dtheta sum_i clip(g_i(theta_k)))^T v_{k+1}

g_i is the gradient of the i-th support example's loss. With batch normalisation g_i
depends on the other examples. At second order, v_0 carries the raw support examples
into the client's message. Neither case has a proven epsilon for a record, so that only
a run that repeats released code may use it (`Breach`).

The derivative of clip(g) = g min(1, C / |g|) is, for a clipped g, the derivative of the
direction alone: s (I - g g^T / |g|^2) H with s = C / |g| and H the Hessian of the
example's loss. Where groups of coordinates are clipped separately, each group has a
block s (I - g g^T / |g|^2), with the group's C and its part of g.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpfedbench.lazy import np, torch

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Gradients
    from dpsum.mechanism import Accumulator


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


def clipped_product(
    gradients: Gradients,
    theta: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    directions: torch.Tensor,
    clipped: Sequence[tuple[slice, float]],
) -> torch.Tensor:
    """Return (d/dtheta sum_i clip(g_i))^T v for each direction v.

    Hessian products treat each example as one task, so that compiled passes compute
    them.

    Args:
        gradients: gradients of a network that does not mix examples.
        theta, x, y, directions, clipped: see `CoupledGradients.clipped_product`.
    """
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


class CoupledGradients:
    """Gradients of each example's loss within its batch, computed by torch.

    Args:
        gradients: gradients of the network; their device and type are used.
    """

    def __init__(self, gradients: Gradients) -> None:
        self._net = gradients.net
        self._device = gradients.device
        self._call = gradients.net.callable(gradients.device, gradients.dtype)
        self._like = torch.empty(0, device=gradients.device, dtype=gradients.dtype)

    def _rows(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, *, graph: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the weights [d], the gradients [n, d] and the losses [n]."""
        weights = torch.tensor(
            theta, dtype=self._like.dtype, device=self._device, requires_grad=True
        )
        losses = self._net.apply(
            "losses",
            weights,
            self._net.inputs(x, self._like),
            torch.as_tensor(y, device=self._device),
            call=self._call,
        )
        rows = [
            torch.autograd.grad(loss, weights, create_graph=graph, retain_graph=True)[0]
            for loss in losses
        ]
        return weights, torch.stack(rows), losses.detach()

    def record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: torch.Tensor
    ) -> np.ndarray:
        """Write each example's gradient to `out` [n, d], and return their losses [n].

        See `Gradients.record_gradients`.
        """
        _, rows, losses = self._rows(theta, x, y, graph=False)
        out.copy_(rows)
        return losses.double().cpu().numpy()

    def add_record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, total: Accumulator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add each example's gradient to a sum.

        See `Gradients.add_record_gradients`.
        """
        rows = torch.empty((len(y), len(theta)), dtype=self._like.dtype)
        return self.record_gradients(theta, x, y, rows), total.add(rows)

    def clipped_product(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        directions: torch.Tensor,
        clipped: Sequence[tuple[slice, float]],
    ) -> torch.Tensor:
        """Return (d/dtheta sum_i clip(g_i))^T v for each direction v.

        Args:
            theta: weights [d].
            x, y: examples [n, ...] and labels [n].
            directions: [m, d].
            clipped: the coordinates of each group and its threshold C.

        Returns:
            The products [m, d].
        """
        weights, rows, _ = self._rows(theta, x, y, graph=True)
        fixed = rows.detach()
        products = []
        for direction in directions.to(fixed.device):
            inner = clipped_directions(fixed, direction, clipped)
            (product,) = torch.autograd.grad(
                rows, weights, grad_outputs=inner, retain_graph=True
            )
            products.append(product)
        return torch.stack(products).cpu()
