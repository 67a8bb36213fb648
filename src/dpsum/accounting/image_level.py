"""The guarantee for one image, where clients are tasks that share images.

An image that k clients use is protected as they are all together: replace the contribution of each of them by zero.
In round t, c_t of them take part, and their contributions add up to a vector of norm at most c_t C, which they reach
if they point the same way. So, in units of C, the releases move by a vector of length c_t in round t, and

- one-pass: the blocks are known, so the counts are; all releases together are one Gaussian of
  mu = sqrt(sum_t c_t^2 / z_t^2), exactly, and the worst image of the partition is the one whose mu is greatest;
- Poisson: c_t ~ Binomial(k, q) in each round apart from the others: a mixture of Gaussians a round, composed
  (`poisson`, with `uses`). More uses are worse, so the most used image is the worst;
- balls-and-bins: each of the k draws one secret round of its own. There is no tight accountant of this mixture; the
  high end is the least of the group bound over k clients one after another and of the bound in which the observer is
  told the draws (`groups`); the low end the greatest of one client's, and of the sum of all releases, which is one
  Gaussian of mu = k / (z sqrt(T));
- own updates, noised by each client itself: k independent releases, whichever rounds they are in, so that all together
  are one Gaussian of mu = sqrt(sum_t c_t / z_t^2), exactly: those of one round are not added up before they are seen;
- lots of records: each record is at one client, so a record is an image.

Only images in a client's support or query set count: the others it holds enter nothing. The partition is public.
Each sampler's bracket is in its file of `accounting.analyses`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageUse:
    """Which images each client of a run uses, and when clients took part.

    Attributes:
        images: integers [clients, images of a client that enter its support or query set]; equal numbers are the
            same image.
        rounds: for each client the round of its block (from 0; -1: in none), where the plan fixes it; else None.
    """

    images: np.ndarray
    rounds: np.ndarray | None

    def counts(self) -> np.ndarray:
        """How many clients use each image that is used at all."""
        found = np.bincount(self.images.ravel())
        return found[found > 0]

    @property
    def most(self) -> int:
        """How many clients use the most used image."""
        return int(self.counts().max())

    def worst_square(self, multipliers: Sequence[float], *, apart: bool = False) -> float:
        """The greatest sum over rounds of c_t^2 / z_t^2 of any image, where clients' rounds are known.

        Args:
            multipliers: z of each round that was run.
            apart: whether clients of a round release one by one, each with noise of its own, and not their sum: then
                the greatest sum of c_t / z_t^2.
        """
        assert self.rounds is not None
        done = len(multipliers)
        taking = np.flatnonzero((self.rounds >= 0) & (self.rounds < done))
        if not len(taking):
            return 0.0
        keys = self.images[taking] * done + self.rounds[taking][:, None]
        places, counts = np.unique(keys, return_counts=True)
        images, rounds = np.divmod(places, done)
        noise = np.asarray(multipliers)[rounds]
        return float(np.bincount(images, weights=counts / noise**2 if apart else (counts / noise) ** 2).max())
