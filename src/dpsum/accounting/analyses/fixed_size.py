"""The privacy of fixed-size cohorts: each round's cohort is b of n units, every such
set with the same chance.

In units of the threshold, a unit in the cohort moves the sum by x with |x| <= 1, and q
= b/n. Unlike under Poisson participation, whoever is in the cohort takes another unit's
place there, so that the sum moves by up to 2 where the unit comes in, also under
zero-out adjacency.

**One round.** Let T be a set of b - 1 of the other units, j one more of them, both
drawn uniformly, s the sum over T and N(m) a normal law of mean m and deviation z.
Without the unit the release is R = E N(s + x_j), with it A = E N(s + x), and with the
unit's contribution changed to x' (zero, or any other) A' = E N(s + x'). The two worlds
are M = (1 - q) R + q A and M' = (1 - q) R + q A'. For eps >= 0 advanced joint convexity
(Balle, Barthe and Gaboardi 2018, Theorem 2), with e^eps = 1 + q (e^eps0 - 1) and beta =
e^(eps - eps0), says

    H_eps(M || M') = q H_eps0(A || (1 - beta) R + beta A')
                  <= q E H_eps0(N(s + x) || (1 - beta) N(s + x_j) + beta N(s + x')),

the second line by joint convexity, since R, A and A' are means over the same (T, j).
Inside stands one normal law against a mixture of two whose means are |x - x_j| and |x -
x'| away. It is largest where both are as far as they can be, on one side of one line
(Choquette-Choo et al. 2024): under the first law the ratio of densities is a mean of
two log-normal variables, a divergence is the mean of a convex function of it, and such
a sum is largest in convex order where both rise with one normal variable, and grows
with the deviations. So, up to a shift and a sign:

- zero-out, the unit present against zeroed (x' = 0): distances 2 and 1, reached by x =
  1 and x_j = -1: (1 - q) N(0) + q N(2) against (1 - q) N(0) + q N(1);
- zero-out, zeroed against present (x = 0): distances 1 and 1, reached where all units
  contribute the same: (1 - q) N(0) + q N(1) against N(0), which is Poisson's pair;
- replace-one: distances 2 and 2, reached by x = 1 and x' = x_j = -1: (1 - q) N(0) + q
  N(2) against N(0), the bound of Balle, Barthe and Gaboardi's Theorem 9 (and of Wang,
  Balle and Kasiviswanathan 2019 for Renyi divergences).

Each is reached, so these are the exact trade-off curves of one round at eps >= 0.

**Several rounds.** Composition takes the curve at eps < 0 too, and that is the one of
the other order turned around: H_eps(M || M') = 1 - e^eps + e^eps H_-eps(M' || M). Its
two halves belong to two data sets. A supremum of convex curves is convex, so there is a
dominating pair with just this curve (Zhu, Dong and Wang 2022): losses above 0 are
distributed as the first pair's, losses below 0 as those of the other order's pair
turned around, the rest is at 0. It is composed over rounds, also where contributions
follow earlier releases: the high end. That no one data set has both halves leaves a
gap: the low end is of one data set in all rounds. Taking its pair for the high end
(Poisson's account at twice the sensitivity, for replace-one) is wrong (Lebeda, Regehr,
Kamath and Steinke 2024): whoever chooses the second round's data by the first release
is above it (`tests/dpsum/accounting/test_fixed_size.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import logsumexp, ndtri

from dpsum.accounting.accountant import EPSILONS, Curve, Events
from dpsum.accounting.analyses import poisson
from dpsum.accounting.compositions import (
    LARGEST,
    Composed,
    RoundLaw,
    Stage,
    fine_spacing,
    lower_end,
    upper_curve,
)
from dpsum.accounting.fine_brackets import best_upper_end
from dpsum.accounting.gaussian import (
    FUNCTION,
    ROUNDING,
    Bracket,
    Schedule,
    exact_bracket,
    gaussian_deltas,
    gaussian_epsilon,
    grouped,
)
from dpsum.accounting.groups import (
    group_epsilon,
    known_draws_epsilon,
    squares_of_hypergeometrics,
)
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.round_loss import RoundLoss, normal_tail
from dpsum.sampling import Sampling

ZERO_OUT = "zero-out"
REPLACE_ONE = "replace-one"
_LEAST_NOISE_APART = 0.05
"""Below this noise the low end is Poisson's alone."""


