"""Rank test of canaries' scores against their coins: a lower bound on the leak.

The bound is the least leaking mechanism of a family that the test does not refute.

Canaries are in separate coordinates, and the release of each is drawn independently of
the others. So a mechanism with the trade-off curve f shows of each canary at most a
function of one draw of f's canonical pair (Dong, Roth and Su, Gaussian Differential
Privacy, 2022). Given these draws the coins are independent, each with a posterior. Of
all orders of the canaries that do not depend on the coins, the order by posterior makes

    T = sum of a_r over the ranks r at which a canary was present,     a_1 >= a_2 >= ... fixed beforehand,

stochastically largest: swapping two neighbours that are out of order moves probability
from the lesser weight to the greater. So T's law under the canonical pair bounds it
under every mechanism with this curve, and a Monte Carlo test of it is exact (Barnard
1963): with B draws it refutes where T is above all but (1 - confidence) (B + 1) - 1 of
them.

The weights are log-likelihood ratios by rank under the ledger's own noise. By Neyman
and Pearson this is the most powerful test against a mechanism that reveals nothing, and
almost the most powerful against the others of the family. Its result on draws of the
ledger's own canonical pair is that of an ideal attacker: the audit's score cannot be
better.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
import scipy
from scipy.special import expit, logit, ndtr

from dploss.gaussian import Schedule
from dpsum.accounting.accountant import Accountant, Curve, Events
from dpsum.audit.bounds import LARGEST_EPSILON, Bound
from dpsum.audit.ideal import Drawn, chance_of_such
from dpsum.sampling import Sampler

NAME = "f-DP by ranks"
DRAWS = 399
"""B, the number of draws. A test at 95 % compares with the twentieth largest draw. A
higher confidence uses more draws.
"""

IDEALS = 4
"""Number of simulated experiments of an ideal attacker on the ledger's own mechanism,
with which the audit's is compared.
"""

_CELLS = 1 << 14
_SMALLEST = 0.05
"""Smallest noise multiplier for which sampled mechanisms have an account."""
_PRECISION = 1e-3


class Family:
    """Family of the ledger's mechanism with its noise divided by a leak.

    A leak of 1 is the ledger's own mechanism.

    Args:
        accountant: accountant of the mechanism.
        schedule: z of the rounds.
        sampler: the ledger's sampler.
    """

    def __init__(
        self, accountant: Accountant, schedule: Schedule, sampler: Sampler
    ) -> None:
        self._accountant = accountant
        self._schedule = schedule
        self._sampler = sampler
        self.name = f"{sampler['kind']} with any noise"
        self.largest = min(z for z, _ in schedule) / _SMALLEST
        self.posteriors = functools.cache(self._posteriors)

    def _divided(self, leak: float) -> Events:
        return Events.planned(
            tuple((z / leak, count) for z, count in self._schedule), self._sampler
        )

    def epsilon(self, leak: float, delta: float) -> float:
        """Return a proven upper bound on epsilon at delta."""
        if leak <= 0:
            return 0.0
        return self._accountant.high(self._divided(leak), delta)

    def _posteriors(self, leak: float) -> np.ndarray:
        """Return `posteriors` of the trade-off curve."""
        if leak <= 0:
            return np.full(_CELLS, 0.5)
        curve = self._accountant.curve(self._divided(leak))
        return posteriors(curve)


def posteriors(deltas: Curve) -> np.ndarray:
    """Return posteriors of a unit's presence, by the rank of its likelihood ratio.

    The prior is a fair coin, and the largest ratio comes first. With u the share of all
    units above a threshold and t that of present units, t/2 + a/2 = u with a the false
    alarms. A line t <= e^eps a + delta is t <= 2 p u + (1 - p) delta at p = e^eps /
    (1 + e^eps), so that the slope of the least of all lines of the trade-off curve is
    twice the posterior.

    Returns:
        The largest posterior of each cell of [0, 1], float64 [cells], not increasing.
    """
    chance = expit(deltas.epsilons)
    lines = sorted(
        [
            *zip(chance, (1 - chance) * deltas.present, strict=True),
            # (1 - a) <= e^eps (1 - t) + delta, as a line for t.
            *zip(
                1 - chance, (2 * chance - 1) + (1 - chance) * deltas.absent, strict=True
            ),
        ],
        reverse=True,
    )
    envelope: list[tuple[float, float]] = []
    starts: list[float] = []
    for p, height in lines:
        start = 0.0
        while envelope and not math.isinf(height):
            last_chance, top = envelope[-1]
            if last_chance > p:
                start = (height - top) / (2 * (last_chance - p))
            elif height < top:
                start = 0.0
            else:
                start = math.inf
            if start > starts[-1]:
                break
            envelope.pop()
            starts.pop()
            start = 0.0
        if math.isfinite(height) and math.isfinite(start):
            envelope.append((p, height))
            starts.append(start)
    cells = np.arange(_CELLS) / _CELLS
    segments = np.searchsorted(starts, cells, side="right") - 1
    chances = np.array([p for p, _ in envelope])
    return chances[segments]


class RankTest:
    """Tests of m canaries, with common random draws for all mechanisms of a family."""

    def __init__(
        self,
        family: Family,
        canaries: int,
        *,
        confidence: float,
        generator: np.random.Generator,
    ) -> None:
        self._family = family
        # Sorted uniform numbers, without a sort.
        doubt = 1 - confidence
        least = math.ceil(10 / doubt - 1e-9) - 1
        draws = max(DRAWS, least)
        gaps = generator.exponential(size=(draws, canaries + 1))
        steps = np.cumsum(gaps, axis=1)
        uniform = steps[:, :-1] / steps[:, -1:]
        self._cells = (uniform * _CELLS).astype(np.int16)
        self._coins = generator.random((draws, canaries), dtype=np.float32)
        rank = math.floor(doubt * (draws + 1) + 1e-9)
        self._place = -rank
        areas = np.cumsum(family.posteriors(1.0))
        area = np.concatenate([[0.0], areas]) / _CELLS
        edges = np.linspace(0, 1, canaries + 1)
        cell_edges = np.linspace(0, 1, _CELLS + 1)
        area_at_edges = np.interp(edges, cell_edges, area)
        chances = np.diff(area_at_edges) * canaries
        margin = 0.5 / canaries
        chances = np.clip(chances, margin, 1 - margin)
        self.weights = logit(chances).astype(np.float32)
        total = float(np.abs(self.weights).sum())
        self._rounding = 1e-5 * total
        self.critical = functools.cache(self._critical)

    def draws(self, leak: float) -> np.ndarray:
        """Return the statistic T of draws from a member of the family, float64 [B].

        The values are sorted.
        """
        chances = self._family.posteriors(leak).astype(np.float32)
        statistics = []
        for row, cells in zip(self._coins, self._cells, strict=True):
            present = row < chances.take(cells)
            statistics.append(self.statistic(present))
        return np.sort(statistics)

    def statistic(self, present: np.ndarray) -> float:
        """Return T.

        Args:
            present: whether each canary was present, bool [m], by descending score.
        """
        values = present.astype(np.float32)
        return float(np.dot(values, self.weights))

    def chance_of_as_little(self, observed: float, drawn: Sequence[float]) -> float:
        """Return the approximate probability that the ledger's mechanism has a lower T.

        T is a sum over thousands of canaries, so that a normal law applies. The next T
        differs from the mean of K draws of the best attacker, with the same coins, by
        (1 + 1/K) times T's variance.

        Args:
            observed: T of the audit.
            drawn: the K draws of T.
        """
        deviation = max(float(self.draws(1.0).std()), self._rounding) * math.sqrt(
            1 + 1 / len(drawn)
        )
        score = (observed - np.mean(drawn)) / deviation
        return float(ndtr(score))

    def _critical(self, leak: float) -> float:
        ordered = self.draws(leak)
        return float(ordered[self._place]) + self._rounding

    def refuted(self, observed: float) -> float:
        """Return the largest leak that T = `observed` refutes; 0 if it refutes none."""
        if observed <= self.critical(0.0):
            return 0.0
        low = 0.0
        high = min(0.25, self._family.largest)
        while observed > self.critical(high):
            if high == self._family.largest:
                return high
            low = high
            high = min(2 * high, self._family.largest)
        scale = _PRECISION * high
        at = float(
            scipy.optimize.brentq(
                lambda leak: self.critical(leak) - observed,
                low,
                high,
                xtol=scale,
                rtol=scale,
            )
        )
        while at > low and observed <= self.critical(at):
            at = max(at - scale, low)
        return at


def rank_test(
    scores: np.ndarray,
    coins: np.ndarray,
    family: Family,
    *,
    delta: float,
    confidence: float,
    generator: np.random.Generator,
    ideal: Drawn | None = None,
) -> Bound:
    """Return the bound of the rank test, with the bound of an ideal attacker.

    The ideal attacker reaches its bound with as many coins in half of all audits.

    Args:
        scores: float [m], higher for present. They must not depend on the coins
            directly.
        coins: fair coins, bool [m].
        family: family of mechanisms.
        delta: delta at which epsilon is stated.
        confidence: confidence of the bound.
        generator: draws of the test.
        ideal: draws scores of the best attacker, from which the probabilities of as
            little leak, and of such scores, are computed; None: they are not.
    """
    test = RankTest(family, len(coins), confidence=confidence, generator=generator)

    def statistic(scores: np.ndarray) -> float:
        order = np.argsort(-scores, kind="stable")
        return test.statistic(coins[order])

    observed = statistic(scores)
    ledger_draws = test.draws(1.0)
    leak = test.refuted(observed)
    shown = test.refuted(float(np.median(ledger_draws)))
    reason = ""
    if leak <= 0:
        reason = "no leak is told from chance"
    if leak == family.largest:
        reason = (
            "the largest leak that is looked at is refuted: the true bound is higher"
        )
    chances = {}
    if ideal is not None:
        drawn = [ideal(generator) for _ in range(IDEALS)]
        chances["as_little"] = test.chance_of_as_little(
            observed, [statistic(ideal_scores) for ideal_scores in drawn]
        )
        chances["such_scores"] = chance_of_such(scores, coins, drawn)
    return Bound(
        name=NAME,
        epsilon=min(family.epsilon(leak, delta), LARGEST_EPSILON),
        assumes=(
            f"the trade-off curve is one of the family: {family.name}; canaries are"
            " released independently"
        ),
        numbers={
            "coins": len(coins),
            "present": int(coins.sum()),
            "leak": leak,
            # Approximate, for correct code: T is a sum over thousands.
            "chance_of_as_much": float(
                ndtr((ledger_draws.mean() - observed) / ledger_draws.std())
            ),
        },
        reason=reason,
        ideal=min(family.epsilon(shown, delta), LARGEST_EPSILON),
        chances=chances,
    )
