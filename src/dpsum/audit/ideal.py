"""Scores of the best attacker on draws of the mechanism that the ledger states, without the code that ran.

By Neyman and Pearson no score orders canaries better than the likelihood ratio, and that is what an audit scores by.
So on right code its scores, and what is made of them, have the law that they have on these draws. Where they have
another, what ran is not what the ledger states: another mechanism was attacked, and a low bound says nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import kolmogorov

Drawn = Callable[[np.random.Generator], np.ndarray]
"""Scores float64 [m] of canaries with the audit's own coins, drawn anew."""


def gaussian(coins: np.ndarray, squares: np.ndarray | float, generator: np.random.Generator) -> np.ndarray:
    """Log-likelihood ratios of canaries in one Gaussian release each, or in several that come to one.

    Args:
        coins: bool, of any shape, whether each is there.
        squares: (sensitivity / deviation)^2 of each one's release; of several their sum.
        generator: of the draws.
    """
    return squares * (coins - 0.5) + np.sqrt(squares) * generator.standard_normal(coins.shape)


def secret(
    coins: np.ndarray, multipliers: Sequence[float], generator: np.random.Generator, *, rate: float, once: int = 0
) -> np.ndarray:  # fmt: skip
    """The same where who is in which release is secret; up to a constant that all canaries share.

    Args:
        coins: bool, of any shape, whether each is there.
        multipliers: z of each release.
        generator: of the draws.
        rate: the chance to be in a release, apart from the others.
        once: each is in one of so many releases instead, all equally likely, of which these are the first; 0: not so.
    """
    scores = np.full(coins.shape, -np.inf if once else 0.0)
    own = generator.integers(once, size=coins.shape) if once else None
    for number, z in enumerate(multipliers):
        there = coins & (generator.random(coins.shape) < rate if own is None else own == number)
        ratio = (2 * (there + z * generator.standard_normal(coins.shape)) - 1) / (2 * z**2)
        if once:
            scores = np.logaddexp(scores, ratio)
        else:
            scores += np.logaddexp(np.log1p(-rate), np.log(rate) + ratio)
    return scores


def chance_of_such(scores: np.ndarray, coins: np.ndarray, drawn: Sequence[np.ndarray]) -> float:
    """The chance that draws of one law differ as much as an audit's scores and the ideal ones, about.

    Kolmogorov and Smirnov's limit law of the largest difference, of canaries that are there and of those that are not;
    twice the smaller chance.

    Args:
        scores: float64 [m].
        coins: bool [m], whether each canary is there.
        drawn: ideal scores, each float64 [m] with the same coins.
    """
    chances = [1.0]
    for side in (coins, ~coins):
        if side.any():
            own, ideal = np.sort(scores[side]), np.sort(np.concatenate([each[side] for each in drawn]))
            at = np.concatenate([own, ideal])
            apart = np.searchsorted(own, at, "right") / len(own) - np.searchsorted(ideal, at, "right") / len(ideal)
            size = len(own) * len(ideal) / (len(own) + len(ideal))
            chances.append(2 * float(kolmogorov(np.sqrt(size) * np.abs(apart).max())))
    return min(chances)
