"""The guarantee for one image, where clients are tasks that share images.

An image that k clients use is protected as they are all together: replace the
contribution of each of them by zero. In round t, c_t of them take part, and their
contributions add up to a vector of norm at most c_t C, which they reach if they point
the same way. So, in units of C, the releases move by a vector of length c_t in round t:

- where rounds are known, all releases together are one Gaussian of mu = sqrt(sum_t
  c_t^2 / z_t^2), exactly;
- where each client noises its own update, those of one round are not added up before
  they are seen, and mu = sqrt(sum_t c_t / z_t^2);
- where rounds are secret, c_t is random, and more uses are worse: the most used image
  is the worst. There the high end may be of one client after another, or of draws that
  are told (`groups`).

Each accountant has its bracket (`Accountant.image`). Only images in a client's support
or query set count: its other images affect no release. The partition is public.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageUse:
    """Images that each client of a run uses, and the round in which it took part.

    Attributes:
        images: integers [clients, images of a client in its support or query set];
            equal numbers are the same image.
        rounds: the round of each client's block (from 0; -1: in none), where the plan
            fixes it; else None.
    """

    images: np.ndarray
    rounds: np.ndarray | None

    def counts(self) -> np.ndarray:
        """Return the number of clients of each image that any client uses."""
        uses = np.bincount(self.images.ravel())
        return uses[uses > 0]

    @property
    def most(self) -> int:
        """Number of clients that use the most used image."""
        return int(self.counts().max())

    def taking_part(self, done: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of `images` and `rounds` of clients of the first rounds.

        The clients' rounds are known.

        Args:
            done: number of these rounds.
        """
        assert self.rounds is not None
        has_come = (self.rounds >= 0) & (self.rounds < done)
        return self.images[has_come], self.rounds[has_come]

    def worst_square(
        self, multipliers: Sequence[float], *, apart: bool = False
    ) -> float:
        """Return the greatest sum over rounds of c_t^2 / z_t^2 of any image.

        The clients' rounds are known.

        Args:
            multipliers: z_t of each round.
            apart: whether the clients of a round release separately, each with its own
                noise, and not as a sum. The sum is then over c_t / z_t^2.
        """
        done = len(multipliers)
        images_of_clients, rounds_of_clients = self.taking_part(done)
        if not len(rounds_of_clients):
            return 0.0
        keys = images_of_clients * done + rounds_of_clients[:, None]
        distinct_keys, counts = np.unique(keys, return_counts=True)
        images, rounds = np.divmod(distinct_keys, done)
        noise = np.asarray(multipliers)[rounds]
        if apart:
            squares = counts / noise**2
        else:
            squares = (counts / noise) ** 2
        squares_by_image = np.bincount(images, weights=squares)
        return float(squares_by_image.max())
