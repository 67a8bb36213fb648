"""The MAML client update: a client's query gradient after adapting to its support set.

    theta_0 = theta;  theta_{k+1} = theta_k - rate * grad L_support(theta_k);  contribution = d/dtheta L_query(theta_K)

(DP-FedMeta, Algorithm 1 and eq. 3-5, with the mean of the losses; Finn et al. 2017.) The second-order contribution
is computed backwards through the steps, without a graph across them:

    v_K = grad L_query(theta_K);  v_k = v_{k+1} - rate * Hessian L_support(theta_k) v_{k+1};  contribution = v_0,

and the first-order one is v_K. Nothing is clipped or noised here: a contribution leaves its client only through
`privacy.private_sum`.

Two equal ways to compute it: `FusedMaml`, hand-written passes for one task on one CPU thread, and
`autodiff_contributions`, torch.func over a chunk of tasks, for any device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from dpfedbench.federation.composition import Maml
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.fused_conv4 import FusedConv4, Images
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
        self._support = FusedConv4(net, support, dtype)
        self._query = self._support if query == support else FusedConv4(net, query, dtype)
        kept = maml.inner_steps if maml.order == 2 else 1
        self._steps = [self._support.evaluation() for _ in range(kept)]
        self._final = self._query.evaluation()
        self._thetas: np.ndarray = np.empty((kept + 1, net.dimension), dtype)
        self._gradient: np.ndarray = np.empty(net.dimension, dtype)

    def contribution(
        self,
        theta: np.ndarray,
        support_x: np.ndarray,
        support_y: np.ndarray,
        query_x: np.ndarray,
        query_y: np.ndarray,
        out: np.ndarray,
    ) -> tuple[float, float]:
        """Write the meta-gradient of one task to `out` [d]; return the query loss and accuracy (0 to 1).

        Shapes: theta [d], images [n, H, W, C], labels [n].
        """
        maml, rate = self.maml, out.dtype.type(self.maml.inner_rate)
        support, query = Images(support_x), Images(query_x)
        thetas, gradient = self._thetas, self._gradient
        thetas[0] = theta
        for step in range(maml.inner_steps):
            # First order keeps one evaluation and one set of weights, and overwrites them.
            at = self._steps[step % len(self._steps)]
            here, there = (step, step + 1) if maml.order == 2 else (min(step, 1), 1)
            self._support.loss(thetas[here], support, support_y, at)
            self._support.gradient(support, at, gradient)
            gradient *= rate
            np.subtract(thetas[here], gradient, out=thetas[there])
        loss = self._query.loss(thetas[-1], query, query_y, self._final)
        self._query.gradient(query, self._final, out)
        if maml.order == 2:
            for at in reversed(self._steps):
                self._support.hessian_product(out, support, at, gradient)
                gradient *= rate
                out -= gradient
        return loss


class FusedAdaptation:
    """Adapt Conv-4 to a task's support set and predict its query set, on one CPU thread (meta-test, validation)."""

    def __init__(self, net: Conv4, *, support: int, query: int, dtype: type = np.float32) -> None:
        self._support, self._query = FusedConv4(net, support, dtype), FusedConv4(net, query, dtype)
        self._at, self._final = self._support.evaluation(), self._query.evaluation()
        self._theta: np.ndarray = np.empty(net.dimension, dtype)
        self._gradient: np.ndarray = np.empty(net.dimension, dtype)

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
        support = Images(support_x)
        self._theta[:] = theta
        for _ in range(steps):
            self._support.loss(self._theta, support, support_y, self._at)
            self._support.gradient(support, self._at, self._gradient)
            self._gradient *= self._gradient.dtype.type(rate)
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same contributions by torch.func, vectorised over a chunk of tasks.

    Shapes: theta [d]; images [tasks, n, H, W, C]; labels [tasks, n].

    Returns:
        Contributions [tasks, d], query losses [tasks] and accuracies [tasks].
    """

    def query_loss(start, sx, sy, qx, qy):
        weights = start
        for _ in range(maml.inner_steps):
            step = torch.func.grad(lambda w: functional.cross_entropy(net.forward(w, sx), sy))(weights)
            weights = weights - maml.inner_rate * (step if maml.order == 2 else step.detach())
        logits = net.forward(weights, qx)
        return functional.cross_entropy(logits, qy), (logits.argmax(1) == qy).to(logits.dtype).mean()

    def one(sx, sy, qx, qy):
        gradient, (loss, accuracy) = torch.func.grad_and_value(query_loss, has_aux=True)(theta, sx, sy, qx, qy)
        return gradient, loss, accuracy

    return torch.func.vmap(one)(support_x, support_y, query_x, query_y)
