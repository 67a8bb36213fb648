"""The MAML client update: a client's query gradient after adapting to its support set.

    theta_0 = theta;  theta_{k+1} = theta_k - rate * grad L_support(theta_k);  contribution = d/dtheta L_query(theta_K)

(DP-FedMeta, Algorithm 1 and eq. 3-5, with the mean of the losses; Finn et al. 2017.) The second-order contribution
is computed backwards through the steps, without a graph across them:

    v_K = grad L_query(theta_K);  v_k = v_{k+1} - rate * Hessian L_support(theta_k) v_{k+1};  contribution = v_0,

and the first-order one is v_K. MAML++ (Antoniou et al. 2019) may learn a rate for each step and tensor, whose gradient
is minus the product of v_{k+1} and the support gradient over that tensor, and count the query loss after each step,
whose gradients there then join v_k. Nothing is clipped or noised here: a contribution leaves its client only through
`privacy.private_sum`.

Two equal ways to compute it: `FusedMaml`, hand-written passes for one task on one CPU thread, and
`autodiff_contributions`, torch.func over a chunk of tasks, for any device.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch.nn import functional

from dpfedbench.federation.composition import Maml
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.conv4_passes import Images
from dpfedbench.models.fused_conv4 import FusedConv4
from dpfedbench.models.record_conv4 import RecordConv4


class FusedMaml:
    """MAML on Conv-4 for one task at a time on one CPU thread; memory is that of one task, whatever the cohort.

    Args:
        net: the network's shapes.
        maml: the update.
        support, query: images in a task's support and query set.
        dtype: numpy float32, or float64 for tests.

    Not safe for use by two threads at once.
    """

    def __init__(self, net: Conv4, maml: Maml, *, support: int, query: int, dtype: type = np.float32) -> None:
        self.maml = maml
        self._net = net
        self._support = FusedConv4(net, support, dtype)
        self._query = self._support if query == support else FusedConv4(net, query, dtype)
        kept = maml.inner_steps if maml.order == 2 else 1
        self._steps = [self._support.evaluation() for _ in range(kept)]
        self._final = self._query.evaluation()
        self._thetas: np.ndarray = np.empty((kept + 1, net.weights), dtype)
        self._scaled: np.ndarray = np.empty(net.weights, dtype)
        self._product: np.ndarray = np.empty(net.weights, dtype)
        # Of each step where the rates are learnt, else of the last.
        self._gradients: np.ndarray = np.empty((maml.inner_steps if net.step_rates else 1, net.weights), dtype)
        self._along: np.ndarray = np.empty((maml.inner_steps if maml.multi_step_rounds else 0, net.weights), dtype)

    def contribution(
        self,
        theta: np.ndarray,
        support_x: np.ndarray,
        support_y: np.ndarray,
        query_x: np.ndarray,
        query_y: np.ndarray,
        out: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> tuple[float, float]:
        """Write the meta-gradient of one task to `out` [d]; return the query loss and accuracy (0 to 1).

        Shapes: theta [d], images [n, H, W, C], labels [n], weights of the query loss after each step [inner_steps].
        """
        maml, net = self.maml, self._net
        rates = net.rates(theta, maml.inner_rate)
        support, query = Images(support_x), Images(query_x)
        thetas = self._thetas
        thetas[0] = theta[: net.weights]
        for step in range(maml.inner_steps):
            # First order keeps one evaluation and one set of weights, and overwrites them.
            at, gradient = self._steps[step % len(self._steps)], self._gradients[step % len(self._gradients)]
            here, there = (step, step + 1) if maml.order == 2 else (min(step, 1), 1)
            self._support.loss(thetas[here], support, support_y, at)
            self._support.gradient(support, at, gradient)
            np.multiply(gradient, rates[step % len(rates)], out=self._scaled)
            np.subtract(thetas[here], self._scaled, out=thetas[there])
            if weights is not None and step + 1 < maml.inner_steps:
                self._query.loss(thetas[there], query, query_y, self._final)
                self._query.gradient(query, self._final, self._along[step])
        found = self._query.loss(thetas[-1], query, query_y, self._final)
        adjoint = out[: net.weights]
        self._query.gradient(query, self._final, adjoint)
        if weights is not None:
            adjoint *= out.dtype.type(weights[-1])
        if maml.order == 2 or net.step_rates:
            self._backward(adjoint, out[net.weights :], rates, support, weights)
        elif weights is not None:
            adjoint += weights[:-1].astype(out.dtype) @ self._along[:-1]
        return found

    def _backward(
        self,
        adjoint: np.ndarray,
        rates_gradient: np.ndarray,
        rates: np.ndarray,
        support: Images,
        weights: np.ndarray | None,
    ) -> None:
        """Carry the gradient at the adapted weights back through the steps, and take that of the rates on the way."""
        net = self._net
        starts = np.concatenate([[0], np.cumsum(net.sizes)[:-1]])
        by_step = rates_gradient.reshape(net.step_rates, len(starts))
        for step in reversed(range(self.maml.inner_steps)):
            if net.step_rates:
                by_step[step] = -np.add.reduceat(adjoint * self._gradients[step], starts)
            if self.maml.order == 2:
                np.multiply(adjoint, rates[step % len(rates)], out=self._scaled)
                self._support.hessian_product(self._scaled, support, self._steps[step], self._product)
                adjoint -= self._product
            if weights is not None and step:
                adjoint += adjoint.dtype.type(weights[step - 1]) * self._along[step - 1]


class FusedAdaptation:
    """Adapt Conv-4 to a task's support set and predict its query set, on one CPU thread (meta-test, validation)."""

    def __init__(self, net: Conv4, *, support: int, query: int, dtype: type = np.float32) -> None:
        self._net = net
        self._support, self._query = FusedConv4(net, support, dtype), FusedConv4(net, query, dtype)
        self._at, self._final = self._support.evaluation(), self._query.evaluation()
        self._theta: np.ndarray = np.empty(net.weights, dtype)
        self._gradient: np.ndarray = np.empty(net.weights, dtype)

    def logits(
        self,
        theta: np.ndarray,
        support_x: np.ndarray,
        support_y: np.ndarray,
        query_x: np.ndarray,
        *,
        steps: int,
        rate: float,
    ) -> np.ndarray:
        """Logits [n, ways] of the query images after `steps` gradient steps of size `rate` from `theta` [d].

        Where the model has rates of its own, they count in the place of `rate`; the last for all steps beyond them.
        """
        support = Images(support_x)
        rates = self._net.rates(theta, rate)
        self._theta[:] = theta[: self._net.weights]
        for step in range(steps):
            self._support.loss(self._theta, support, support_y, self._at)
            self._support.gradient(support, self._at, self._gradient)
            self._gradient *= rates[min(step, len(rates) - 1)]
            self._theta -= self._gradient
        return self._query.logits(self._theta, Images(query_x), self._final)


