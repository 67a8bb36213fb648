"""The privacy of Poisson participation: each client is in each round with probability q, independently.

One round is dominated, under add-or-remove and zero-out alike, by P = (1 - q) N(0, z^2) + q N(1, z^2) against
Q = N(0, z^2), in both directions. Where k clients that take part independently are zeroed together (`uses`: the
clients that use one image), N of them come, N ~ Binomial(k, q), their contributions add up to a vector of norm at most
N, and the pair is the mixture of Gaussians P = sum_n P(N = n) N(n, z^2) against Q (Choquette-Choo et al., Privacy
Amplification for Matrix Mechanisms, 2024, Corollary 4.7: vectors may be replaced by bounds of their norms). It is
attained where all k point the same way. Two accountants:

- Renyi (the divergences that dp-accounting has, order by order), with the moments accountant's conversion;
- the privacy loss distribution: the loss of a round is put on a grid and rounds are convolved in `grid_sums`.
  Upper end: each loss is split between its grid neighbours so that E_Q dP/dQ is kept in each cell
  (Doroshenko et al., Connect the Dots, 2022). Lower end: rounded down on a finer grid. dp-accounting does the
  same composition; here it is fast enough for every round, and has a lower end (the tests compare the two).
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, log_ndtr, xlog1py, xlogy

from dpsum.accounting.gaussian import gaussian_delta, gaussian_epsilon, guess_epsilon
from dpsum.accounting.grid_sums import LOSS, SHARP, GridVariable, UpperTail, crossing, raised
from dpsum.accounting.round_loss import RoundLaw, RoundLoss
from dpsum.accounting.schedule import Schedule

# Share of delta that may be spent on cutting the loss's tail.
CUT = 1e-4
LOWER_CELLS = 1 << 20
MANY_ROUNDS = 2000
# The delta for which a whole curve's grid is made.
SMALL = 1e-6
# Below this noise losses leave the range of floating point, and the ceiling of composed Gaussians is given.
LEAST_NOISE = 0.2


@lru_cache(maxsize=4096)
def _renyi(noise_multiplier: float, rate: float, orders: tuple[float, ...]) -> np.ndarray:
    if all(isinstance(order, int) for order in orders):
        return _renyi_whole(noise_multiplier, rate, tuple(int(order) for order in orders))
    if rate in (0.0, 1.0):
        return np.array([rate * order / (2 * noise_multiplier**2) for order in orders])
    return np.array([_log_moment(noise_multiplier, rate, order) / (order - 1) for order in orders])


def _log_moment(noise_multiplier: float, rate: float, order: float) -> float:
    """log E_Q (P/Q)^order (Mironov et al. 2019, Section 3.3); infinity where its series is not summed in time.

    It is dp-accounting's `_compute_log_a` to the bit, without what importing that package loads: a second a training.
    """
    z, log_q, log_rest = noise_multiplier, math.log(rate), math.log1p(-rate)
    if float(order).is_integer():
        order, total = int(order), -math.inf
        for i in range(order + 1):
            chosen = _log_choose(order, i) + i * log_q + (order - i) * log_rest
            total = _log_add(total, chosen + (i * i - i) / (2 * (z**2)))
        return total
    # The integral to either side of where both densities are equal, each a series.
    middle = z**2 * math.log(1 / rate - 1) + 0.5
    below = above = last_below = last_above = -math.inf
    for i in range(1000):
        choose, j = _log_choose(order, i), order - i
        tail_below = math.log(0.5) + (math.log(2) + log_ndtr(-((i - middle) / (math.sqrt(2) * z)) * 2**0.5))
        tail_above = math.log(0.5) + (math.log(2) + log_ndtr(-((middle - j) / (math.sqrt(2) * z)) * 2**0.5))
        term_below = choose + i * log_q + j * log_rest + (i * i - i) / (2 * (z**2)) + tail_below
        term_above = choose + j * log_q + i * log_rest + (j * j - j) / (2 * (z**2)) + tail_above
        below, above = _log_add(below, term_below), _log_add(above, term_above)
        total = _log_add(below, above)
        if term_below < last_below and term_above < last_above and max(term_below, term_above) < total - 30:
            return total
        last_below, last_above = term_below, term_above
    return math.inf


def _log_choose(n: float, k: float) -> float:
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def _log_add(x: float, y: float) -> float:
    less, more = min(x, y), max(x, y)
    return more if less == -math.inf else math.log1p(math.exp(less - more)) + more


@lru_cache(maxsize=16)
def _binomials(rate: float, orders: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """log of C(alpha, k) (1 - q)^(alpha - k) q^k for each order and k, -inf beyond; and the k."""
    alpha = np.array(orders, dtype=float)[:, None]
    k = np.arange(max(orders) + 1, dtype=float)[None, :]
    inside = k <= alpha
    rest = np.where(inside, alpha - k, 0.0)
    logs = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(rest + 1) + xlogy(k, rate) + xlog1py(rest, -rate)
    return np.where(inside, logs, -np.inf), k


def _renyi_whole(noise_multiplier: float, rate: float, orders: tuple[int, ...]) -> np.ndarray:
    """The same for whole orders, by the sum that defines it (Mironov et al. 2019, Section 3.3), all at once."""
    logs, k = _binomials(rate, orders)
    terms = logs + (k * k - k) / (2 * noise_multiplier**2)
    # As scipy's logsumexp, without what that costs beside the sum: noise that decays asks thousands of times.
    top = terms.max(axis=1)
    return (top + np.log(np.exp(terms - top[:, None]).sum(axis=1))) / (np.array(orders) - 1.0)


def renyi(noise_multiplier: float, rate: float, orders: Sequence[float]) -> np.ndarray:
    """Renyi divergences of one round, an upper end in both directions, at each order."""
    return _renyi(noise_multiplier, rate, tuple(orders))


def epsilon_of(divergences: np.ndarray, orders: Sequence[float], delta: float, *, tight: bool) -> float:
    """From Renyi divergences to epsilon: Mironov's conversion, or the tighter one of Canonne et al."""
    alphas = np.asarray(orders, dtype=float)
    found = divergences - math.log(delta) / (alphas - 1.0)
    if tight:
        found = found + np.log1p(-1.0 / alphas) - np.log(alphas) / (alphas - 1.0)
    return max(float(np.min(found)), 0.0)


