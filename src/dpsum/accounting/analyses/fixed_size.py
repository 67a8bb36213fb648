"""Privacy of fixed-size cohorts: each round's cohort is a uniform set of b of n units.

In units of the threshold, a unit in the cohort moves the sum by x with |x| <= 1, and q
= b/n. Unlike under Poisson participation, a unit in the cohort replaces another unit,
so that the sum moves by up to 2 where the unit is drawn, also under zero-out adjacency.

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

import dataclasses
import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp, ndtri

from dploss.compositions import (
    LARGEST,
    RoundLaw,
    Stage,
    Tails,
    fine_spacing,
    lower_end,
    upper_curve,
)
from dploss.fine_brackets import best_upper_end
from dploss.gaussian import (
    FUNCTION,
    ROUNDING,
    Bracket,
    Rounded,
    Schedule,
    exact_bracket,
    gaussian_deltas,
    gaussian_epsilon,
    grouped,
)
from dploss.groups import (
    group_epsilon,
    known_draws_epsilon,
    squares_of_hypergeometrics,
)
from dploss.round_loss import RoundLoss, normal_tail
from dpsum.accounting.accountant import (
    EPSILONS,
    REACH,
    Accountant,
    ComposedAccountant,
    Curve,
    Events,
)
from dpsum.accounting.analyses import poisson
from dpsum.accounting.image_level import ImageUse
from dpsum.sampling import Sampling

ZERO_OUT = "zero-out"
REPLACE_ONE = "replace-one"
_LEAST_NOISE_APART = 0.05
"""Noise multiplier below which the low end is Poisson's alone."""


@dataclasses.dataclass(frozen=True)
class _Pulled:
    """Losses above 0 of the pair P against Q of one round under zero-out.

    P = (1 - q) N(0, z^2) + q N(2, z^2) and Q = (1 - q) N(0, z^2) + q N(1, z^2). The
    loss log dP/dQ is above 0 where x > 3/2, and grows there. With y = exp((x - 1/2) /
    z^2) and c = exp(-1/z^2),

        dP/dQ = (1 - q + q c y^2) / (1 - q + q y) = e^l  where  c y^2 - e^l y = (1/q - 1) (e^l - 1).

    If `turned`, the losses are those of Q against P, below 0.
    """

    missing: ClassVar[float] = 0.0
    z: float
    q: float
    turned: bool = False

    def tails(self, losses: np.ndarray) -> Tails:
        """See `compositions.RoundLaw`."""
        if self.turned:
            x, off = self.where(-losses)
            sign = -1.0
        else:
            x, off = self.where(losses)
            sign = 1.0
        nobody, nobody_off = normal_tail(x, off, 0.0, self.z, sign)
        at_one, at_one_off = normal_tail(x, off, 1.0, self.z, sign)
        at_two, at_two_off = normal_tail(x, off, 2.0, self.z, sign)
        absent = (1 - self.q) * nobody
        zeroed = absent + self.q * at_one
        present = absent + self.q * at_two
        share = np.maximum(at_one_off, at_two_off)
        share = np.maximum(share, nobody_off) + 4 * ROUNDING
        if self.turned:
            return zeroed, present, share
        return present, zeroed, share

    def where(self, losses: np.ndarray) -> Rounded:
        """Return the x > 3/2 of a loss >= 0 of P against Q, with an error bound."""
        square = self.z**2
        least = np.maximum(losses, 0.0)
        odds = 1 / self.q - 1
        factor = 4 * math.exp(-1 / square) * odds
        rise = -np.expm1(-least)
        inside = factor * np.exp(-least) * rise
        root = np.sqrt(1 + inside)
        rest = np.log((1 + root) / 2)
        x = 1.5 + square * (least + rest)
        # `inside` is off by four functions and as many products, of which its root has half.
        logs_off = 4 * FUNCTION * (1 + rest) + 4 * ROUNDING * least
        return x, square * logs_off + 4 * ROUNDING * x

    def loss(self, x: float) -> float:
        """Return log dP/dQ at x."""
        log_q = math.log(self.q)
        log_rest = math.log1p(-self.q)
        shift_one = (x - 0.5) / self.z**2
        shift_two = (2 * x - 2) / self.z**2
        log_present = np.logaddexp(log_rest, log_q + shift_two)
        log_zeroed = np.logaddexp(log_rest, log_q + shift_one)
        return float(log_present - log_zeroed)

    def range(self, mass: float, most: float = LARGEST) -> tuple[float, float]:
        reach = -float(ndtri(mass)) * self.z
        if self.turned:
            low = min(self.loss(1.5 + reach), most)
            return -low, 0.0
        high = min(self.loss(2.0 + reach), most)
        return 0.0, high


