"""Scores of the best attacker: of a run's releases (`Tally`), and of simulated ones.

The simulation draws from the mechanism in the ledger. By Neyman and Pearson no score
orders canaries better than the likelihood ratio, and an audit scores by it. So for
correct code the audit's scores have the same distribution as the simulated ones. If
they have another, the code that ran is not the mechanism in the ledger: the audit
attacked another mechanism, and a low bound says nothing about it.

The likelihood ratio compares a canary's presence in the rounds of a participation with
its absence. It is

- where the observer knows who is in which round: the product of the ratios of the
  canary's own rounds;
- where each canary is in one secret round, equally likely: the mean over rounds of the
  ratios;
- where each canary is drawn anew in each round: the product over rounds of 1 - q + q x
  ratio.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import kolmogorov

Drawn = Callable[[np.random.Generator], np.ndarray]
"""Function that draws scores of canaries with the audit's own coins, float64 [m]."""


class Tally:
    """Scores of canaries, round by round.

    Args:
        shape: shape of the array of canaries; its last axis is that of `members`.
        members: the canaries that are in each round, where that is known; else None.
        once: whether each canary is in one round.

    Attributes:
        scores: log-likelihood ratios, up to a constant that all canaries share; float64
            of that shape.
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
        is_mean_over_rounds = once and members is None
        self.scores = np.full(shape, -np.inf if is_mean_over_rounds else 0.0)

    def add(
        self, index: int, x: np.ndarray, noise_multiplier: float, rate: float
    ) -> None:
        """Add the releases of a round to the scores.

        Args:
            index: number of the round.
            x: the release at each canary, in units of the canary's effect: 1 plus noise
                of deviation z where the canary is present, else the noise.
            noise_multiplier: z.
            rate: probability that a canary was drawn for this round.
        """
        ratio = (2 * x - 1) / (2 * noise_multiplier**2)
        if self._members is not None:
            here = self._members[index]
            self.scores[..., here] += ratio[..., here]
        elif self._once:
            self.scores = np.logaddexp(self.scores, ratio)
        else:
            if rate < 1:
                log_present = np.log(rate) + ratio
                ratio = np.logaddexp(np.log1p(-rate), log_present)
            self.scores += ratio

    def ideal(
        self,
        coins: np.ndarray,
        done: Sequence[tuple[int, float]],
        generator: np.random.Generator,
        *,
        rate: float,
        rounds: int,
    ) -> np.ndarray:
        """Return scores of simulated Gaussian releases with the same coins.

        Args:
            coins: whether each canary is present, bool of the canaries' shape.
            done: number and z of each round that was run.
            generator: draws the simulation.
            rate: probability that a canary is drawn for a round.
            rounds: planned number of rounds, of which each canary draws its one.
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
            if self._members is None:
                squares += z**-2
            else:
                squares[..., self._members[index]] += z**-2
        return gaussian(coins, squares, generator)


def gaussian(
    coins: np.ndarray, squares: np.ndarray | float, generator: np.random.Generator
) -> np.ndarray:
    """Draw scores of canaries that are each in one Gaussian release.

    Args:
        coins: whether each canary is present.
        squares: (sensitivity / deviation)^2 of a canary's release; for several
            releases, their sum.
        generator: draws the noise.
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
    """Draw scores of canaries where it is secret who is in which release.

    Args:
        coins: whether each canary is present.
        multipliers: z of each release.
        generator: draws the participation and the noise.
        rate: probability that a canary is in a release, independently of the others.
        once: if above 0, each canary is instead in one of this number of equally likely
            releases, of which `multipliers` are the first.
    """
    tally = Tally(coins.shape, once=bool(once))
    if once:
        drawn_rounds = generator.integers(once, size=coins.shape)
    for number, z in enumerate(multipliers):
        if once:
            is_drawn = drawn_rounds == number
        else:
            is_drawn = generator.random(coins.shape) < rate
        there = coins & is_drawn
        noise = z * generator.standard_normal(coins.shape)
        tally.add(number, there + noise, z, rate)
    return tally.scores


def chance_of_such(
    scores: np.ndarray, coins: np.ndarray, drawn: Sequence[np.ndarray]
) -> float:
    """Return an approximate p-value of the audit's scores against ideal ones.

    It is the probability of as large a difference if both have the same distribution,
    with the same coins: the Kolmogorov-Smirnov limit law, for present and for absent
    canaries, and twice the smaller probability.
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
            total = len(observed) + len(ideal)
            size = len(observed) * len(ideal) / total
            chances.append(
                2 * float(kolmogorov(np.sqrt(size) * np.abs(distance).max()))
            )
    return min(chances)