def renyi_epsilon(schedule: Schedule, rate: float, delta: float, orders: Sequence[float]) -> float:
    """Upper end by Renyi divergences and eps = rdp + log(1/delta) / (alpha - 1) (Mironov 2017, Prop. 3).

    This is what TensorFlow Privacy's moments accountant printed when the papers were written.
    """
    divergences = np.sum([count * renyi(z, rate, orders) for z, count in schedule], axis=0)
    return epsilon_of(divergences, orders, delta, tight=False)


class _Grid:
    """The loss of one round on a grid: at one end, in one direction, with what was cut off its top."""

    def __init__(self, step_law: RoundLaw, step: float, mass: float, *, upper: bool) -> None:
        low, high = step_law.range(mass)
        first = math.floor(low / step)
        losses = (first + np.arange(math.ceil(high / step) - first + 1)) * step
        *both, off = step_law.tails(losses)
        lean = 1 + off if upper else np.maximum(1 - off, 0.0)
        tail, other = (np.minimum(values * lean, 1.0) for values in both)
        inside = np.maximum(tail[:-1] - tail[1:], 0.0)
        weights = np.zeros(len(losses))
        self.infinite = 0.0
        if upper:
            ratio, moved = np.exp(losses), -1.0 / math.expm1(-step)
            # With n, m the cell's mass under the first and second law: right = (n - e^l m) / (1 - e^-step).
            right = (inside - ratio[:-1] * (other[:-1] - other[1:])) * moved
            # Each leaning term is off by at most twice its error; `other` may have left the range of numbers.
            slack = 4 * np.maximum(off[:-1], off[1:]) * (tail[:-1] + ratio[:-1] * other[:-1]) * moved
            slack += 1e-300 * ratio[:-1]
            right = np.clip(right + slack, 0.0, inside)
            weights[:-1] += inside - right
            weights[1:] += right
            weights[0] += max(1.0 - tail[0], 0.0)
            self.infinite = float(tail[-1]) + step_law.missing
        else:
            weights[:-1] = inside
        self.variable = GridVariable(first=first, weights=weights, step=step)


