"""Seven ways to get a private sum wrong, and the audit that shows each: python
examples/check_a_mechanism.py

All are meant to be one Gaussian release: rows cut to norm C, added up, noise of
deviation z C on every coordinate, and a public denominator. A parameter tensor is a
slice of the coordinates.
"""

import sys

import numpy as np

from dpwatch.audit.anything import audited

DIMENSION, C, Z, EXPECTED = 200, 0.5, 1.0, 32
TENSORS = (slice(0, 140), slice(140, 150), slice(150, 190), slice(190, 200))


def clipped(rows, threshold=C):
    """Rows cut to a norm."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, threshold / np.maximum(norms, 1e-12))


class Mechanisms:
    """Each is called with contributions [n, d] and returns what is released, [d]."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.kept = None

    def noise(self, scale=1.0):
        """Of deviation z C."""
        return scale * Z * C * self.rng.standard_normal(DIMENSION)

    def right(self, rows):
        """As it is meant to be."""
        return (clipped(rows).sum(axis=0) + self.noise()) / EXPECTED

    def half_the_noise(self, rows):
        """z C / 2."""
        return (clipped(rows).sum(axis=0) + self.noise(0.5)) / EXPECTED

    def noise_by_tensor(self, rows):
        """Each of k tensors is cut to C / sqrt(k), and has noise for that and not for
        C.
        """
        share = C / len(TENSORS) ** 0.5
        parts = [clipped(rows[:, tensor], share) for tensor in TENSORS]
        return (
            np.concatenate(parts, axis=1).sum(axis=0) + self.noise(len(TENSORS) ** -0.5)
        ) / EXPECTED

    def clipped_by_tensor(self, rows):
        """Each tensor is cut to C, so that all of a row may have norm sqrt(k) C."""
        parts = [clipped(rows[:, tensor]) for tensor in TENSORS]
        return (np.concatenate(parts, axis=1).sum(axis=0) + self.noise()) / EXPECTED

    def clipped_after_adding(self, rows):
        """The sum is cut to C, and one row may turn it round: it moves by 2 C."""
        return (clipped(rows.sum(axis=0, keepdims=True))[0] + self.noise()) / EXPECTED

    def realised_denominator(self, rows):
        """Whoever sees the noise's size knows how many there were."""
        return (clipped(rows).sum(axis=0) + self.noise()) / max(len(rows), 1)

    def noise_used_twice(self, rows):
        """Every second call takes the noise of the one before."""
        noise = self.noise() if self.kept is None else self.kept
        self.kept = noise if self.kept is None else None
        return (clipped(rows).sum(axis=0) + noise) / EXPECTED

    def coordinates_without_noise(self, rows):
        """One tensor of the four is forgotten."""
        noise = self.noise()
        noise[TENSORS[1]] = 0
        return (clipped(rows).sum(axis=0) + noise) / EXPECTED


FAULTS = (
    "half_the_noise",
    "noise_by_tensor",
    "clipped_by_tensor",
    "clipped_after_adding",
    "realised_denominator",
    "noise_used_twice",
    "coordinates_without_noise",
)


def main(seed=0):
    """Print a line for each; 1 where one was not told from right code."""
    missed = 0
    for name in ("right", *FAULTS):
        release = getattr(Mechanisms(seed), name)
        found = audited(
            release, dimension=DIMENSION, noise_multiplier=Z, delta=1e-5, seed=seed
        )
        print(f"{name:26} {found.calls:6,} calls  {found.status}")
        missed += found.refuted != (name != "right")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
