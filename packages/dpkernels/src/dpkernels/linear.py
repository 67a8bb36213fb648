"""Linear head: norms and clipped sums of records' gradients without rows.

A record's gradient is the outer product r (x, 1)^T with residuals r = p - y. Its norm
is |r| sqrt(|x|^2 + 1), and the clipped sum is (w r)^T (x, 1) with each record's own
weight w. For a head without a bias, both 1s are left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpkernels.networks import LinearShape
from dpkernels.passes import Measures, Passes

_PIECE = 16  # number of records whose squares stay in the cache


class LinearHeadGradients(Passes):
    """Gradients of a linear layer, computed in double precision.

    The arguments are those of `Passes`.
    """

    name = "linear-head"
    network: LinearShape

    @staticmethod
    def fits(network: Any, dtype: np.dtype) -> bool:
        """Return true: any linear layer has this pass."""
        return True

    def __init__(self, network: LinearShape, dtype: Any = np.float32) -> None:
        super().__init__(network, dtype)
        self._room = np.empty((0, math.prod(network.input_shape)))

    def adds_records(self, x: np.ndarray) -> bool:
        return True

    def _add_record_gradients(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        limit: float,
        total: np.ndarray,
        norms: np.ndarray,
    ) -> np.ndarray:
        rows = self._rows(x)
        residuals, measures = self._residuals(theta, rows, y)
        squares = [
            (rows[i : i + _PIECE] ** 2).sum(axis=1) for i in range(0, len(rows), _PIECE)
        ]
        norms[:] = np.linalg.norm(residuals, axis=1) * np.sqrt(
            np.concatenate([*squares, []]) + self.network.bias
        )
        finite = np.isfinite(norms)
        if finite.all():
            finite = slice(None)  # no copy
        with np.errstate(divide="ignore"):
            weights = np.minimum(limit / norms[finite], 1.0)
        weighted = weights[:, None] * residuals[finite]
        total += self._flat(weighted, rows[finite])
        return measures.losses

    def _sum_record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        rows = self._rows(x)
        residuals, _ = self._residuals(theta, rows, y)
        return self._flat(residuals, rows)

    def _flat(self, residuals: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the sum of the records' gradients [d]."""
        constants = [residuals.sum(axis=0)] if self.network.bias else []
        return np.concatenate([(residuals.T @ rows).ravel(), *constants])

    def _rows(self, x: np.ndarray) -> np.ndarray:
        """Return records as rows in double precision, in a buffer that is reused.

        Allocating new memory takes longer.
        """
        flat = x.reshape(len(x), self._room.shape[1])  # also for an empty lot
        if len(self._room) < len(flat):
            self._room = np.empty((len(flat) + len(flat) // 4, flat.shape[1]))
        rows = self._room[: len(flat)]
        rows[:] = flat
        return rows

    def _residuals(
        self, theta: np.ndarray, rows: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, Measures]:
        """Return the residuals [n, classes] and the records' measures.

        Residuals are probabilities minus one-hot labels.
        """
        weights = theta.astype(np.float64)
        outputs = self.network.outputs
        inputs = outputs * rows.shape[1]
        record_range = np.arange(len(rows))
        logits = rows @ weights[:inputs].reshape(outputs, -1).T
        if self.network.bias:
            logits = logits + weights[inputs:]
        shifted = logits - logits.max(axis=1, keepdims=True)
        sums = np.exp(shifted).sum(axis=1)
        measures = Measures(
            np.log(sums) - shifted[record_range, labels],
            (logits.argmax(axis=1) == labels).astype(np.float64),
            np.ones(len(rows)),
        )
        residuals = np.exp(shifted) / sums[:, None]
        residuals[record_range, labels] -= 1
        return residuals, measures

    def _evaluate(self, theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> Measures:
        return self._residuals(theta, self._rows(x), y)[1]