@lru_cache(maxsize=64)
def _grid(z: float, rate: float, step: float, mass: float, upper: bool, add: bool, uses: int = 1) -> _Grid:
    return _Grid(RoundLoss(z, rate, add, uses, mass), step, mass, upper=upper)


class _Composition:
    """One end of delta over eps, for a whole schedule in one direction, sharp near one eps."""

    def __init__(self, grids: Sequence[tuple[_Grid, int]], *, upper: bool, near: float) -> None:
        self._upper = upper
        self._tail = UpperTail([(grid.variable, count) for grid, count in grids], around=near, kernel=LOSS)
        self._infinite = -math.expm1(sum(count * math.log1p(-grid.infinite) for grid, count in grids))

    def delta(self, epsilon: float) -> float:
        """The end of delta at epsilon."""
        value, error = self._tail.value(epsilon)
        if self._upper:
            return value + error + self._infinite
        return 0.0 if math.isinf(value) else max(value - error, 0.0)

    def sharp(self, epsilon: float) -> bool:
        """Whether FFT errors are too small there to matter."""
        value, error = self._tail.value(epsilon)
        return error <= SHARP * value


def _scale(schedule: Schedule) -> tuple[int, float, float]:
    """Rounds, the noise multiplier of all rounds as one Gaussian, and the least noise multiplier."""
    rounds = sum(count for _, count in schedule)
    joint = sum(count / z**2 for z, count in schedule) ** -0.5
    return rounds, joint, min(z for z, _ in schedule)


def _cut_mass(rounds: int, delta: float) -> float:
    """What may be cut off a round's loss: in powers of two, so that many rounds and deltas share a grid."""
    return CUT * 2.0 ** (math.floor(math.log2(delta)) - (rounds - 1).bit_length())


def _check(schedule: Schedule, rate: float, delta: float, uses: int) -> None:
    counts = any(not 0 < z < math.inf or n < 1 for z, n in schedule) or uses < 1
    if not 0 < rate <= 1 or not 0 < delta < 1 or counts:
        raise ValueError("Poisson accounting needs 0 < q <= 1, 0 < delta < 1, z > 0, counts >= 1 and uses >= 1")


def _spacing(schedule: Schedule, rate: float, uses: int) -> float:
    """A small part of the typical loss of the quietest round: the upper end's error falls with its square."""
    most = max(z for z, _ in schedule)
    typical = rate * (uses * math.expm1(min(most**-2, 50.0))) ** 0.5
    return float(np.clip(0.05 * typical, 1e-7, 1e-3 if uses == 1 else 4e-3))


@lru_cache(maxsize=4096)
def upper_epsilon(schedule: Schedule, rate: float, delta: float, uses: int = 1) -> float:
    """A proved upper end of epsilon, for both directions of add-or-remove.

    Args:
        schedule: (z, rounds) pairs with z > 0; empty means nothing was released.
        rate: q in (0, 1].
        delta: in (0, 1).
        uses: k >= 1, how many clients are zeroed together (or added, or removed).
    """
    _check(schedule, rate, delta, uses)
    if not schedule:
        return 0.0
    rounds, joint, least = _scale(schedule)
    # Sampling can only help (joint convexity), so composed Gaussians are a ceiling, and reached at q = 1.
    ceiling = gaussian_epsilon(joint / uses, delta)
    if rate == 1.0 or least < LEAST_NOISE:
        return ceiling
    step, mass = _spacing(schedule, rate, uses), _cut_mass(rounds, delta)

    def grids(add: bool) -> list[tuple[_Grid, int]]:
        return [(_grid(z, rate, step, mass, True, add, uses), count) for z, count in schedule]

    epsilon = crossing(
        lambda near: _Composition(grids(False), upper=True, near=near),
        delta=delta,
        start=_guess(least, rate, rounds, delta, uses),
        ceiling=ceiling,
        upper=True,
    )
    # Removing costs more than adding (Zhu, Dong and Wang 2022, for eps >= 0); looked at all the same.
    return raised(epsilon, ceiling, lambda at: _Composition(grids(True), upper=True, near=at).delta(at) <= delta)


