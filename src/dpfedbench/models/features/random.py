"""Random features (Rahimi and Recht 2008): a baseline for scattering.

The comparison shows whether the wavelets matter.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

from dpfedbench.config.part import setting
from dpfedbench.lazy import np, torch
from dpfedbench.models.features.features import Features
from dpsum.randomness import stream


class RandomFeatures(Features):
    """Features sqrt(2 / D) cos(w.x + b) with D random w and b.

    On average, their inner products equal a Gaussian kernel.
    """

    kind: Literal["random"] = "random"
    count: int = setting(4000, ge=1, le=1_000_000, doc="D: features per image")
    width: float = setting(
        5.0,
        gt=0,
        le=1e6,
        doc="width of the kernel, in lengths of an image whose pixels are in [0, 1]",
    )
    seed: int = setting(
        0,
        ge=0,
        doc=(
            "seed of the drawing, independent of the run's seed: the features"
            " are public"
        ),
    )

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
        return 1, 1, self.count

    def extract(self, images: torch.Tensor) -> torch.Tensor:
        weights, phases = _drawn(self.seed, images[0].numel(), self.count)
        flat = images.flatten(1) @ (weights / self.width) + phases
        return (math.sqrt(2 / self.count) * torch.cos(flat))[:, :, None, None]


@functools.lru_cache(maxsize=2)
def _drawn(seed: int, inputs: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = stream(seed, "random-features")
    weights = rng.standard_normal((inputs, count)).astype(np.float32)
    return torch.from_numpy(weights), torch.from_numpy(
        rng.uniform(0, 2 * math.pi, count).astype(np.float32)
    )
