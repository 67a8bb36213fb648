"""MAML's gradient: the gradient of the query loss after adaptation to the support set.

    theta_0 = theta;  theta_{k+1} = theta_k - rate * grad L_support(theta_k)
    gradient = d/dtheta L_query(theta_K)

(Finn et al. 2017; DP-FedMeta, Algorithm 1 and eq. 3-5, with the mean of the losses.)
The second-order gradient is computed backwards through the steps, without a graph
across them:

    v_K = grad L_query(theta_K)
    v_k = v_{k+1} - Hessian L_support(theta_k) (rate * v_{k+1});  gradient = v_0,

and the first-order gradient is v_K. MAML++ (Antoniou et al. 2019) may learn a rate for
each step and tensor. The rate's gradient is minus the inner product of v_{k+1} and the
support gradient over that tensor. MAML++ may also count the query loss after each step;
the gradient of that loss is then added to v_k. Tensors that do not adapt have rate zero
(ANIL, Raghu et al. 2020: all but the head). This module neither clips nor adds noise: a
gradient leaves its client only through `privacy.private_sum`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dpfedbench.models.gradients import Gradients, Inputs
from dpfedbench.models.net import Array, Net, tensor_of
from dpfedbench.models.points import Point


class _Rates:
    """Rates of the inner steps, learnt if the network has the extra tensor "rates".

    Args:
        net: the network.
        adapted: names of the tensors that the steps move. None: all.
    """

    def __init__(self, net: Net, adapted: Sequence[str] | None) -> None:
        unknown = set(adapted or ()) - set(net.shapes)
        if unknown:
            raise ValueError(
                f"no tensors {sorted(unknown)} to adapt: there are"
                f" {', '.join(net.shapes)}"
            )
        self._net = net
        self._adapted = adapted
        self.learnt = len(net.extra.get("rates", ()))

    def by_weight(self, theta: torch.Tensor, rate: float) -> torch.Tensor:
        """Return the rate of each weight in each step [steps, w].

        It is [1, 1] if all weights and steps have the same rate.
        """
        net = self._net
        if self.learnt:
            by_tensor = net.tensors(theta)["rates"]
        elif self._adapted is None:
            return theta.new_full((1, 1), rate)
        else:
            by_tensor = theta.new_full((1, len(net.sizes)), rate)
        if self._adapted is not None:
            by_tensor = by_tensor * theta.new_tensor(
                [float(name in self._adapted) for name in net.tensor_names]
            )
        sizes = torch.tensor(net.sizes, device=theta.device)
        return torch.repeat_interleave(by_tensor, sizes, dim=1, output_size=net.weights)


class MetaGradient:
    """MAML's gradient of T tasks at once.

    Args:
        gradients: the network's gradients, for use by one thread.
        steps: inner steps K >= 1.
        rate: rate of the inner steps, unless the network has its own rates
            (`Net.with_rates`).
        order: 2 differentiates through the steps. 1 takes the query gradient at the
            adapted weights (first-order MAML).
        adapted: names of the tensors that the inner steps move; None: all.
    """

    def __init__(
        self,
        gradients: Gradients,
        *,
        steps: int,
        rate: float,
        order: int = 2,
        adapted: Sequence[str] | None = None,
    ) -> None:
        self.gradients = gradients
        self.net = gradients.net
        self.steps = steps
        self.rate = rate
        self.order = order
        self._rates = _Rates(self.net, adapted)
        if self._rates.learnt not in (0, steps):
            raise ValueError(
                f"{self._rates.learnt} learnt rates for each tensor do not fit"
                f" {steps} steps"
            )
        self._points: list[Point | None] = [None] * (steps if order == 2 else 1)
        self._final: Point | None = None
        self._room: dict[str, torch.Tensor] = {}

    def _rows(self, name: str, rows: int, tasks: int) -> torch.Tensor:
        """Return a buffer [rows, T, w] that is kept for the next tasks."""
        shape = (rows, tasks, self.net.weights)
        if name not in self._room or self._room[name].shape != shape:
            self._room[name] = torch.empty(
                shape, dtype=self.gradients.dtype, device=self.gradients.device
            )
        return self._room[name]

    def contribution(
        self,
        theta: Array,
        support_x: Array,
        support_y: Array,
        query_x: Array,
        query_y: Array,
        out: Array,
        weights: np.ndarray | None = None,
    ) -> np.ndarray:
        """Write the gradient of each of T tasks to `out` [T, d].

        Args:
            theta: weights [d].
            support_x, support_y: records [T, n, ...] and labels [T, n] that the tasks
                adapt to.
            query_x, query_y: records and labels of the differentiated loss, [T, m, ...]
                and [T, m].
            out: array of the weights' type.
            weights: weight of the query loss after each step [K]. None: only the last
                step counts.

        Returns:
            Losses on the query sets, float64 [T].
        """
        gradients = self.gradients
        net = self.net
        steps = self.steps
        tasks = len(support_x)
        out = torch.as_tensor(out)
        if tuple(out.shape) != (tasks, net.dimension):
            raise ValueError(
                f"the gradients of {tasks} tasks need [{tasks}, {net.dimension}], not"
                f" {list(out.shape)}"
            )
        start = tensor_of(theta, gradients.device).to(gradients.dtype)
        rates = self._rates.by_weight(start, self.rate)
        support = gradients.prepared(support_x)
        query = gradients.prepared(query_x)
        points = len(self._points)
        learnt = bool(self._rates.learnt)
        if weights is None and not learnt:
            losses = gradients.through_steps(
                start,
                support,
                support_y,
                query,
                query_y,
                rates.expand(steps, -1),
                second=self.order == 2,
                out=out,
            )
            if losses is not None:
                return losses
        thetas = self._rows("thetas", points + 1, tasks)
        scaled = self._rows("scaled", 1, tasks)[0]
        # Keep the slope of each step if rates are learnt, otherwise only the last.
        slopes = self._rows("slopes", steps if learnt else 1, tasks)
        along = self._rows("along", 0 if weights is None else steps - 1, tasks)
        thetas[0] = start[: net.weights]
        for step in range(steps):
            # First order needs one point and one set of weights, and overwrites them.
            here, there = (step, step + 1) if self.order == 2 else (min(step, 1), 1)
            slope = slopes[step % len(slopes)]
            self._points[step % points] = gradients.task_gradients(
                thetas[here],
                support,
                support_y,
                slope,
                products=self.order == 2,
                into=self._points[step % points],
            )
            torch.mul(slope, rates[step % len(rates)], out=scaled)
            torch.sub(thetas[here], scaled, out=thetas[there])
            if weights is not None and step + 1 < steps:
                self._query_point(thetas[there], query, query_y, along[step])
        adjoint = out[:, : net.weights]
        final = self._query_point(thetas[-1], query, query_y, adjoint)
        if weights is not None:
            adjoint *= float(weights[-1])
        if self.order == 2 or learnt:
            self._backward(
                adjoint, out[:, net.weights :], rates, slopes, along, weights
            )
        elif weights is not None:
            adjoint += _weighted(weights[:-1], along)
        return final.losses

    def _query_point(
        self, theta: torch.Tensor, x: Inputs, y: Array, out: torch.Tensor
    ) -> Point:
        self._final = self.gradients.task_gradients(theta, x, y, out, into=self._final)
        return self._final

    def _backward(
        self,
        adjoint: torch.Tensor,
        rates_gradient: torch.Tensor,
        rates: torch.Tensor,
        slopes: torch.Tensor,
        along: torch.Tensor,
        weights: np.ndarray | None,
    ) -> None:
        """Carry the gradient back through the steps.

        It starts at the adapted weights, and computes the rates' gradient on the way.
        """
        scaled = self._rows("scaled", 1, len(adjoint))[0]
        product = self._rows("product", 1, len(adjoint))[0]
        by_step = (
            rates_gradient.unflatten(1, (self._rates.learnt, -1))
            if self._rates.learnt
            else None
        )
        for step in reversed(range(self.steps)):
            if by_step is not None:
                by_step[:, step] = -_by_tensor(adjoint * slopes[step], self.net.sizes)
            if self.order == 2:
                point = self._points[step]
                assert point is not None
                torch.mul(adjoint, rates[step % len(rates)], out=scaled)
                point.product(scaled, product)
                adjoint -= product
            if weights is not None and step:
                adjoint += float(weights[step - 1]) * along[step - 1]


class Adaptation:
    """Adapts a model to tasks and predicts their query sets (meta-test, validation).

    Args:
        gradients: the network's gradients, for use by one thread.
        adapted: names of the tensors that the steps move; None: all.
    """

    def __init__(
        self, gradients: Gradients, *, adapted: Sequence[str] | None = None
    ) -> None:
        self.gradients = gradients
        self._rates = _Rates(gradients.net, adapted)

    def adapt(
        self, theta: Array, x: Array, y: Array, *, steps: int, rate: float
    ) -> torch.Tensor:
        """Return the weights [T, w] of T tasks after gradient steps from `theta` [d].

        The step size is `rate`, or the model's own rates if it has them. Steps beyond
        its last rate use that last rate.
        """
        start = tensor_of(theta, self.gradients.device).to(self.gradients.dtype)
        rates = self._rates.by_weight(start, rate)
        adapted = start[: self.gradients.net.weights].repeat(len(x), 1)
        gradient = torch.empty_like(adapted)
        support = self.gradients.prepared(x)
        point: Point | None = None
        for step in range(steps):
            point = self.gradients.task_gradients(
                adapted, support, y, gradient, into=point
            )
            gradient *= rates[min(step, len(rates) - 1)]
            adapted -= gradient
        return adapted

    def logits(
        self,
        theta: Array,
        support_x: Array,
        support_y: Array,
        query_x: Array,
        *,
        steps: int,
        rate: float,
    ) -> np.ndarray:
        """Return the logits [T, m, outputs] of the query sets after `adapt`."""
        adapted = self.adapt(theta, support_x, support_y, steps=steps, rate=rate)
        return np.asarray(self.gradients.logits(adapted, query_x))


def _weighted(weights: np.ndarray, rows: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum [T, w] of rows [K, T, w]."""
    if rows.is_cuda:
        return torch.tensordot(torch.from_numpy(weights).to(rows), rows, dims=1)
    # One product per task: its last bits may depend on the number of columns.
    values = weights.astype(rows.numpy().dtype)
    return torch.from_numpy(
        np.stack([values @ task for task in rows.numpy().transpose(1, 0, 2)])
    )


def _by_tensor(rows: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Return the sums [T, tensors] of rows [T, w] over each tensor."""
    if rows.is_cuda:
        return torch.stack(
            [part.sum(dim=1) for part in rows.split(sizes, dim=1)], dim=1
        )
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return torch.from_numpy(
        np.stack([np.add.reduceat(row, starts) for row in rows.numpy()])
    )
