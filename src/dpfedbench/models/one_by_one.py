"""Gradients of tasks one after another by torch, the fastest way on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from dpfedbench.models.gradients import Point
from dpfedbench.models.net import Array, Net, tensor_of


class OneByOne(Point):
    """Tasks that are differentiated one after another.

    Their graphs are kept if Hessian products are needed.

    Args:
        net: the network.
        module: the module on the device, which is copied for each task.
        theta, x, y, out, products: as for `Gradients.task_gradients`.
        before: a point of the same number of tasks that is no longer needed.
    """

    def __init__(
        self,
        net: Net,
        module: nn.Module,
        theta: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        out: Array,
        products: bool,
        before: Point | None,
    ) -> None:
        super().__init__(theta)
        self._net = net
        self._gradients = list[tuple[torch.Tensor, ...]]()
        self._rows: torch.Tensor
        self._calls: list[tuple[nn.Module, list[nn.Parameter]]]
        if isinstance(before, OneByOne) and before._rows.shape == theta.shape:
            self._rows = before._rows
            self._calls = before._calls
            # Free the graphs' memory for reuse.
            before._gradients.clear()
        else:
            # Each task has a module whose parameters are views of its row. Copying the
            # weights into one module at each call takes a twentieth of Conv-4's time.
            self._rows = torch.empty_like(theta)
            self._calls = []
            for row in self._rows:
                call = copy.deepcopy(module).requires_grad_(True)
                parameters = list(call.parameters())
                for parameter, part in zip(parameters, self._cut(row), strict=True):
                    parameter.data = part
                self._calls.append((call, parameters))
        self._rows.copy_(theta)
        losses = list[float]()
        accuracies = list[float]()
        for (call, parameters_of), records, labels, row in zip(
            self._calls, x, y, out, strict=True
        ):
            with torch.enable_grad():
                record_losses, right, of = call("measures", records, labels)
                loss = record_losses.mean()
                gradients = _derivatives(
                    [loss], None, parameters_of, create_graph=products
                )
            _write(gradients, row)
            losses.append(float(loss.detach()))
            accuracies.append(float(right.sum() / of.sum()))
            if products:
                self._gradients.append(gradients)
        self.losses = np.array(losses)
        self.accuracies = np.array(accuracies)

    def _cut(self, row: Array) -> list[torch.Tensor]:
        """Return views of a flat vector [w] in the shapes of the module's tensors."""
        return list(self._net.tensors(torch.as_tensor(row)).values())

    def _product(self, direction: Array, out: Array) -> None:
        for i, (gradients, (_, parameters)) in enumerate(
            zip(self._gradients, self._calls, strict=True)
        ):
            # If the loss does not depend on a tensor, or only linearly, the tensor's
            # gradient depends on no weights.
            pairs = zip(
                gradients,
                self._cut(tensor_of(direction[i], self._rows.device)),
                strict=True,
            )
            moving = [pair for pair in pairs if pair[0].requires_grad]
            out[i] = 0.0
            if not moving:
                continue
            outputs, along = ([pair[k] for pair in moving] for k in range(2))
            _write(_derivatives(outputs, along, parameters, retain_graph=True), out[i])


def _write(parts: Sequence[torch.Tensor], row: Array) -> None:
    """Write a module's tensors to a row, one after another."""
    torch.cat([part.detach().reshape(-1) for part in parts], out=torch.as_tensor(row))


def _derivatives(
    outputs: Sequence[torch.Tensor],
    along: Sequence[torch.Tensor] | None,
    own: Sequence[nn.Parameter],
    **how: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the derivatives of outputs, along a direction, by parameters.

    The derivative by a parameter that the outputs do not depend on is zero.
    """
    return torch.autograd.grad(
        outputs, own, along, allow_unused=True, materialize_grads=True, **how
    )