@dataclasses.dataclass(frozen=True)
class _Dominating:
    """The dominating pair of one round in one order.

    It has positive losses from one pair, negative ones from another, and the rest at 0.
    """

    missing: ClassVar[float] = 0.0
    positive: RoundLaw
    negative: RoundLaw

    def tails(self, losses: np.ndarray) -> Tails:
        at = int(np.searchsorted(losses, 0.0))
        first_negative, second_negative, off_negative = self.negative.tails(losses[:at])
        first_positive, second_positive, off_positive = self.positive.tails(losses[at:])
        first = np.concatenate((first_negative, first_positive))
        second = np.concatenate((second_negative, second_positive))
        off = np.concatenate((off_negative, off_positive))
        return first, second, off

    def range(self, mass: float, most: float = LARGEST) -> tuple[float, float]:
        low, _ = self.negative.range(mass, most)
        _, high = self.positive.range(mass, most)
        return min(low, 0.0), high


@dataclasses.dataclass(frozen=True)
class _OneDataSet:
    """Lower bounds on the tails of all losses of `_Pulled`'s pair.

    The pair belongs to one data set, in which x = 1 and all others are -1. A loss l
    below 0 is exceeded outside the roots of c y^2 - e^l y + (1/q - 1) (1 - e^l), and
    everywhere if there are no roots. Rounding errors only widen the interval between
    the roots.
    """

    missing: ClassVar[float] = 0.0
    pair: _Pulled

    def tails(self, losses: np.ndarray) -> Tails:
        pair = self.pair
        is_negative = losses < 0
        negative_losses = np.minimum(losses, 0.0)
        ratio = np.exp(negative_losses)
        c = math.exp(-1 / pair.z**2)
        odds = 1 / pair.q - 1
        free = odds * -np.expm1(negative_losses)
        product = 4 * c * free
        slack = 8 * FUNCTION * (ratio**2 + product)
        spread = ratio**2 - product + slack
        root = np.sqrt(np.maximum(spread, 0.0))
        top = ratio + root
        with np.errstate(divide="ignore"):
            lower_log = np.log(2 * free / top)
            upper_log = np.log(top / (2 * c))
        lower, lower_off = self._point(lower_log)
        upper, upper_off = self._point(upper_log)
        right, right_off = pair.where(losses)
        upper = np.where(is_negative, upper, right)
        upper_off = np.where(is_negative, upper_off, right_off)
        lower = np.where(is_negative, lower, -np.inf)
        lower_off = np.where(is_negative, lower_off, 0.0)
        chances = np.zeros(len(losses))
        for mean, share in ((0.0, 1 - pair.q), (2.0, pair.q)):
            left_tail = normal_tail(lower, lower_off, mean, pair.z, -1.0)
            right_tail = normal_tail(upper, upper_off, mean, pair.z, 1.0)
            left_chance = _at_least(left_tail)
            right_chance = _at_least(right_tail)
            chances += share * (left_chance + right_chance)
        has_no_root = is_negative & (spread < 0)
        chances = np.where(has_no_root, 1.0, chances)
        chances = chances * (1 - 8 * ROUNDING)
        chances = np.minimum.accumulate(chances)  # rounding must not make a tail rise
        return chances, chances, np.zeros(len(losses))

    def _point(self, log: np.ndarray) -> Rounded:
        """Return the x of a root from its logarithm, with a bound on its error."""
        square = self.pair.z**2
        log_off = 8 * FUNCTION + FUNCTION * np.abs(log)
        off = square * log_off + 4 * ROUNDING * (1 + square)
        return 0.5 + square * log, off

    def range(self, mass: float, most: float = LARGEST) -> tuple[float, float]:
        # The least of (1 - q + q c y^2) / (1 - q + q y) is above 1 - q.
        low = math.log1p(-self.pair.q)
        _, high = self.pair.range(mass, most)
        return low, high


def _at_least(tail: Rounded) -> np.ndarray:
    """Return a lower bound on a tail."""
    chance, off = tail
    return chance * np.maximum(1 - off, 0.0)


