"""Interface of the hand-written passes: a network's shapes, vectors and arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpkernels.networks import NetworkShape


class Measures(NamedTuple):
    """Losses, right answers and numbers of answers of n records, float64 [n] each."""

    losses: np.ndarray
    right: np.ndarray
    answers: np.ndarray


class TaskGradients:
    """Tasks at their parameters, after their gradients were computed.

    Attributes:
        losses: mean loss of each task, float64 [T].
        has_products: whether `product` can be called. The parameters must not be
            written to before.
    """

    losses: np.ndarray
    has_products = False

    def product(self, direction: np.ndarray, out: np.ndarray) -> None:
        """Write each task's Hessian times its direction [T, d] to `out` [T, d]."""
        raise NotImplementedError("these passes compute no Hessian products")


class Passes:
    """Gradients of one network on a CPU, for use by one thread.

    Parameters theta and all outputs have the type `dtype`, unless another one is
    stated; their rows are contiguous. Records x are uint8 or float in [0, 1] (images),
    or int64 (tokens); labels y are int64. A method that these passes do not compute
    returns None and writes nothing.

    Args:
        network: the network's shapes, for which `fits` is true.
        dtype: float32 or float64.

    Attributes:
        name: name of the passes.
        records_at_once: number of records whose gradients are computed at once; None:
            any number.
    """

    name: str
    records_at_once: int | None = None

    def __init__(self, network: NetworkShape, dtype: Any = np.float32) -> None:
        self.network = network
        self.dtype = np.dtype(dtype)

    @staticmethod
    def fits(network: Any, dtype: np.dtype) -> bool:
        """Return whether these passes compute a network of their class."""
        raise NotImplementedError

    @staticmethod
    def tasks_at_once(by_steps: bool) -> int:
        """Return the number of tasks that a thread should compute in one call.

        Args:
            by_steps: whether the caller computes each inner step by a call of its own.
        """
        return 1

    # Records

    def record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray
    ) -> np.ndarray | None:
        """Write each record's gradient to `out` [n, d].

        Args:
            theta: parameters [d].
            x, y: records [n, ...] and labels [n, ...].
            out: array that receives the gradients.

        Returns:
            The records' losses, float64 [n]; or None.

        Raises:
            ValueError: the sizes or types do not fit together.
        """
        self._check_records(theta, x, y)
        check_array(out, (len(x), self.network.dimension), self.dtype)
        return self._record_gradients(theta, x, y, out)

    def adds_records(self, x: np.ndarray) -> bool:
        """Return whether `add_record_gradients` takes records of this type."""
        return False

    def add_record_gradients(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        limit: float,
        total: np.ndarray,
        norms: np.ndarray,
    ) -> np.ndarray:
        """Add the records' gradients, each clipped to an L2 norm of at most `limit`.

        A gradient g counts as g min(1, limit / |g|). One that is not finite counts as
        zero. Call it only if `adds_records` is true.

        Args:
            theta, x, y: as for `record_gradients`.
            limit: the clipping threshold; infinity: gradients are not clipped.
            total: float64 [d], to which the clipped gradients are added.
            norms: float64 [n], set to the norms before clipping, or to an upper bound
                that exceeds them by rounding only.

        Returns:
            The records' losses, float64 [n].

        Raises:
            ValueError: the sizes or types do not fit together.
        """
        self._check_records(theta, x, y)
        check_array(total, (self.network.dimension,), np.float64)
        check_array(norms, (len(x),), np.float64)
        return self._add_record_gradients(theta, x, y, limit, total, norms)

    def sum_record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray
    ) -> np.ndarray | None:
        """Return the sum of the records' gradients, float64 [d]; or None."""
        self._check_records(theta, x, y)
        return self._sum_record_gradients(theta, x, y)

    def evaluate(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray
    ) -> Measures | None:
        """Return losses and right answers of records, without gradients; or None."""
        self._check_records(theta, x, y)
        return self._evaluate(theta, x, y)

    # Tasks

    def prepare(self, x: np.ndarray) -> Any:
        """Prepare tasks' records [T, n, ...] for several calls of the methods below.

        None: the passes compute no tasks. Passes that compute not all of them prepare
        records as an array.
        """
        return None

    def task_gradients(
        self,
        theta: np.ndarray,
        x: Any,
        y: np.ndarray,
        out: np.ndarray,
        *,
        products: bool = False,
        before: TaskGradients | None = None,
    ) -> TaskGradients | None:
        """Compute mean loss and gradient of T tasks.

        Args:
            theta: parameters of each task [T, d].
            x: records [T, n, ...] as `prepare` returns them.
            y: labels [T, n, ...].
            out: array [T, d] that receives each task's gradient.
            products: whether Hessian products will be needed.
            before: a result that is no longer needed; its memory is used again.

        Raises:
            ValueError: the sizes or types do not fit together.
        """
        self._check_tasks(theta, x, y)
        check_array(out, theta.shape, self.dtype)
        return self._task_gradients(theta, x, y, out, products, before)

    def gradients_through_steps(
        self,
        theta: np.ndarray,
        support: Any,
        support_y: np.ndarray,
        query: Any,
        query_y: np.ndarray,
        rates: np.ndarray,
        *,
        second: bool,
        out: np.ndarray,
    ) -> np.ndarray | None:
        """Compute MAML's gradients (Finn et al. 2017) of T tasks in one call.

        Args:
            theta: parameters of all tasks [d].
            support, support_y, query, query_y: records and labels, as for
                `task_gradients`.
            rates: rate of each step, one for all parameters [K, 1] or one for each [K,
                d].
            second: whether the gradient is carried back through the steps.
            out: array [T, d] that receives each task's gradient.

        Returns:
            Mean loss of each query set, float64 [T]; or None.

        Raises:
            ValueError: the sizes or types do not fit together.
        """
        return None

    def logits(self, theta: np.ndarray, x: Any) -> np.ndarray | None:
        """Return logits [T, n, outputs] at parameters [T, d]; or None."""
        return None

    # Computations of a network

    def _record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray
    ) -> np.ndarray | None:
        return None

    def _add_record_gradients(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        limit: float,
        total: np.ndarray,
        norms: np.ndarray,
    ) -> np.ndarray:
        raise NotImplementedError

    def _sum_record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray
    ) -> np.ndarray | None:
        return None

    def _evaluate(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray
    ) -> Measures | None:
        return None

    def _task_gradients(
        self,
        theta: np.ndarray,
        x: Any,
        y: np.ndarray,
        out: np.ndarray,
        products: bool,
        before: TaskGradients | None,
    ) -> TaskGradients | None:
        return None

    # Checks of sizes: the compiled loops have none

    def _check_records(self, theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
        check_array(theta, (self.network.dimension,), self.dtype)
        if x.shape[1:] != self.network.input_shape:
            raise ValueError(
                f"records must be [n, {self.network.input_shape}], not {list(x.shape)}"
            )
        self._check_labels(y, (len(x),))

    def _check_tasks(self, theta: np.ndarray, x: Any, y: np.ndarray) -> None:
        """Check the sizes of T tasks, whose records may be prepared."""
        tasks = len(theta)
        check_array(theta, (tasks, self.network.dimension), self.dtype)
        count, size = self._size_of_tasks(x)
        if count != tasks:
            raise ValueError(f"{count} tasks need as many parameters, not {tasks}")
        self._check_labels(y, (count, size))

    def _size_of_tasks(self, x: Any) -> tuple[int, int]:
        """Return numbers of tasks and of records of each task."""
        if x.shape[2:] != self.network.input_shape:
            raise ValueError(
                f"records must be [T, n, {self.network.input_shape}], not"
                f" {list(x.shape)}"
            )
        return x.shape[0], x.shape[1]

    def _check_labels(self, y: np.ndarray, records: tuple[int, ...]) -> None:
        _check_type(y, records + self.network.label_shape, np.int64)
        if y.size and not 0 <= y.min() <= y.max() < self.network.outputs:
            raise ValueError(f"labels must be 0 to {self.network.outputs - 1}")


def check_array(array: np.ndarray, shape: tuple[int, ...], dtype: Any) -> None:
    """Check shape and type of an array, and that its rows are contiguous.

    Raises:
        ValueError: the array has another shape, type or order.
    """
    _check_type(array, shape, dtype)
    has_rows = bool(shape) and shape[-1] > 1 and min(shape) > 0
    if has_rows and array.strides[-1] != array.itemsize:
        raise ValueError("expected an array with contiguous rows")


def _check_type(array: np.ndarray, shape: tuple[int, ...], dtype: Any) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(
            f"expected {np.dtype(dtype)} {list(shape)}, not {array.dtype}"
            f" {list(array.shape)}"
        )


def plain(array: np.ndarray) -> np.ndarray:
    """Return a contiguous, writable array.

    numba would compile again for another kind of array.
    """
    flags = array.flags
    return array if flags.carray else np.require(array, requirements=("C", "A", "W"))


def aligned_zeros(size: int, dtype: Any = np.float32) -> np.ndarray:
    """Return zeros [size] that begin at a cache line."""
    length = size * np.dtype(dtype).itemsize
    room = np.zeros(length + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + length].view(dtype)
