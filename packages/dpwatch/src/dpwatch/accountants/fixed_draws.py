"""Privacy of cohorts that are drawn with replacement: b uniform draws from n units.

A unit may be drawn several times in a round, K ~ Binomial(b, 1/n), and is then added up
K times. pfl-research's user sampler "random" draws in this way. The argument is that of
`fixed_size`. Let y_1 to y_b be draws from the other units alone, and B the draws that
the unit replaces, |B| = K. Without the unit the release is R = E N(sum y). With the
unit it is A = E N(sum over draws not in B of y + K x) given K >= 1, and A' with the
unit's contribution changed to x'. With eta = P(K >= 1) the two worlds are (1 - eta) R +
eta A and (1 - eta) R + eta A'. Advanced joint convexity (Balle, Barthe and Gaboardi
2018, Theorem 2) and then joint convexity over y and B give

    H_eps(M || M') <= eta E_{K | K >= 1} H_eps0(N(K x) || (1 - beta) N(sum over B of y) + beta N(K x')),

without the terms that are the same in all of them. Given K, that is `fixed_size`'s
bound with all distances K times as long: a cohort of fixed size at rate eta with noise
z / K. So the dominating pair releases K, which has its law given K >= 1, together with
`fixed_size`'s pair for that K. Balle et al.'s Theorem 10 is the same for replace-one.

The low end comes from the data set where all others contribute 0. There the release is
K times x plus noise, which is the mixture of `poisson` for b units of rate 1/n that are
zeroed together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.stats import binom

from dploss.compositions import LARGEST, RoundLaw, Stage, upper_end
from dploss.gaussian import Schedule, gaussian_epsilon, joint_of
from dploss.groups import known_draws_epsilon, squares_of_binomials
from dpsum.accounting.accountant import REACH, Events
from dpsum.accounting.analyses import fixed_size, poisson
from dpsum.sampling import Sampler, Sampling

# Numbers of draws that leave less noise than this for each draw count as infinite
# losses.
_LEAST_EACH = 0.04


class _Told:
    """Privacy loss of one round that also releases the unit's number of draws.

    It is a mixture of one law for each number of draws, weighted by the number's
    probability. Numbers without a law count as infinite losses (`missing`).
    """

    def __init__(self, laws: Sequence[tuple[float, RoundLaw]], missing: float) -> None:
        self._laws = laws
        self.missing = missing + sum(weight * law.missing for weight, law in laws)

    def tails(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tails of the mixture.

        Its relative error is at most the largest of its parts.
        """
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
        """Return the range of the mixture; each part may lose its share of the mass."""
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
    """Return the probability that a unit is drawn in a round."""
    return -math.expm1(draws * math.log1p(-1 / units)) if units > 1 else 1.0


@lru_cache(maxsize=256)
def _laws(
    z: float, units: int, draws: int, adjacency: str, mass: float
) -> tuple[RoundLaw, ...]:
    """Return the dominating pair of one round, in each order."""
    eta = _ever(units, draws)
    parts: list[list[tuple[float, RoundLaw]]] = [[], []]
    count = 1
    while (
        count <= draws
        and z / count >= _LEAST_EACH
        and binom.sf(count - 1, draws, 1 / units) / eta > mass / 4
    ):
        weight = float(binom.pmf(count, draws, 1 / units)) / eta
        for order, law in enumerate(fixed_size.pairs(z / count, eta, adjacency)):
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
    """Return a proven upper bound on epsilon, for both orders.

    Args:
        schedule: (z, rounds) pairs with z > 0 the noise over the threshold, for
            replace-one too; empty: no release.
        units: n, the number of units that draws are from.
        draws: b, the number of draws in a round.
        delta: in (0, 1).
        adjacency: "zero-out" or "replace-one".
    """
    rate = 1 / units
    moves = REACH[adjacency]
    poisson.check(schedule, rate, delta)
    if not schedule:
        return 0.0
    stage = Stage(
        schedule,
        _ever(units, draws),
        lambda z, mass: _laws(z, units, draws, adjacency, mass),
        moves=moves,
    )
    # If the draws are public, the releases are composed Gaussians.
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
    """Return a proven lower bound on epsilon; arguments as in `upper_epsilon`.

    It is exact for one data set: all others contribute 0. Under replace-one they
    contribute -1 and the unit 1 or -1, so that the unit moves the sum by 2.
    """
    if not schedule:
        return 0.0
    schedule = tuple((z / REACH[adjacency], count) for z, count in schedule)
    if units == 1:
        return gaussian_epsilon(
            sum(count / z**2 for z, count in schedule) ** -0.5 / draws, delta
        )
    return poisson.lower_epsilon(schedule, 1 / units, delta, draws)


class FixedDrawsAccountant(fixed_size.Redrawn):
    """Accountant of cohorts drawn from all units with replacement."""

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
        """Return the multiplier where there is one unit: every draw is that unit."""
        if int(events.sampling["clients"]) > 1:
            return None
        return joint_of(events.schedule) / int(events.sampling["cohort"])

    def check(self, sampling: Sampler) -> None:
        """Check the sampler: the cohort is a whole number and may exceed the clients."""
        numbers = Sampling.from_mapping(sampling)
        self.check_whole(numbers, "clients", "cohort", "rounds")
        self.check_numbers(numbers)

    def drawn(self, sampling: Sampling) -> tuple[float, ...]:
        return int(sampling["clients"]), int(sampling["cohort"])