def upper_deltas(schedule: Schedule, rate: float, epsilons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Upper ends of delta by removal and by addition at each epsilon >= 0, sharp where they are not small.

    Args:
        schedule, rate: as in `upper_epsilon`, not empty.
        epsilons: float64 [n].
    """
    _check(schedule, rate, SMALL, 1)
    rounds, joint, least = _scale(schedule)
    if rate == 1.0 or least < LEAST_NOISE:
        ceiling = np.array([gaussian_delta(joint, float(epsilon)) for epsilon in epsilons])
        return ceiling, ceiling
    step, mass = _spacing(schedule, rate, 1), _cut_mass(rounds, SMALL)
    removal, addition = (
        _Composition([(_grid(z, rate, step, mass, True, add), count) for z, count in schedule], upper=True, near=0.0)
        for add in (False, True)
    )
    found = [[curve.delta(float(epsilon)) for epsilon in epsilons] for curve in (removal, addition)]
    return np.array(found[0]), np.array(found[1])


def _guess(noise_multiplier: float, rate: float, rounds: int, delta: float, uses: int) -> float:
    """A place to start from: for several clients at once that of one Gaussian with the root mean square count."""
    if uses == 1:
        return guess_epsilon(noise_multiplier, rate, rounds, delta)
    square = uses * rate * (1.0 - rate) + (uses * rate) ** 2
    loud = gaussian_epsilon(noise_multiplier / (rounds * square) ** 0.5, delta)
    return max(guess_epsilon(noise_multiplier, min(uses * rate, 0.5), rounds, delta), loud)


@lru_cache(maxsize=256)
def lower_epsilon(schedule: Schedule, rate: float, delta: float, uses: int = 1) -> float:
    """A proved lower end of epsilon (by removal), arguments as in `upper_epsilon`."""
    _check(schedule, rate, delta, uses)
    upper = upper_epsilon(schedule, rate, delta, uses)
    if not schedule or rate == 1.0 or upper == 0.0:
        return upper
    rounds, _, least = _scale(schedule)
    if least < LEAST_NOISE:
        return 0.0
    step, mass = fine_spacing(((schedule, rate),), delta, upper, uses), _cut_mass(rounds, delta)
    return crossing(
        lambda near: _Composition(
            [(_grid(z, rate, step, mass, False, False, uses), count) for z, count in schedule], upper=False, near=near
        ),
        delta=delta,
        start=upper,
        ceiling=upper,
        upper=False,
    )


def fine_spacing(stages: Sequence[tuple[Schedule, float]], delta: float, upper: float, uses: int = 1) -> float:
    """The grid of a lower end of all stages, schedules and rates, whose upper end is known."""
    rounds = sum(_scale(schedule)[0] for schedule, _ in stages)
    mass, spans = _cut_mass(rounds, delta), []
    for schedule, rate in stages:
        low, high = RoundLoss(_scale(schedule)[2], rate, False, uses, mass).range(mass)
        spans.append(high - low)
    # Rounding down costs about half a step a round: 4e-4 in all; for very many rounds, and for several clients at once,
    # where epsilon is large, a part of epsilon.
    slack = 8e-4
    if rounds > MANY_ROUNDS:
        slack = 1.6e-3 * rounds / MANY_ROUNDS
    if rounds > 4 * MANY_ROUNDS or uses > 1:
        alone = uses == 1 and sum(len(schedule) for schedule, _ in stages) == 1
        share = 2e-3 if rounds <= MANY_ROUNDS else 8e-3 if alone else 3e-2
        slack = max(slack, share * upper)
    typical = min(_spacing(schedule, rate, uses) for schedule, rate in stages)
    return max(min(slack / rounds, typical), max(spans) / LOWER_CELLS)