class RecordAdaptation:
    """The same for a network that is normalised within each record; the gradient is the mean of the examples' own."""

    def __init__(self, net: Conv4, *, support: int) -> None:
        self._passes = RecordConv4(net)
        self._rows: np.ndarray = np.empty((support, net.dimension), np.float32)

    def logits(
        self,
        theta: np.ndarray,
        support_x: np.ndarray,
        support_y: np.ndarray,
        query_x: np.ndarray,
        *,
        steps: int,
        rate: float,
    ) -> np.ndarray:
        """Logits [n, ways] of the query images after `steps` gradient steps of size `rate` from `theta` [d]."""
        adapted = theta.astype(np.float32, copy=True)
        for _ in range(steps):
            self._passes.gradients(adapted, support_x, support_y, self._rows)
            adapted -= np.float32(rate) * self._rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        return self._passes.logits(adapted, query_x)


def make_adaptation(net: Conv4, *, support: int, query: int) -> FusedAdaptation | RecordAdaptation:
    """The adaptation for a network's normalisation; for one thread."""
    if net.normalisation == "record":
        return RecordAdaptation(net, support=support)
    return FusedAdaptation(net, support=support, query=query)


def autodiff_contributions(
    net: Conv4,
    maml: Maml,
    theta: torch.Tensor,
    support_x: torch.Tensor,
    support_y: torch.Tensor,
    query_x: torch.Tensor,
    query_y: torch.Tensor,
    weights: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same contributions by torch.func, vectorised over a chunk of tasks.

    Shapes: theta [d]; images [tasks, n, H, W, C]; labels [tasks, n].

    Returns:
        Contributions [tasks, d], query losses [tasks] and accuracies [tasks].
    """

    body = dataclasses.replace(net, step_rates=0)
    counted = np.eye(maml.inner_steps)[-1] if weights is None else weights
    sizes = torch.tensor(net.sizes, device=theta.device)

    def query_loss(start, sx, sy, qx, qy):
        here, rates = start[: net.weights], start[net.weights :].view(net.step_rates, len(sizes))
        total = here.new_zeros(())
        for k in range(maml.inner_steps):
            step = torch.func.grad(lambda w: functional.cross_entropy(body.forward(w, sx), sy))(here)
            rate = maml.inner_rate
            if net.step_rates:
                rate = torch.repeat_interleave(rates[k], sizes, output_size=net.weights)
            here = here - rate * (step if maml.order == 2 else step.detach())
            if counted[k]:
                total = total + counted[k] * functional.cross_entropy(body.forward(here, qx), qy)
        logits = body.forward(here, qx)
        found = functional.cross_entropy(logits, qy), (logits.argmax(1) == qy).to(logits.dtype).mean()
        return total, found

    def one(sx, sy, qx, qy):
        gradient, (_, (loss, accuracy)) = torch.func.grad_and_value(query_loss, has_aux=True)(theta, sx, sy, qx, qy)
        return gradient, loss, accuracy

    return torch.func.vmap(one)(support_x, support_y, query_x, query_y)
