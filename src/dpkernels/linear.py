"""Linear head: norms and clipped sums of records' gradients without rows.

A record's gradient is the outer product r (x, 1)^T with residuals r = p - y. Its norm
is |r| sqrt(|x|^2 + 1), and the clipped sum is (w r)^T (x, 1) with each record's own
weight w. For a head without a bias, both 1s are left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from dpfedbench.models.gradients import Gradients, Measured, Total
from dpfedbench.models.net import Array, Net

_PIECE = 16  # number of records whose squares stay in the cache


class LinearHeadGradients(Gradients):
    """Gradients of a `LinearHead`, in double precision.

    The arguments are those of `Gradients`.
    """

    name = "linear-head"

    @staticmethod
    def fits(net: Net, dtype: torch.dtype) -> bool:
        """Return true: any linear head has this pass."""
        return True

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._room = np.empty((0, math.prod(self.net.input_shape)))

    @property
    def _bias(self) -> bool:
        return "linear.bias" in self.net.tensor_names

    def _add_record_gradients(
        self, theta: Array, x: Array, y: Array, total: Total
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = self._rows(x)
        labels = np.asarray(y)
        residuals, measured = self._residuals(
            np.asarray(theta, np.float64), rows, labels
        )

        def add(limit: float, into: np.ndarray, norms: np.ndarray) -> None:
            squares = [
                (rows[i : i + _PIECE] ** 2).sum(axis=1)
                for i in range(0, len(rows), _PIECE)
            ]
            norms[:] = np.linalg.norm(residuals, axis=1) * np.sqrt(
                np.concatenate([*squares, []]) + self._bias
            )
            finite = np.isfinite(norms)
            if finite.all():
                finite = slice(None)  # no copy
            with np.errstate(divide="ignore"):
                weights = np.minimum(limit / norms[finite], 1.0)
            weighted = weights[:, None] * residuals[finite]
            constants = [weighted.sum(axis=0)] if self._bias else []
            into += np.concatenate([(weighted.T @ rows[finite]).ravel(), *constants])

        return measured.losses, total.add_by(add, len(rows))

    def summed_record_gradients(
        self, theta: Array, x: Array, y: Array, room: Array
    ) -> np.ndarray:
        rows = self._rows(x)
        residuals, _ = self._residuals(
            np.asarray(theta, np.float64), rows, np.asarray(y)
        )
        constants = [residuals.sum(axis=0)] if self._bias else []
        return np.concatenate([(residuals.T @ rows).ravel(), *constants])

    def _rows(self, x: Array) -> np.ndarray:
        """Return records as rows in double precision, in a buffer that is reused.

        Allocating new memory takes longer.
        """
        flat = np.asarray(x).reshape(
            len(x), self._room.shape[1]
        )  # also for an empty lot
        if len(self._room) < len(flat):
            self._room = np.empty((len(flat) + len(flat) // 4, flat.shape[1]))
        rows = self._room[: len(flat)]
        rows[:] = flat
        return rows

    def _residuals(
        self, theta: np.ndarray, rows: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, Measured]:
        """Return the residuals [n, classes] and the records' measures.

        Residuals are probabilities minus one-hot labels.
        """
        inputs = self.net.outputs * rows.shape[1]
        record_range = np.arange(len(rows))
        logits = rows @ theta[:inputs].reshape(self.net.outputs, -1).T
        if self._bias:
            logits = logits + theta[inputs:]
        shifted = logits - logits.max(axis=1, keepdims=True)
        sums = np.exp(shifted).sum(axis=1)
        measured = Measured(
            np.log(sums) - shifted[record_range, labels],
            (logits.argmax(axis=1) == labels).astype(np.float64),
            np.ones(len(rows)),
        )
        residuals = np.exp(shifted) / sums[:, None]
        residuals[record_range, labels] -= 1
        return residuals, measured

    def _evaluate(self, theta: Array, x: Array, y: Array) -> Measured:
        return self._residuals(
            np.asarray(theta, np.float64), self._rows(x), np.asarray(y)
        )[1]
