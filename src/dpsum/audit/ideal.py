"""Scores of the best attacker: of what a run released (`Tally`), and on draws of the
mechanism that its ledger states.

By Neyman and Pearson no score orders canaries better than the likelihood ratio, and
that is what an audit scores by. So on right code its scores, and what is made of them,
have the law that they have on these draws. Where they have another, what ran is not
what the ledger states: another mechanism was attacked, and a low bound says nothing of
it.

The likelihood ratio, that a canary is in the rounds of a participation against that it
is in none, is

- where the observer knows who is in which round: the ratios of the canary's own rounds;
- where each is in one secret round, equally likely: the mean over rounds of the ratios;
- where each draws anew for each round: the product over rounds of 1 - q + q x ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import kolmogorov

Drawn = Callable[[np.random.Generator], np.ndarray]
"""Scores float64 [m] of canaries with the audit's own coins, drawn anew."""


class Tally:
    """Scores of canaries, round by round.

    Args:
        shape: of the canaries; the last axis is that of `members`.
        members: the canaries that are in each round, where that is known.
        once: whether each is in one round.

    Attributes:
        scores: float64 of that shape, log-likelihood ratios up to a constant that all
            canaries share.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        members: Sequence[np.ndarray] | None = None,
        once: bool = False,
    ) -> None:
        self._members = members
        self._once = once
        start = 0.0
        if once and members is None:
            start = -np.inf
        self.scores = np.full(shape, start)

    def add(
        self, index: int, x: np.ndarray, noise_multiplier: float, rate: float
    ) -> None:
        """Take note of round `index`, for which each canary was drawn with the chance
        `rate`.

        `x` is what was released of each canary, in units of what it moves: 1 where it
        is present, but for the noise, whose deviation in these units is z.
        """
        ratio = (2 * x - 1) / (2 * noise_multiplier**2)
        if self._members is not None:
            here = self._members[index]
            self.scores[..., here] += ratio[..., here]
        elif self._once:
            self.scores = np.logaddexp(self.scores, ratio)
        else:
            self.scores += (
                np.logaddexp(np.log1p(-rate), np.log(rate) + ratio)
                if rate < 1
                else ratio
            )

    def ideal(
        self,
        coins: np.ndarray,
        done: Sequence[tuple[int, float]],
        generator: np.random.Generator,
        *,
        rate: float,
        rounds: int,
    ) -> np.ndarray:
        """Scores of draws of a Gaussian mechanism with the same coins (of the canaries'
        shape).

        `done` has index and z of each round; of the `rounds` that were planned each
        canary draws its one.
        """
        if self._members is None and (self._once or rate < 1):
            return secret(
                coins,
                [z for _, z in done],
                generator,
                rate=rate,
                once=rounds * self._once,
            )
        squares = np.zeros(coins.shape)
        for index, z in done:
            squares[
                ..., slice(None) if self._members is None else self._members[index]
            ] += z**-2
        return gaussian(coins, squares, generator)


def gaussian(
    coins: np.ndarray, squares: np.ndarray | float, generator: np.random.Generator
) -> np.ndarray:
    """Draws of scores of canaries in one Gaussian release each, or in several that come
    to one.

    `coins` says whether each is there; `squares` is (sensitivity / deviation)^2 of its
    release; of several their sum.
    """
    return squares * (coins - 0.5) + np.sqrt(squares) * generator.standard_normal(
        coins.shape
    )


def secret(
    coins: np.ndarray,
    multipliers: Sequence[float],
    generator: np.random.Generator,
    *,
    rate: float,
    once: int = 0,
) -> np.ndarray:
    """The same where who is in which release (of multipliers z) is secret.

    Each is in a release with the chance `rate`, apart from the others. Where `once` is
    above 0 each is in one of so many releases instead, all equally likely, of which
    these are the first.
    """
    tally = Tally(coins.shape, once=bool(once))
    if once:
        drawn_rounds = generator.integers(once, size=coins.shape)
    else:
        drawn_rounds = None
    for number, z in enumerate(multipliers):
        there = coins & (
            generator.random(coins.shape) < rate
            if drawn_rounds is None
            else drawn_rounds == number
        )
        noise = z * generator.standard_normal(coins.shape)
        tally.add(number, there + noise, z, rate)
    return tally.scores


def chance_of_such(
    scores: np.ndarray, coins: np.ndarray, drawn: Sequence[np.ndarray]
) -> float:
    """About the chance that an audit's scores and ideal ones, with the same coins,
    differ as much if they have one law.

    Kolmogorov and Smirnov's limit law of the largest difference, of canaries that are
    there and of those that are not; twice the smaller chance.
    """
    chances = [1.0]
    for side in (coins, ~coins):
        if side.any():
            observed = np.sort(scores[side])
            ideal_scores = [draw[side] for draw in drawn]
            ideal = np.sort(np.concatenate(ideal_scores))
            at = np.concatenate([observed, ideal])
            distance = np.searchsorted(observed, at, "right") / len(
                observed
            ) - np.searchsorted(ideal, at, "right") / len(ideal)
            size = len(observed) * len(ideal) / (len(observed) + len(ideal))
            chances.append(
                2 * float(kolmogorov(np.sqrt(size) * np.abs(distance).max()))
            )
    return min(chances)