@lru_cache(maxsize=256)
def pairs(z: float, rate: float, adjacency: str) -> tuple[RoundLaw, ...]:
    """Return the dominating pairs of one round in each order.

    Under replace-one both orders have the same pair.
    """
    deviation = z / REACH[adjacency]
    removed = RoundLoss(deviation, rate, add=False)
    added = RoundLoss(deviation, rate, add=True)
    if adjacency == REPLACE_ONE:
        return (_Dominating(removed, added),)
    present = _Dominating(_Pulled(z, rate), added)
    zeroed = _Dominating(removed, _Pulled(z, rate, turned=True))
    return present, zeroed


def _stage(schedule: Schedule, rate: float, adjacency: str = ZERO_OUT) -> Stage:
    return Stage(
        schedule,
        rate,
        lambda z, mass: pairs(z, rate, adjacency),
        moves=REACH[adjacency],
    )


@lru_cache(maxsize=4096)
def upper_epsilon(
    schedule: Schedule, rate: float, delta: float, adjacency: str = ZERO_OUT
) -> float:
    """Return a proven upper bound on epsilon, for both orders.

    Args:
        schedule: (z, rounds) pairs with z > 0 the noise over the threshold, for
            replace-one too; empty: no release.
        rate: q = b/n in (0, 1].
        delta: in (0, 1).
        adjacency: "zero-out" or "replace-one".
    """
    poisson.check(schedule, rate, delta)
    stage = _stage(schedule, rate, adjacency)
    if not schedule:
        return 0.0
    # With public cohorts the releases are composed Gaussians (joint convexity), and at
    # q = 1 the cohorts are public.
    ceiling = gaussian_epsilon(stage.joint / stage.moves, delta)
    if rate == 1.0:
        return ceiling
    return best_upper_end(stage, delta, ceiling)


def upper_deltas(
    schedule: Schedule, rate: float, epsilons: np.ndarray
) -> list[np.ndarray]:
    """Return upper bounds on delta under zero-out at each epsilon >= 0.

    They are for present against zeroed, and for the reverse order.
    """
    poisson.check(schedule, rate, 0.5)
    stage = _stage(schedule, rate)
    ceiling = gaussian_deltas(stage.joint, epsilons)
    if stage.no_grid:
        return [ceiling, ceiling]
    curves = upper_curve(stage, epsilons)
    return [np.minimum(deltas, ceiling) for deltas in curves]


@lru_cache(maxsize=256)
def lower_epsilon(
    schedule: Schedule, rate: float, delta: float, adjacency: str = ZERO_OUT
) -> float:
    """Return a proven lower bound on epsilon; arguments as in `upper_epsilon`.

    It is that of one data set in all rounds. Under zero-out the unit contributes 1 and
    all others -1. Where all contribute the same, the pair is Poisson's, whose low end
    is taken if it is larger. Under replace-one the unit's 1 becomes the -1 of all
    others.
    """
    wide = tuple((z / 2, count) for z, count in schedule)
    if REACH[adjacency] == 2.0:
        return poisson.lower_epsilon(wide, rate, delta)
    all_same = poisson.lower_epsilon(schedule, rate, delta)
    if not schedule or rate == 1.0:
        return all_same
    least = min(z for z, _ in schedule)
    if least < _LEAST_NOISE_APART:
        return all_same
    upper = upper_epsilon(schedule, rate, delta)
    wide_stage = poisson.stage_of(wide, rate)
    step = fine_spacing([wide_stage], delta, upper)
    stage = Stage(schedule, rate, lambda z, mass: (_OneDataSet(_Pulled(z, rate)),))
    opposed = lower_end([stage], delta, upper=upper, step=step)
    return max(all_same, opposed)


_NODES = np.polynomial.legendre.leggauss(16)


