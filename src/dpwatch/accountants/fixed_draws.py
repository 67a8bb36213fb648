"""The privacy of cohorts that are drawn with replacement: b draws a round, each of any
of n units with the same chance.

A unit may be drawn several times in a round, K ~ Binomial(b, 1/n), and is then added up
K times: pfl-research's user sampler "random". The argument is the one of `fixed_size`.
Let y_1 to y_b be draws from the other units alone, and B the draws that are the unit's
instead, |B| = K. Without the unit the release is R = E N(sum y), with it A = E N(sum
over those not in B of y + K x) given K >= 1, and A' with the unit's contribution
changed to x'. With eta = P(K >= 1) the two worlds are (1 - eta) R + eta A and (1 - eta)
R + eta A', so that advanced joint convexity (Balle, Barthe and Gaboardi 2018, Theorem
2) and then joint convexity over y and B say

    H_eps(M || M') <= eta E_{K | K >= 1} H_eps0(N(K x) || (1 - beta) N(sum over B of y) + beta N(K x')),

with what is the same in all of them left out. Given K, that is `fixed_size`'s bound
with all distances K times as long: a cohort of fixed size at rate eta with noise z / K.
So the dominating pair is theirs, K told with it, in the law of K given that it is at
least 1. Balle et al.'s Theorem 10 is the same for replace-one.

The low end is of the data set where all others contribute 0: there the release is K
times x and noise, which is the mixture of `poisson` for b units of rate 1/n that are
zeroed together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.stats import binom

from dpsum.accounting.accountant import Events
from dpsum.accounting.analyses import fixed_size, poisson
from dpsum.accounting.compositions import LARGEST, RoundLaw, Stage, upper_end
from dpsum.accounting.gaussian import Schedule, gaussian_epsilon, joint_of
from dpsum.accounting.groups import known_draws_epsilon, squares_of_binomials
from dpsum.sampling import Sampler, Sampling

# Draws of one unit that leave less noise than this for each are taken to tell
# everything.
_LEAST_EACH = 0.04


class _Told:
    """The loss of one round whose number of draws is told with it: a law for each
    number, and the number's probability.

    Numbers that have none (`missing`) count as infinite losses.
    """

    def __init__(self, laws: Sequence[tuple[float, RoundLaw]], missing: float) -> None:
        self._laws = laws
        self.missing = missing + sum(weight * law.missing for weight, law in laws)

    def tails(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tails of the mixture; it is off by no larger a share than its parts."""
        first = np.zeros(len(losses))
        second = np.zeros(len(losses))
        off = np.zeros(len(losses))
        for weight, law in self._laws:
            first_tail, second_tail, share = law.tails(losses)
            first = first + weight * first_tail
            second = second + weight * second_tail
            off = np.maximum(off, share)
        return first, second, off + 1e-14

    def range(self, mass: float, most: float = LARGEST) -> tuple[float, float]:
        """The range of the mixture; each part may lose its share of the mass."""
        low = 0.0
        high = 0.0
        for weight, law in self._laws:
            share = mass / (len(self._laws) * weight)
            if share < 0.5:
                ends = law.range(share, most)
                low = min(low, ends[0])
                high = max(high, ends[1])
        return low, high


def _ever(units: int, draws: int) -> float:
    """The probability that a unit is drawn in a round."""
    return -math.expm1(draws * math.log1p(-1 / units)) if units > 1 else 1.0


@lru_cache(maxsize=256)
def _laws(
    z: float, units: int, draws: int, adjacency: str, mass: float
) -> tuple[RoundLaw, ...]:
    """The dominating pair of one round in each order."""
    eta = _ever(units, draws)
    parts: list[list[tuple[float, RoundLaw]]] = [[], []]
    count = 1
    while (
        count <= draws
        and z / count >= _LEAST_EACH
        and binom.sf(count - 1, draws, 1 / units) / eta > mass / 4
    ):
        weight = float(binom.pmf(count, draws, 1 / units)) / eta
        for order, law in enumerate(fixed_size.pairs(z / count, eta, adjacency, mass)):
            parts[order].append((weight, law))
        count += 1
    missing = float(binom.sf(count - 1, draws, 1 / units)) / eta
    return tuple(_Told(laws, missing) for laws in parts if laws)


@lru_cache(maxsize=1024)
def upper_epsilon(
    schedule: Schedule,
    units: int,
    draws: int,
    delta: float,
    adjacency: str = fixed_size.ZERO_OUT,
) -> float:
    """A proved upper end of epsilon, for both orders.

    Args:
        schedule: (z, rounds) pairs with z > 0 the noise over the threshold, for
            replace-one too; empty means nothing.
        units: n that are drawn from, `draws` of them (b) in a round.
        delta: in (0, 1).
        adjacency: "zero-out" or "replace-one".
    """
    rate = 1 / units
    moves = fixed_size.moved(adjacency)
    poisson.check(schedule, rate, delta)
    if not schedule:
        return 0.0
    stage = Stage(
        schedule,
        _ever(units, draws),
        lambda z, mass: _laws(z, units, draws, adjacency, mass),
        moves=moves,
    )
    # With the draws told, the releases are composed Gaussians.
    ceiling = known_draws_epsilon(
        *squares_of_binomials(draws, rate, stage.rounds), stage.least / moves, delta
    )
    return ceiling if stage.no_grid else upper_end([stage], delta, ceiling=ceiling)


def lower_epsilon(
    schedule: Schedule,
    units: int,
    draws: int,
    delta: float,
    adjacency: str = fixed_size.ZERO_OUT,
) -> float:
    """A proved lower end of epsilon, arguments as in `upper_epsilon`.

    All others contribute 0; under replace-one -1, where the unit contributes 1 or -1,
    so that it moves the sum by 2.
    """
    if not schedule:
        return 0.0
    schedule = tuple((z / fixed_size.moved(adjacency), count) for z, count in schedule)
    if units == 1:
        return gaussian_epsilon(
            sum(count / z**2 for z, count in schedule) ** -0.5 / draws, delta
        )
    return poisson.lower_epsilon(schedule, 1 / units, delta, draws)


class FixedDrawsAccountant(fixed_size.Redrawn):
    """Each cohort is so many draws from all units, with replacement."""

    pair = "gaussian", "fixed-draws"
    explanation = (
        "each round's cohort is a number of draws from all clients with replacement,"
        " afresh in secret: a client may be in it several times, in the place of"
        " others; privacy loss distribution, bracketed; the low end is of one data set"
        " in all rounds"
    )

    width = (
        "the low end is of one data set, whose other units contribute alike, and no"
        " theory says what lies between it and the high end"
    )
    ends_of = lower_epsilon, upper_epsilon

    def gaussian(self, events: Events) -> float | None:
        """With one unit alone, every draw of a round is that unit."""
        if int(events.sampling["clients"]) > 1:
            return None
        return joint_of(events.schedule) / int(events.sampling["cohort"])

    def check(self, sampling: Sampler) -> None:
        """A cohort is a whole number of draws, and may have more than there are
        clients.
        """
        numbers = Sampling.of(sampling)
        self.check_whole(numbers, "clients", "cohort", "rounds")
        self.check_numbers(numbers)

    def drawn(self, sampling: Sampling) -> tuple[float, ...]:
        return int(sampling["clients"]), int(sampling["cohort"])
