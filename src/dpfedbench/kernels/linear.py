"""A linear head: the gradients of single records are outer products, whose norms and clipped sum need no rows.

A record's gradient is r (x, 1)^T with residuals r = p - y, so that its norm is |r| sqrt(|x|^2 + 1), and the clipped sum
is (w r)^T (x, 1) with each record's own weight w. A head without a constant has neither 1.
"""

from __future__ import annotations

import math

import numpy as np

from dpfedbench.models.gradients import Measured, Total
from dpfedbench.models.net import Array
from dpfedbench.models.torch_gradients import TorchGradients


class LinearHeadGradients(TorchGradients):
    """Gradients of a `LinearHead`; arguments are those of `Gradients`. All is in double precision."""

    name = "linear-head"

    @property
    def _bias(self) -> bool:
        return "linear.bias" in self.net.tensor_names

    def _add_each(self, theta: Array, x: Array, y: Array, total: Total) -> tuple[Measured, np.ndarray]:
        rows, labels = _flat(x), np.asarray(y)
        residuals, measured = self._residuals(np.asarray(theta, np.float64), rows, labels)

        def add(limit: float, into: np.ndarray, norms: np.ndarray) -> None:
            norms[:] = np.linalg.norm(residuals, axis=1) * np.sqrt((rows**2).sum(axis=1) + self._bias)
            finite = np.isfinite(norms)
            with np.errstate(divide="ignore"):
                weights = np.minimum(limit / norms[finite], 1.0)
            weighted = weights[:, None] * residuals[finite]
            constants = [weighted.sum(axis=0)] if self._bias else []
            into += np.concatenate([(weighted.T @ rows[finite]).ravel(), *constants])

        return measured, total.add_by(add, len(rows))

    def added(self, theta: Array, x: Array, y: Array, room: Array) -> np.ndarray:
        rows = _flat(x)
        residuals, _ = self._residuals(np.asarray(theta, np.float64), rows, np.asarray(y))
        constants = [residuals.sum(axis=0)] if self._bias else []
        return np.concatenate([(residuals.T @ rows).ravel(), *constants])

    def _residuals(self, theta: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, Measured]:
        """Probabilities less the labels' own [n, classes], and the records' measures."""
        inputs, places = self.net.outputs * rows.shape[1], np.arange(len(rows))
        logits = rows @ theta[:inputs].reshape(self.net.outputs, -1).T
        if self._bias:
            logits = logits + theta[inputs:]
        shifted = logits - logits.max(axis=1, keepdims=True)
        sums = np.exp(shifted).sum(axis=1)
        measured = Measured(
            np.log(sums) - shifted[places, labels],
            (logits.argmax(axis=1) == labels).astype(np.float64),
            np.ones(len(rows)),
        )
        residuals = np.exp(shifted) / sums[:, None]
        residuals[places, labels] -= 1
        return residuals, measured

    def _evaluate(self, theta: Array, x: Array, y: Array) -> Measured:
        rows = _flat(x)
        return self._residuals(np.asarray(theta, np.float64), rows, np.asarray(y))[1]


def _flat(x: Array) -> np.ndarray:
    """Records as rows of numbers, float64 [n, inputs]; there may be none."""
    return np.asarray(x, np.float64).reshape(len(x), math.prod(x.shape[1:]))
