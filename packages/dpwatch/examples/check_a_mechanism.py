"""Seven ways to get a private sum wrong, and the audit that shows each.

    python packages/dpwatch/examples/check_a_mechanism.py

Each mechanism is meant to be one Gaussian release: clip rows to norm C, add them up,
add noise of standard deviation z C to every coordinate, and divide by a public number.
A parameter tensor is a slice of the coordinates.
"""

import sys

import numpy as np

from dpwatch.audit.anything import audited

DIMENSION = 200
C = 0.5
Z = 1.0
EXPECTED = 32
TENSORS = (slice(0, 140), slice(140, 150), slice(150, 190), slice(190, 200))


def clip(rows, threshold=C):
    """Clip each row to a norm."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, threshold / np.maximum(norms, 1e-12))


class Mechanisms:
    """One right and seven wrong mechanisms: contributions [n, d] to a release [d]."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.previous_noise = None

    def draw_noise(self, scale=1.0):
        """Draw noise of standard deviation `scale` z C."""
        return scale * Z * C * self.rng.standard_normal(DIMENSION)

    def right(self, rows):
        """Clip, add up, add noise and divide, as intended."""
        return (clip(rows).sum(axis=0) + self.draw_noise()) / EXPECTED

    def half_the_noise(self, rows):
        """Add noise of standard deviation z C / 2."""
        return (clip(rows).sum(axis=0) + self.draw_noise(0.5)) / EXPECTED

    def noise_by_tensor(self, rows):
        """Clip each of k tensors to C / sqrt(k), and add noise for that threshold.

        All tensors together have norm C, and need noise for C.
        """
        scale = len(TENSORS) ** -0.5
        parts = [clip(rows[:, tensor], scale * C) for tensor in TENSORS]
        total = np.concatenate(parts, axis=1).sum(axis=0)
        return (total + self.draw_noise(scale)) / EXPECTED

    def clipped_by_tensor(self, rows):
        """Clip each of k tensors to C, so that a whole row has norm up to sqrt(k) C."""
        parts = [clip(rows[:, tensor]) for tensor in TENSORS]
        total = np.concatenate(parts, axis=1).sum(axis=0)
        return (total + self.draw_noise()) / EXPECTED

    def clipped_after_adding(self, rows):
        """Clip the sum to C. One row may reverse the sum, which moves it by 2 C."""
        total = clip(rows.sum(axis=0, keepdims=True))[0]
        return (total + self.draw_noise()) / EXPECTED

    def realised_denominator(self, rows):
        """Divide by the number of rows, which the size of the noise then reveals."""
        return (clip(rows).sum(axis=0) + self.draw_noise()) / max(len(rows), 1)

    def noise_used_twice(self, rows):
        """Add the noise of the previous call in every second call."""
        if self.previous_noise is None:
            noise = self.draw_noise()
            self.previous_noise = noise
        else:
            noise = self.previous_noise
            self.previous_noise = None
        return (clip(rows).sum(axis=0) + noise) / EXPECTED

    def coordinates_without_noise(self, rows):
        """Add no noise to one of the four tensors."""
        noise = self.draw_noise()
        noise[TENSORS[1]] = 0
        return (clip(rows).sum(axis=0) + noise) / EXPECTED


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
    """Audit all mechanisms, and print a line for each.

    Returns:
        0 if the audit refutes the seven faults and not the right mechanism, else 1.
    """
    mistakes = 0
    for name in ("right", *FAULTS):
        release = getattr(Mechanisms(seed), name)
        audit = audited(
            release, dimension=DIMENSION, noise_multiplier=Z, delta=1e-5, seed=seed
        )
        print(f"{name:26} {audit.calls:6,} calls  {audit.status}")
        mistakes += audit.refuted != (name != "right")
    return int(mistakes > 0)


if __name__ == "__main__":
    sys.exit(main())
