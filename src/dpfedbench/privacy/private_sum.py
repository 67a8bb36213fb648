"""The private sum, the one primitive through which private data leaves its owner.

Formal guarantee. Neighbouring inputs differ in one unit, whose contribution is replaced by zero (zero-out). Each
contribution is scaled to at most C in one L2 norm over all parameters, so the sums of neighbours differ by at most C,
and the release is the Gaussian mechanism of sensitivity C and standard deviation z C: (epsilon, delta) of
`gaussian.gaussian_epsilon(z, delta)`. Under replace-one adjacency the sensitivity is 2 C.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import torch

from dpfedbench.errors import BenchError

_BLOCK = 2048  # coordinates worked on at a time: their double-precision total stays in the first cache


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _norms(rows: np.ndarray, out: np.ndarray) -> None:
    """L2 norms of the rows of float32 [n, d], in double precision: a float32's square cannot overflow a double.

    A row is added up in lanes, the same way whatever rows are beside it.
    """
    for i in range(rows.shape[0]):
        row, squares = rows[i], 0.0
        for j in range(row.size):
            value = np.float64(row[j])
            squares += value * value
        out[i] = math.sqrt(squares)


@numba.njit(nogil=True, cache=True)
def _add_weighted(total: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> None:
    """total [d] += weights [n] @ rows [n, d], row after row in double precision, so chunks change no bit."""
    dimension, whole = rows.shape[1], rows.shape[0] - rows.shape[0] % 4
    for start in range(0, dimension, _BLOCK):
        stop = min(start + _BLOCK, dimension)
        part = total[start:stop]
        # Four rows for each time that the total is read and written.
        for i in range(0, whole, 4):
            a, b, c, d = rows[i, start:stop], rows[i + 1, start:stop], rows[i + 2, start:stop], rows[i + 3, start:stop]
            u, v, w, x = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            for j in range(part.size):
                part[j] = (((part[j] + u * np.float64(a[j])) + v * np.float64(b[j])) + w * np.float64(c[j])) + (
                    x * np.float64(d[j])
                )
        for i in range(whole, rows.shape[0]):
            a, u = rows[i, start:stop], weights[i]
            for j in range(part.size):
                part[j] += u * np.float64(a[j])


def row_norms(contributions: torch.Tensor) -> np.ndarray:
    """L2 norms in double precision of contributions float32 [n, d]; NaN or infinite where a row is not finite."""
    norms = np.empty(len(contributions))
    _norms(np.ascontiguousarray(contributions.detach().cpu().numpy(), dtype=np.float32), norms)
    return norms


class _Sum:
    """A stream of contributions, added up one after another in double precision, so chunks change no bit."""

    def __init__(self, *, dimension: int) -> None:
        if dimension < 1:
            raise BenchError(f"a sum needs at least one coordinate, not {dimension}")
        self.dimension = dimension
        self.count = 0
        self.non_finite = 0
        self._total = np.zeros(dimension)
        self._released = False

    def add(self, contributions: torch.Tensor) -> None:
        """Add contributions [n, d]. One that is not finite counts as zero, and is counted in `non_finite`."""
        if self._released:
            raise RuntimeError("this sum was released: nothing can be added to it")
        if contributions.ndim != 2 or contributions.shape[1] != self.dimension:
            raise ValueError(f"contributions must be [n, {self.dimension}], not {tuple(contributions.shape)}")
        if not len(contributions):
            return
        rows = np.ascontiguousarray(contributions.detach().cpu().numpy(), dtype=np.float32)
        norms = np.empty(len(rows))
        _norms(rows, norms)
        finite = np.isfinite(norms)
        norms[~finite] = 0.0
        self.count += len(rows)
        self.non_finite += int(len(rows) - finite.sum())
        if not finite.all():
            rows = np.where(finite[:, None], rows, np.float32(0))  # nothing times NaN would be NaN
        _add_weighted(self._total, rows, self._weights(norms))
        self._seen(norms)

    def release(self, generator: np.random.Generator) -> torch.Tensor:
        """The (noised) sum, float64 [d] on the CPU. It can be had once.

        Raises:
            RuntimeError: it was released before; a second release would be a second mechanism.
        """
        if self._released:
            raise RuntimeError("this sum was released before")
        self._released = True
        total, self._total = torch.from_numpy(self._total), np.empty(0)
        return self._noised(total, generator)

    def _weights(self, norms: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _seen(self, norms: np.ndarray) -> None:
        raise NotImplementedError

    def _noised(self, total: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        raise NotImplementedError


class PrivateSum(_Sum):
    """Clip each contribution to `threshold`, add up, add noise of standard deviation z C to every coordinate.

    An empty sum releases noise as well. Norms and the un-noised sum are not kept.

    Args:
        dimension: coordinates d.
        threshold: C > 0, finite.
        noise_multiplier: z > 0, finite.
    """

    def __init__(self, *, dimension: int, threshold: float, noise_multiplier: float) -> None:
        super().__init__(dimension=dimension)
        if not 0 < threshold < math.inf:
            raise BenchError(f"the clipping threshold is {threshold}: privacy needs a finite one above 0")
        if not 0 < noise_multiplier < math.inf:
            raise BenchError(f"noise.multiplier is {noise_multiplier}: privacy needs a finite one above 0")
        self.threshold, self.noise_multiplier = float(threshold), float(noise_multiplier)

    @property
    def sensitivity(self) -> float:
        """How far one contribution can move the sum, in L2 norm (zero-out)."""
        return self.threshold

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate."""
        return self.noise_multiplier * self.threshold

    def _weights(self, norms: np.ndarray) -> np.ndarray:
        return self.threshold / np.maximum(norms, self.threshold)

    def _seen(self, norms: np.ndarray) -> None:
        pass

    def _noised(self, total: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        return total + self.noise_std * torch.from_numpy(generator.standard_normal(self.dimension))


class PlainSum(_Sum):
    """The sum as it is, for methods that claim no privacy; `norms` are the contributions' own."""

    def __init__(self, *, dimension: int) -> None:
        super().__init__(dimension=dimension)
        self.norms: list[float] = []

    def _weights(self, norms: np.ndarray) -> np.ndarray:
        return np.ones_like(norms)

    def _seen(self, norms: np.ndarray) -> None:
        self.norms += norms.tolist()

    def _noised(self, total: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        return total