@lru_cache(maxsize=64)
def renyi(noise_multiplier: float, rate: float, orders: tuple[int, ...]) -> np.ndarray:
    """Return upper bounds on the Renyi divergence of one round under zero-out.

    They are at each order a > 1 the greater of both directions, for the dominating
    pairs: E (dP/dQ)^(a - 1) under P, by Gauss-Legendre quadrature on panels of half a
    deviation. The quadrature error is far below the margin that is added (the
    integrands are analytic on every panel).
    """
    z = noise_multiplier
    q = rate
    alphas = np.array(orders)
    if rate == 1.0:
        return alphas / (2 * z**2)
    nodes, weights = _NODES
    farthest = 2.0 * max(orders) + 40.0 * z
    panel = 0.5 * z
    deviation = z * math.sqrt(2 * math.pi)
    log_scale = math.log(deviation)

    def log_density(x: np.ndarray, mean: float) -> np.ndarray:
        """Return the log density of (1 - q) N(0) + q N(mean)."""
        exponent = -(x**2) / (2 * z**2)
        normal = exponent - log_scale
        shift = mean * (x - mean / 2) / z**2
        log_absent = math.log1p(-q)
        log_present = math.log(q) + shift
        return normal + np.logaddexp(log_absent, log_present)

    def half(start: float, first: float, second: float) -> tuple[np.ndarray, ...]:
        """Return logarithms of masses above `start`, and losses there."""
        count = math.ceil((farthest - start) / panel)
        middles = start + panel * (np.arange(count) + 0.5)
        x = (middles[:, None] + 0.25 * z * nodes).ravel()
        log_weights = np.log(0.25 * z * weights)
        logs = np.tile(log_weights, count)
        log_first = log_density(x, first)
        log_second = log_density(x, second)
        return log_first + logs, log_first - log_second

    present = np.hstack((half(1.5, 2.0, 1.0), half(0.5, 0.0, 1.0)))
    zeroed = np.hstack((half(0.5, 1.0, 0.0), half(1.5, 1.0, 2.0)))
    present_moments = [_log_moment(present, order) for order in orders]
    zeroed_moments = [_log_moment(zeroed, order) for order in orders]
    log_moments = np.max([present_moments, zeroed_moments], axis=0)
    divergences = log_moments / (alphas - 1.0)
    return np.asarray(divergences * (1 + 1e-9) + 1e-10)


def _log_moment(halves: np.ndarray, order: int) -> float:
    """Return log E e^((a - 1) L) from log masses and losses, float64 [2, n].

    The losses are on either side of 0, and the rest of the mass is at 0.
    """
    logs, losses = halves
    powers = (order - 1) * losses
    if float(np.max(logs + powers)) > 500.0:
        log_total = logsumexp(logs + powers)
        return float(np.logaddexp(log_total, 0.0))
    masses = np.exp(logs)
    small = masses * np.expm1(np.minimum(powers, 1.0))
    large = np.exp(logs + powers) - masses
    excess = np.where(powers < 1, small, large)
    return math.log1p(float(excess.sum()))


class Redrawn(ComposedAccountant):
    """Base of accountants of cohorts in which a unit replaces another.

    Replace-one adjacency has its own analysis. The account uses the privacy loss
    distribution of the dominating pair. Rounds may have different noise.
    """

    width_reason = Accountant.width_reason

    def replaced(self, events: Events, delta: float) -> Bracket:
        z = self.gaussian(events)
        if z is not None:
            return exact_bracket(z / 2, delta)
        low = self.end(events, delta, upper=False, adjacency=REPLACE_ONE)
        high = self.end(events, delta, upper=True, adjacency=REPLACE_ONE)
        return low, high


class FixedSizeAccountant(Redrawn):
    """Accountant of uniformly random cohorts of fixed size."""

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
        """Check that the cohort is a whole number of units, and its share the rate."""
        super().check_numbers(sampling)
        self.check_whole(sampling, "cohort")

    def curve(self, events: Events) -> Curve:
        schedule = grouped(events.schedule, least=True)
        deltas = upper_deltas(schedule, events.rate, EPSILONS)
        return Curve(EPSILONS, *deltas)

    def renyi(self, events: Events, orders: Sequence[int]) -> np.ndarray:
        schedule = grouped(events.schedule, least=True)
        divergences = [
            count * renyi(z, events.rate, tuple(orders)) for z, count in schedule
        ]
        return np.sum(divergences, axis=0)

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        uses = use.most
        done = len(events.multipliers)
        rate = events.rate
        sampling = events.sampling
        least = min(events.multipliers)
        most = max(events.multipliers)
        cohort = int(sampling["cohort"])
        units = int(sampling[self.units_of(sampling)])
        z = self.gaussian(events)
        if z is not None:
            return exact_bracket(z / uses, delta)
        high_of_one = partial(upper_epsilon, ((least, done),), rate)
        low_schedule = ((most, done),)
        low = lower_epsilon(low_schedule, rate, delta)
        squares = squares_of_hypergeometrics(uses, cohort, units, done)
        known_draws = known_draws_epsilon(*squares, least, delta)
        known_rounds = gaussian_epsilon(least / (uses * done**0.5), delta)
        ceiling = min(known_rounds, known_draws)
        high = group_epsilon(high_of_one, uses, delta, ceiling=ceiling)
        return min(low, high), high