class _Pulled:
    """P = (1 - q) N(0, z^2) + q N(2, z^2) against Q = (1 - q) N(0, z^2) + q N(1, z^2),
    where log dP/dQ is above 0.

    That is where x > 3/2, and dP/dQ grows there. With y = exp((x - 1/2) / z^2) and c =
    exp(-1/z^2),

        dP/dQ = (1 - q + q c y^2) / (1 - q + q y) = e^l  where  c y^2 - e^l y = (1/q - 1) (e^l - 1).

    Where `turned`, of the losses of Q against P, where they are below 0.
    """

    missing = 0.0

    def __init__(
        self, noise_multiplier: float, rate: float, *, turned: bool = False
    ) -> None:
        self.z = noise_multiplier
        self.q = rate
        self.turned = turned

    def tails(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `compositions.RoundLaw`."""
        x, off = self.where(-losses if self.turned else losses)
        sign = -1.0 if self.turned else 1.0
        (nobody, *offs), zeroed_tails, present_tails = (
            normal_tail(x, off, mean, self.z, sign) for mean in (0.0, 1.0, 2.0)
        )
        present, zeroed = (
            (1 - self.q) * nobody + self.q * tail
            for tail, _ in (present_tails, zeroed_tails)
        )
        share = (
            np.maximum(np.maximum(zeroed_tails[1], present_tails[1]), offs[0])
            + 4 * ROUNDING
        )
        return (zeroed, present, share) if self.turned else (present, zeroed, share)

    def where(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The x > 3/2 of a loss >= 0 of P against Q, and how far it may be off."""
        square = self.z**2
        least = np.maximum(losses, 0.0)
        inside = (
            4
            * math.exp(-1 / square)
            * (1 / self.q - 1)
            * np.exp(-least)
            * -np.expm1(-least)
        )
        rest = np.log((1 + np.sqrt(1 + inside)) / 2)
        x = 1.5 + square * (least + rest)
        # `inside` is off by four functions and as many products, of which its root has
        # half.
        return (
            x,
            square * (4 * FUNCTION * (1 + rest) + 4 * ROUNDING * least)
            + 4 * ROUNDING * x,
        )

    def loss(self, x: float) -> float:
        """log dP/dQ at x."""
        rest = math.log1p(-self.q)
        shift_one = (x - 0.5) / self.z**2
        two = (2 * x - 2) / self.z**2
        return float(
            np.logaddexp(rest, math.log(self.q) + two)
            - np.logaddexp(rest, math.log(self.q) + shift_one)
        )

    def range(self, mass: float, most: float = LARGEST) -> tuple[float, float]:
        reach = -float(ndtri(mass)) * self.z
        if self.turned:
            return -min(self.loss(1.5 + reach), most), 0.0
        return 0.0, min(self.loss(2.0 + reach), most)


class _Dominating:
    """The dominating pair of one round in one order: losses above 0 of one pair, below
    0 of another, the rest at 0.
    """

    missing = 0.0

    def __init__(self, above: RoundLaw, below: RoundLaw) -> None:
        self._above = above
        self._below = below

    def tails(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        at = int(np.searchsorted(losses, 0.0))
        halves_of_tails = zip(
            self._below.tails(losses[:at]), self._above.tails(losses[at:]), strict=True
        )
        first, second, off = (np.concatenate(halves) for halves in halves_of_tails)
        return first, second, off

    def range(self, mass: float, most: float = LARGEST) -> tuple[float, float]:
        lower = self._below.range(mass, most)
        upper = self._above.range(mass, most)
        return min(lower[0], 0.0), upper[1]


class _OneDataSet:
    """Lower ends of the tails of all losses of `_Pulled`'s pair: one data set, in which
    x = 1 and all others are -1.

    A loss l below 0 is passed outside the roots of c y^2 - e^l y + (1/q - 1) (1 - e^l),
    and everywhere where it has none. Everything that is rounded is taken to make the
    interval between them wider.
    """

    missing = 0.0

    def __init__(self, noise_multiplier: float, rate: float) -> None:
        self._pair = _Pulled(noise_multiplier, rate)

    def tails(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pair = self._pair
        square = pair.z**2
        ratio = np.exp(np.minimum(losses, 0.0))
        c = math.exp(-1 / pair.z**2)
        free = (1 / pair.q - 1) * -np.expm1(np.minimum(losses, 0.0))
        spread = ratio**2 - 4 * c * free + 8 * FUNCTION * (ratio**2 + 4 * c * free)
        top = ratio + np.sqrt(np.maximum(spread, 0.0))
        with np.errstate(divide="ignore"):
            logs = np.log(2 * free / top), np.log(top / (2 * c))
        lower, upper = (0.5 + square * log for log in logs)
        moved = [
            square * (8 * FUNCTION + FUNCTION * np.abs(log))
            + 4 * ROUNDING * (1 + square)
            for log in logs
        ]
        right, off = pair.where(losses)
        upper = np.where(losses < 0, upper, right)
        off = np.where(losses < 0, moved[1], off)
        lower = np.where(losses < 0, lower, -np.inf)
        moved[0] = np.where(losses < 0, moved[0], 0.0)
        chances = np.zeros(len(losses))
        for mean, share in ((0.0, 1 - pair.q), (2.0, pair.q)):
            sides = (
                normal_tail(lower, moved[0], mean, pair.z, -1.0),
                normal_tail(upper, off, mean, pair.z, 1.0),
            )
            chances += share * sum(
                tail * np.maximum(1 - error, 0.0) for tail, error in sides
            )
        chances = np.where((losses < 0) & (spread < 0), 1.0, chances) * (
            1 - 8 * ROUNDING
        )
        chances = np.minimum.accumulate(chances)  # rounding must not make a tail rise
        return chances, chances, np.zeros(len(losses))

    def range(self, mass: float, most: float = LARGEST) -> tuple[float, float]:
        # The least of (1 - q + q c y^2) / (1 - q + q y) is above 1 - q.
        return math.log1p(-self._pair.q), self._pair.range(mass, most)[1]


@lru_cache(maxsize=256)
def pairs(z: float, rate: float, adjacency: str, mass: float) -> tuple[RoundLaw, ...]:
    """The dominating pairs of one round in each order; under replace-one both orders
    have the same pair.
    """
    if adjacency == REPLACE_ONE:
        half = z / 2
        return (
            _Dominating(
                RoundLoss(half, rate, False, 1, mass),
                RoundLoss(half, rate, True, 1, mass),
            ),
        )
    present = _Dominating(_Pulled(z, rate), RoundLoss(z, rate, True, 1, mass))
    return present, _Dominating(
        RoundLoss(z, rate, False, 1, mass), _Pulled(z, rate, turned=True)
    )


def moved(adjacency: str) -> float:
    """By how many thresholds a unit moves the sum at most; ValueError for an adjacency
    without an analysis.
    """
    if adjacency not in (ZERO_OUT, REPLACE_ONE):
        raise ValueError(
            f"fixed-size cohorts are accounted for under {ZERO_OUT} and {REPLACE_ONE},"
            f" not {adjacency}"
        )
    return 2.0 if adjacency == REPLACE_ONE else 1.0


def _stage(schedule: Schedule, rate: float, adjacency: str = ZERO_OUT) -> Stage:
    return Stage(
        schedule,
        rate,
        lambda z, mass: pairs(z, rate, adjacency, mass),
        moves=moved(adjacency),
    )


@lru_cache(maxsize=4096)
def upper_epsilon(
    schedule: Schedule, rate: float, delta: float, adjacency: str = ZERO_OUT
) -> float:
    """A proved upper end of epsilon, for both orders.

    Args:
        schedule: (z, rounds) pairs with z > 0 the noise over the threshold, for
            replace-one too; empty means nothing.
        rate: q = b/n in (0, 1].
        delta: in (0, 1).
        adjacency: "zero-out" or "replace-one".
    """
    poisson.check(schedule, rate, delta)
    stage = _stage(schedule, rate, adjacency)
    if not schedule:
        return 0.0
    # The cohorts told, the releases are composed Gaussians (joint convexity), and at q
    # = 1 they are known.
    ceiling = gaussian_epsilon(stage.joint / stage.moves, delta)
    return ceiling if rate == 1.0 else best_upper_end(stage, delta, ceiling)


def upper_deltas(
    schedule: Schedule, rate: float, epsilons: np.ndarray
) -> list[np.ndarray]:
    """Upper ends of delta under zero-out at each epsilon >= 0: present against zeroed,
    and the other way.
    """
    poisson.check(schedule, rate, 0.5)
    stage = _stage(schedule, rate)
    ceiling = gaussian_deltas(stage.joint, epsilons)
    curves = [ceiling, ceiling] if stage.no_grid else upper_curve(stage, epsilons)
    return [np.minimum(deltas, ceiling) for deltas in curves]


@lru_cache(maxsize=256)
def lower_epsilon(
    schedule: Schedule, rate: float, delta: float, adjacency: str = ZERO_OUT
) -> float:
    """A proved lower end of epsilon: of one data set in all rounds; arguments as in
    `upper_epsilon`.

    Under zero-out the unit contributes 1 and all others -1; where all contribute the
    same the pair is Poisson's, whose low end is taken if it is larger. Under
    replace-one the unit's 1 becomes the -1 of all others.
    """
    wide = tuple((z / 2, count) for z, count in schedule)
    if moved(adjacency) == 2.0:
        return poisson.lower_epsilon(wide, rate, delta)
    all_same = poisson.lower_epsilon(schedule, rate, delta)
    if not schedule or rate == 1.0 or min(z for z, _ in schedule) < _LEAST_NOISE_APART:
        return all_same
    upper = upper_epsilon(schedule, rate, delta)
    step = fine_spacing([poisson.stage_of(wide, rate)], delta, upper)
    opposed = Stage(schedule, rate, lambda z, mass: [_OneDataSet(z, rate)])
    return max(all_same, lower_end([opposed], delta, upper=upper, step=step))


_NODES = np.polynomial.legendre.leggauss(16)


@lru_cache(maxsize=64)
def renyi(noise_multiplier: float, rate: float, orders: tuple[int, ...]) -> np.ndarray:
    """Upper ends of the Renyi divergence of one round under zero-out, the greater of
    both orders', at each order > 1.

    Of the dominating pairs: E (dP/dQ)^(a - 1) under P, by Gauss and Legendre's rule on
    panels of half a deviation. What it is off by is far below the margin that is added
    (the integrands are analytic on every panel).
    """
    z = noise_multiplier
    q = rate
    most = max(orders)
    if rate == 1.0:
        return np.array(orders) / (2 * z**2)
    nodes, weights = _NODES

    def law(x: np.ndarray, mean: float) -> np.ndarray:
        """Return the log density of (1 - q) N(0) + q N(mean)."""
        normal = -(x**2) / (2 * z**2) - math.log(z * math.sqrt(2 * math.pi))
        return normal + np.logaddexp(
            math.log1p(-q), math.log(q) + mean * (x - mean / 2) / z**2
        )

    def half(start: float, first: float, second: float) -> tuple[np.ndarray, ...]:
        """Return logarithms of masses above `start`, and losses there."""
        count = math.ceil((2.0 * most + 40.0 * z - start) / (0.5 * z))
        middles = start + 0.5 * z * (np.arange(count) + 0.5)
        x = (middles[:, None] + 0.25 * z * nodes).ravel()
        logs = np.tile(np.log(0.25 * z * weights), count)
        return law(x, first) + logs, law(x, first) - law(x, second)

    pairs_of_halves = (
        (half(1.5, 2.0, 1.0), half(0.5, 0.0, 1.0)),
        (half(0.5, 1.0, 0.0), half(1.5, 1.0, 2.0)),
    )
    moments = [
        [_log_moment(halves, order) for order in orders] for halves in pairs_of_halves
    ]
    return np.asarray(
        np.max(moments, axis=0) / (np.array(orders) - 1.0) * (1 + 1e-9) + 1e-10
    )


def _log_moment(halves: Sequence[tuple[np.ndarray, ...]], order: int) -> float:
    """log E e^((a - 1) L) from logarithms of masses and losses of either side of 0; the
    rest of the mass is at 0.
    """
    logs, losses = (np.concatenate(sides) for sides in zip(*halves, strict=True))
    powers = (order - 1) * losses
    if float(np.max(logs + powers)) > 500.0:
        return float(np.logaddexp(logsumexp(logs + powers), 0.0))
    masses = np.exp(logs)
    small = masses * np.expm1(np.minimum(powers, 1.0))
    return math.log1p(
        float(np.where(powers < 1, small, np.exp(logs + powers) - masses).sum())
    )


class Redrawn(Composed):
    """Cohorts in which a unit takes another's place, so that replace-one has an
    analysis of its own.

    Accounts by the privacy loss distribution of the dominating pair; rounds of
    different noise are composed as they were.
    """

    def width_reason(self, events: Events, delta: float) -> str:
        return self.width

    def replaced(self, events: Events, delta: float) -> Bracket:
        z = self.gaussian(events)
        if z is not None:
            return exact_bracket(z / 2, delta)
        low, high = (
            self.end(events, delta, upper=upper, adjacency=REPLACE_ONE)
            for upper in (False, True)
        )
        return low, high


class FixedSizeAccountant(Redrawn):
    """Each cohort has the same size, and each such set of units the same chance."""

    pair = "gaussian", "fixed-size"
    records_too = True
    explanation = (
        "each round's cohort is a set of the same size, drawn afresh in secret: whoever"
        " is in it takes another's place; privacy loss distribution, bracketed; the low"
        " end is of one data set in all rounds"
    )
    images = (
        "every client that uses the image contributes zero: the high end by one client"
        " after another or by draws that are told, the low end by one client; the exact"
        " value is not known"
    )
    ends_of = lower_epsilon, upper_epsilon

    width = (
        "the low end is of one data set and the high end of the dominating pair of each"
        " round, and no theory says what lies between"
    )

    def check_numbers(self, sampling: Sampling) -> None:
        """A cohort is of a whole number of units, and its share is the rate."""
        super().check_numbers(sampling)
        self.check_whole(sampling, "cohort")

    def curve(self, events: Events) -> Curve:
        return Curve(
            EPSILONS,
            *upper_deltas(grouped(events.schedule, least=True), events.rate, EPSILONS),
        )

    def renyi(self, events: Events, orders: Sequence[int]) -> np.ndarray:
        schedule = grouped(events.schedule, least=True)
        whole_orders = tuple(map(int, orders))
        return np.sum(
            [count * renyi(z, events.rate, whole_orders) for z, count in schedule],
            axis=0,
        )

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        done = len(events.multipliers)
        rate = events.rate
        sampling = events.sampling
        least = min(events.multipliers)
        cohort = int(sampling["cohort"])
        units = int(sampling[self.units_of(sampling)])
        z = self.gaussian(events)
        if z is not None:
            return exact_bracket(z / use.most, delta)
        low = lower_epsilon(((max(events.multipliers), done),), rate, delta)
        known_draws = known_draws_epsilon(
            *squares_of_hypergeometrics(use.most, cohort, units, done), least, delta
        )
        ceiling = min(
            gaussian_epsilon(least / (use.most * done**0.5), delta), known_draws
        )
        high = group_epsilon(
            lambda share: upper_epsilon(((least, done),), rate, share),
            use.most,
            delta,
            ceiling=ceiling,
        )
        return min(low, high), high
