"""Gradients of a network by the hand-written passes of `dpkernels`.

torch computes what the passes do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfedbench.models.gradients import Gradients, Inputs, Measured
from dpfedbench.models.net import Array, Net, tensor_of
from dpfedbench.models.points import Point

if TYPE_CHECKING:
    from dpkernels import NetworkShape, Passes, TaskGradients
    from dpsum.mechanism import Accumulator


class KernelGradients(Gradients):
    """Gradients of a network by hand-written passes.

    Args:
        net: the network.
        passes: the class of its passes (`kernels.find_passes`).
        network: the network's shapes.
        dtype: type of the weights: float32, or float64 for tests.
    """

    def __init__(
        self,
        net: Net,
        passes: type[Passes],
        network: NetworkShape,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(net, dtype=dtype)
        self.passes = passes(network, self.number)
        self.name = self.passes.name

    def _together(self) -> int:
        return self.passes.records_at_once or super()._together()

    # Records

    def _record_gradients(
        self, theta: Array, x: Array, y: Array, out: Array, block: str
    ) -> np.ndarray:
        if not block:
            losses = self.passes.record_gradients(*_arrays(theta, x, y, out))
            if losses is not None:
                return losses
        return super()._record_gradients(theta, x, y, out, block)

    def _add_record_gradients(
        self, theta: Array, x: Array, y: Array, total: Accumulator, block: str
    ) -> tuple[np.ndarray, np.ndarray]:
        weights, records, labels = _arrays(theta, x, y)
        if block or total.as_rows or not self.passes.adds_records(records):
            return super()._add_record_gradients(theta, x, y, total, block)
        losses = np.empty(len(records))

        def add(limit: float, into: np.ndarray, norms: np.ndarray) -> None:
            losses[:] = self.passes.add_record_gradients(
                weights, records, labels, limit, into, norms
            )

        norms = total.add_by(add, len(records))
        return losses, norms

    def _summed_record_gradients(
        self, theta: Array, x: Array, y: Array, room: Array
    ) -> np.ndarray:
        total = self.passes.sum_record_gradients(*_arrays(theta, x, y))
        if total is None:
            total = np.zeros(self.net.dimension)
            for _, rows in self._pieces(theta, x, y, room, ""):
                total += tensor_of(rows, "cpu").numpy().sum(axis=0)
        return total

    def _evaluate(self, theta: Array, x: Array, y: Array) -> Measured:
        measures = self.passes.evaluate(*_arrays(theta, x, y))
        return (
            super()._evaluate(theta, x, y) if measures is None else Measured(*measures)
        )

    # Tasks

    def _prepared(self, x: Array) -> Any:
        prepared = self.passes.prepare(np.asarray(x))
        return super()._prepared(x) if prepared is None else prepared

    def _task_gradients(
        self,
        theta: Array,
        x: Inputs,
        y: Array,
        out: Array,
        products: bool,
        into: Point | None,
    ) -> Point:
        tasks = None
        if not _is_torchs(x):
            tasks = self.passes.task_gradients(
                np.asarray(theta),
                x.value,
                np.asarray(y),
                np.asarray(out),
                products=products,
                before=into.tasks if isinstance(into, _KernelPoint) else None,
            )
        if tasks is None:
            inputs = self.torch_inputs(x)
            return super()._task_gradients(theta, inputs, y, out, products, into)
        return _KernelPoint(self, tasks, theta, x, y)

    def through_steps(
        self,
        theta: torch.Tensor,
        support: Inputs,
        support_y: Array,
        query: Inputs,
        query_y: Array,
        rates: torch.Tensor,
        *,
        second: bool,
        out: Array,
    ) -> np.ndarray | None:
        if _is_torchs(support):
            return None
        return self.passes.gradients_through_steps(
            theta.numpy(),
            support.value,
            np.asarray(support_y),
            query.value,
            np.asarray(query_y),
            rates.numpy(),
            second=second,
            out=np.asarray(out),
        )

    def _logits(self, theta: Array, x: Inputs) -> Array:
        logits = None
        if not _is_torchs(x):
            logits = self.passes.logits(np.asarray(theta), x.value)
        if logits is None:
            return super()._logits(theta, self.torch_inputs(x))
        return logits

    def torch_inputs(self, x: Inputs) -> Inputs:
        """Return records as torch's computation takes them.

        Passes that leave something to torch prepare records as an array.
        """
        if _is_torchs(x):
            return x
        return Inputs(x.shape, super()._prepared(x.value))


class _KernelPoint(Point):
    """Tasks whose gradients the passes computed.

    torch computes Hessian products that the passes do not.
    """

    def __init__(
        self,
        owner: KernelGradients,
        tasks: TaskGradients,
        theta: Array,
        x: Inputs,
        y: Array,
    ) -> None:
        super().__init__(theta)
        self.tasks = tasks
        self.losses = tasks.losses
        self._owner = owner
        self._at = (theta, x, y)

    def _product(self, direction: Array, out: Array) -> None:
        if self.tasks.has_products:
            self.tasks.product(np.asarray(direction), np.asarray(out))
            return
        theta, x, y = self._at
        inputs = self._owner.torch_inputs(x)
        gradients = np.empty(theta.shape, self._owner.number)
        point = Gradients._task_gradients(
            self._owner, theta, inputs, y, gradients, True, None
        )
        point.product(direction, out)


def _arrays(*arrays: Array) -> list[np.ndarray]:
    """Return arrays of numpy that share the memory of tensors on the CPU."""
    return [np.asarray(array) for array in arrays]


def _is_torchs(x: Inputs) -> bool:
    """Return whether records were prepared for torch: the passes compute no tasks."""
    return isinstance(x.value, torch.Tensor)
