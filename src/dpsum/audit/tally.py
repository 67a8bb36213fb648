"""The score of a canary over the rounds of a participation: how likely it is in them, against that it is in none.

It is the likelihood ratio of how units are drawn:

- where the observer knows who is in which round: the ratios of the canary's own rounds;
- where each is in one secret round, equally likely: the mean over rounds of the ratios;
- where each draws anew for each round: the product over rounds of 1 - q + q x ratio.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsum.audit.ideal import gaussian, secret


class Tally:
    """Scores of canaries, round by round.

    Args:
        shape: of the canaries; the last axis is that of `members`.
        members: the canaries that are in each round, where that is known.
        once: whether each is in one round.

    Attributes:
        scores: float64 of that shape, log-likelihood ratios up to a constant that all canaries share.
    """

    def __init__(
        self, shape: tuple[int, ...], *, members: Sequence[np.ndarray] | None = None, once: bool = False
    ) -> None:
        self._members, self._once = members, once
        self.scores = np.full(shape, -np.inf if once and members is None else 0.0)

    def add(self, index: int, x: np.ndarray, noise_multiplier: float, rate: float) -> None:
        """Take note of a round.

        Args:
            index: of the round.
            x: what was released of each canary, in units of what it moves: 1 where it is present, but for the noise.
            noise_multiplier: z, of the noise in these units.
            rate: a canary's chance of being in the round.
        """
        ratio = (2 * x - 1) / (2 * noise_multiplier**2)
        if self._members is not None:
            here = self._members[index]
            self.scores[..., here] += ratio[..., here]
        elif self._once:
            self.scores = np.logaddexp(self.scores, ratio)
        else:
            self.scores += np.logaddexp(np.log1p(-rate), np.log(rate) + ratio) if rate < 1 else ratio

    def ideal(
        self, coins: np.ndarray, done: Sequence[tuple[int, float]], generator: np.random.Generator, *,
        rate: float, rounds: int,
    ) -> np.ndarray:  # fmt: skip
        """Scores of draws of a Gaussian mechanism with the same coins.

        Args:
            coins: bool, of the canaries' shape.
            done: index and z of each round.
            generator: of the draws.
            rate: as of `add`.
            rounds: planned, from which each canary draws its one.
        """
        if self._members is None and (self._once or rate < 1):
            return secret(coins, [z for _, z in done], generator, rate=rate, once=rounds * self._once)
        squares = np.zeros(coins.shape)
        for index, z in done:
            squares[..., slice(None) if self._members is None else self._members[index]] += z**-2
        return gaussian(coins, squares, generator)
