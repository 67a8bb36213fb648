"""MAML of clients whose records are coupled: steps along private sums, without the
guarantee for a record.

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
from typing import TYPE_CHECKING, Any

from dpfedbench.lazy import np, torch
from dpfedbench.training.client_updates.client_update import Setup
from dpfedbench.training.client_updates.independent_records import (
    IndependentGradients,
    clipped_directions,
)
from dpfedbench.training.client_updates.maml_by_record import (
    QUERY,
    SUPPORT,
    MamlByRecord,
    SupportSteps,
)
from dpfedbench.training.client_updates.within_task import Client

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Gradients, Measured
    from dpfedbench.training.client_updates.within_task import Examples


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
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Return the weights [d], the gradients [n, d] and the measures [n] each."""
        weights = torch.tensor(
            theta, dtype=self._like.dtype, device=self._device, requires_grad=True
        )
        losses, right, of = self._net.apply(
            "measures",
            weights,
            self._net.inputs(x, self._like),
            torch.as_tensor(y, device=self._device),
            call=self._call,
        )
        rows = [
            torch.autograd.grad(loss, weights, create_graph=graph, retain_graph=True)[0]
            for loss in losses
        ]
        return weights, torch.stack(rows), [losses.detach(), right, of]

    def record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: torch.Tensor
    ) -> Measured:
        """Write each example's gradient to `out` [n, d].

        See `Gradients.record_gradients`.
        """
        from dpfedbench.models.gradients import Measured

        _, rows, measures = self._rows(theta, x, y, graph=False)
        out.copy_(rows)
        return Measured(*(measure.cpu().numpy().astype(float) for measure in measures))

    def add_record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, total: Any
    ) -> tuple[Measured, np.ndarray]:
        """Add each example's gradient to a sum.

        See `Gradients.add_record_gradients`.
        """
        rows = torch.empty((len(y), len(theta)), dtype=self._like.dtype)
        measured = self.record_gradients(theta, x, y, rows)
        return measured, total.add(rows)

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


class CoupledRecords(MamlByRecord):
    """MAML of first or second order whose clients take private support steps, along
    gradients of examples that depend on one another.
    """

    def __init__(self, update: SupportSteps, setup: Setup) -> None:
        super().__init__(update, setup)
        mixed = setup.net.mixes_records
        self._workers = setup.workers(
            CoupledGradients if mixed else IndependentGradients
        )

    def client(
        self,
        worker: Any,
        theta: np.ndarray,
        client: int,
        index: int,
        held: Any,
        out: torch.Tensor,
    ) -> Sequence[float]:
        support, query = held
        sums = Client(self, index, client)
        update = self._update
        adapted = theta.copy()
        path = list[np.ndarray]()
        for step in range(update.inner_steps):
            path.append(adapted.copy())
            mean, _ = sums.mean(SUPPORT, adapted, support, worker, step)
            rate = np.float32(update.inner_rate)
            adapted[self._moved] -= rate * mean[self._moved]
        rows, measures = self._query_rows(sums, adapted, query, worker)
        if update.order == 2:
            rows = self._through_steps(rows, path, support, worker)
        out.copy_(rows)
        return measures.mean(axis=0).tolist()

    def _query_rows(
        self, sums: Client, adapted: np.ndarray, query: Examples, worker: Any
    ) -> tuple[torch.Tensor, np.ndarray]:
        """Return the query gradients [each, d] and the query set's measures [m, 2]."""
        if not self._by_server:
            mean, measures = sums.mean(QUERY, adapted, query, worker)
            return torch.from_numpy(mean)[None], measures
        rows = torch.empty((len(query[1]), len(adapted)))
        measured = worker.record_gradients(adapted, *query, rows)
        measures = np.stack([measured.losses, measured.right / measured.of], axis=1)
        return rows, measures

    def _through_steps(
        self,
        rows: torch.Tensor,
        path: Sequence[np.ndarray],
        support: Examples,
        worker: Any,
    ) -> torch.Tensor:
        """Return the rows [m, d] carried back through the support steps."""
        mechanism = self.mechanisms[SUPPORT]
        threshold = mechanism.states[0]["threshold"]
        clipped = [(slice(0, self.dimension), threshold)]
        if mechanism.groups is not None:
            thresholds = mechanism.groups.thresholds(threshold)
            clipped = list(zip(mechanism.groups.slices, thresholds, strict=True))
        share = self._update.inner_rate / float(mechanism.sampler["cohort"])
        for theta in reversed(path):
            moved = torch.zeros_like(rows)
            moved[:, self._moved] = rows[:, self._moved]
            rows = rows - share * worker.clipped_product(
                theta, *support, moved, clipped
            )
        return rows
