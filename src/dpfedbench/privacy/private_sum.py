"""The private sum, the one primitive through which private data leaves its owner.

Formal guarantee. Neighbouring inputs differ in one unit, whose contribution is replaced by zero (zero-out). Each
contribution is scaled to at most C in one L2 norm over all parameters, so the sums of neighbours differ by at most C,
and the release is the Gaussian mechanism of sensitivity C and standard deviation z C: (epsilon, delta) of
`gaussian.gaussian_epsilon(z, delta)`. Under replace-one adjacency the sensitivity is 2 C.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from dpfedbench.errors import BenchError


def _norm(vector: torch.Tensor) -> float:
    """L2 norm in double precision, without overflow: a float32's square fits a double."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


class _Sum:
    """A stream of contributions, added up one after another in double precision, so chunks change no bit."""

    def __init__(self, *, dimension: int) -> None:
        if dimension < 1:
            raise BenchError(f"a sum needs at least one coordinate, not {dimension}")
        self.dimension = dimension
        self.count = 0
        self.non_finite = 0
        self._total: torch.Tensor | None = None
        self._released = False

    def add(self, contributions: torch.Tensor) -> None:
        """Add contributions [n, d]. One that is not finite counts as zero, and is counted in `non_finite`."""
        if self._released:
            raise RuntimeError("this sum was released: nothing can be added to it")
        if contributions.ndim != 2 or contributions.shape[1] != self.dimension:
            raise ValueError(f"contributions must be [n, {self.dimension}], not {tuple(contributions.shape)}")
        if self._total is None:
            self._total = torch.zeros(self.dimension, dtype=torch.float64, device=contributions.device)
        for contribution in contributions:
            self.count += 1
            norm = _norm(contribution)
            if not math.isfinite(norm):
                self.non_finite += 1
                norm = 0.0
            else:
                self._total.add_(contribution, alpha=self._weight(norm))
            self._seen(norm)

    def release(self, generator: np.random.Generator) -> torch.Tensor:
        """The (noised) sum, float64 [d] on the CPU. It can be had once.

        Raises:
            RuntimeError: it was released before; a second release would be a second mechanism.
        """
        if self._released:
            raise RuntimeError("this sum was released before")
        self._released = True
        total = torch.zeros(self.dimension, dtype=torch.float64) if self._total is None else self._total.cpu()
        self._total = None
        return self._noised(total, generator)

    def _weight(self, norm: float) -> float:
        raise NotImplementedError

    def _seen(self, norm: float) -> None:
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

    def _weight(self, norm: float) -> float:
        return 1.0 if norm <= self.threshold else self.threshold / norm

    def _seen(self, norm: float) -> None:
        pass

    def _noised(self, total: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        return total + self.noise_std * torch.from_numpy(generator.standard_normal(self.dimension))


class PlainSum(_Sum):
    """The sum as it is, for methods that claim no privacy; `norms` are the contributions' own."""

    def __init__(self, *, dimension: int) -> None:
        super().__init__(dimension=dimension)
        self.norms: list[float] = []

    def _weight(self, norm: float) -> float:
        return 1.0

    def _seen(self, norm: float) -> None:
        self.norms.append(norm)

    def _noised(self, total: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        return total
