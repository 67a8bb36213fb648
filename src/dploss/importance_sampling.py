"""Nearly exact privacy of a mixture of correlated log-normals, by importance sampling.

Each unit is in one secret round of T, and what is seen is a Gaussian with G = C^T C /
sigma^2 (`dpsum.accounting.analyses.correlated_balls_and_bins` proves that this pair
dominates): without the unit Q = N(0, I), with it P = f Q,

    f = ((T - t) + sum_{i < t} e^L_i) / T,   L = C^T y / sigma - diag(G) / 2.

**The unit present: delta = E_P (1 - e^eps/f)+.** At delta = 1e-6 draws from P would say
nothing. Drawn is instead from nearly f^a Q for a whole number a. As a power of a sum it
is a mixture of Gaussians over tuples of a rounds: counts n with the weight a!/prod n_i!
e^E(n), E = (n^T G n - n^T diag G)/2, around y = C n / sigma. Counts are drawn of G' >=
G in place of G, for which the total weight T^a M is found by a dynamic program: G' = r
+ the greatest product g_j rho_(j+1) ... rho_i of a chain beside the diagonal, its state
n_i rho-summed and rounded up. As E' >= E, each draw of

    M e^(E - E') f^(1 - a) (1 - e^eps/f)+   is in [0, M e^(-(a - 1) eps) (1 - 1/a)^(a - 1) / a],

whose end is the bound of delta by the Renyi divergence of order a (Canonne, Kamath and
Steinke 2020): a few times delta, so that the empirical Bernstein bound (Maurer and
Pontil 2009, Theorem 4) is sharp after tens of thousands of draws, where draws from P
would take 1/delta times as many. A poor G' costs draws and never soundness.

**The unit absent: delta = E_Q (1 - e^eps f)+.** With u = 1/T on each round that was
run, Jensen has log f >= u^T L, so that the event f < e^-eps lies in a half-space, at
distance tau = (eps - u^T diag(G)/2) / (u^T G u)^1/2 from 0. Draws of Q moved by tau
towards it have densities bounded there by e^(-tau^2/2).

**What is claimed.** Both bounds fail with a chance over this file's own draws, which
are made from a fixed seed that no data and no plan has chosen. An end is one of a fixed
list of epsilons. Bounds hold at all of them at once, but for a chance of DOUBT x delta /
LOOKS for each pair, which is an encoder with its rounds and delta. Any number of looks
at one pair is one look: the draws are the same, and whichever epsilons a search reads,
they are of the list. DOUBT x delta is kept of delta, for LOOKS pairs.

**A search over pairs.** A calibration looks at a pair for each z, and its answers choose
the next. Epsilon falls in z. Let z0 be the least z that is enough. Only "enough" at a z
below z0 is wrong; a bound that is too high only costs noise. Take the first wrong
answer. Every z below z0 that was asked before was answered "not enough". If a z of z0 or
above had been, all later ones would be above it, and none could be answered wrongly. So
all answers before were the true ones, and the first wrong answer is at a z that the
search asks if all answers are true: one of a fixed list that no draws have chosen. Of
`calibrate` that list has at most 32, and of a search for rounds it is shorter. A
training that stops before its budget is exceeded can be wrong at one number of rounds
alone, the first beyond the budget. Rounds of a plan are counted in eighths. So a run's
own looks are fewer than LOOKS. What this covers is the epsilon of the budget. A smaller
one that an account prints for a z so found is covered as for a z that was given.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy.special import gammaln

from dploss.gaussian import Bracket
from dploss.grid_sums import log_sum

DOUBT = 1e-3
LOOKS = 100
MOST = 256
"""Largest number of rounds for which this is fast enough."""

_SEED = 20261124
_ORDERS = (3, 5, 8, 12, 16, 22, 30, 44)
_LEVELS = 160
_DRAWS = 100_000
_MOST_DRAWS = 4_000_000
_STEPS = 8192
_PER_OCTAVE = 1024
_ROUNDING = 1e-9
_NOTHING = 1e-13
"""Share of the largest overlap below which an overlap counts as zero: inverting an
encoder leaves such rounding errors.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class _Chain:
    """The chain G' = r + g_j rho_(j+1) ... rho_i for j < i, with G on the diagonal."""

    common: float
    start: np.ndarray
    keep: np.ndarray
    excess: float

    @classmethod
    def over(cls, gram: np.ndarray, common: float) -> _Chain:
        """Return the least chain above G, which is entrywise nonnegative.

        `common` is the part r that all entries of the chain share.
        """
        size = len(gram)
        rest = np.maximum(gram - common, 0.0)
        rest = np.tril(rest, -1)
        # No column may rise again below its start: a chain of factors up to 1 could not follow.
        from_below = rest[::-1]
        highest_below = np.maximum.accumulate(from_below, axis=0)
        highest_below = highest_below[::-1]
        rest = np.tril(highest_below, -1)
        # The ratio of two roundings would be a factor for all columns: the common part
        # covers them.
        least = _NOTHING * np.max(gram, initial=0.0)
        is_rounding = (rest > 0) & (rest < least)
        if is_rounding.any():
            rest[is_rounding] = 0.0
            common = common + float(least)
        start = np.zeros(size)
        keep = np.zeros(size)
        cover = np.zeros(size)
        excess = 0.0
        for row in range(1, size):
            before = row - 1
            held = cover[:before]
            ratios = np.zeros(before)
            np.divide(rest[row, :before], held, out=ratios, where=held > 0)
            factor = ratios.max(initial=0.0) * (1 + 1e-12)
            keep[row] = factor
            cover[:before] *= factor
            start[before] = rest[row, before]
            cover[before] = start[before]
            surplus = cover[:row] + common - gram[row, :row]
            excess += float(surplus.sum())
        return cls(common, start, keep, excess)


class _Counts:
    """Law of the counts of rounds in tuples of `order`, with weight e^E'.

    It has the total weight, and draws counts.
    """

    def __init__(
        self, chain: _Chain, diagonal: np.ndarray, rounds: int, order: int
    ) -> None:
        self.order = order
        self._done = len(diagonal)
        self._own = (diagonal - chain.common) / 2
        self._chain = chain
        self._count = np.arange(order + 1)
        top = order * float(chain.start.max(initial=0.0))
        levels = 1
        if top:
            levels = _LEVELS
        shares = np.linspace(0.0, 1.0, levels)
        self._levels = top * shares**2
        self._values = [self._idle_values(rounds)]
        for index in reversed(range(self._done)):
            terms = self._terms(index, self._values[-1])
            self._values.append(log_sum(terms))
        self._values.reverse()
        log_weight = self._values[0][0, order]
        log_factorial = gammaln(order + 1.0)
        log_tuples = order * math.log(rounds)
        self.log_total = float(log_weight + log_factorial - log_tuples)

    def _idle_values(self, rounds: int) -> np.ndarray:
        """Return the log weight of the remaining counts in rounds that were not run.

        It is float64 [levels, order + 1].
        """
        log_idle = -math.inf
        if rounds > self._done:
            log_idle = math.log(rounds - self._done)
        idle_logs = np.zeros(self.order + 1)
        idle_logs[1:] = self._count[1:] * log_idle
        ran = self.order - self._count
        log_factorials = gammaln(self._count + 1.0)
        common_energy = self._chain.common / 2 * ran * (ran - 1)
        logs = idle_logs - log_factorials + common_energy
        shape = len(self._levels), len(logs)
        return np.broadcast_to(logs, shape)

    def _next(self, index: int, field: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Return the level of the next round's field, rounded up.

        It follows from this round's field and count.
        """
        if index + 1 == self._done or len(self._levels) == 1:
            shape = np.broadcast(field, count).shape
            return np.zeros(shape, dtype=int)
        # rho of round i + 1 is for the columns before i; round i itself starts at g_i.
        kept_field = self._chain.keep[index + 1] * field
        moved = kept_field + self._chain.start[index] * count
        levels = np.searchsorted(self._levels, moved * (1 - 1e-12))
        return np.minimum(levels, len(self._levels) - 1)

    def _terms(self, index: int, values: np.ndarray) -> np.ndarray:
        """Return the log weight of each (level, remaining count, count in this round).

        It is float64 [levels, order + 1, order + 1].
        """
        count = self._count
        levels = self._levels[:, None]
        remaining = count[:, None] - count
        own_energy = self._own[index] * count * (count - 1)
        here = levels * count + own_energy - gammaln(count + 1.0)
        after = self._next(index, levels, count)
        remaining_index = np.maximum(remaining, 0)
        values_after = values[after[:, None, :], remaining_index]
        weights = here[:, None, :] + values_after
        return np.where(remaining >= 0, weights, -np.inf)

    def draw(
        self, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw counts of the run rounds, float64 [size, t], with E', float64 [size]."""
        counts = np.zeros((size, self._done))
        energy = np.zeros(size)
        level = np.zeros(size, dtype=int)
        remaining = np.full(size, self.order)
        for index in range(self._done):
            terms = self._terms(index, self._values[index + 1])
            with np.errstate(invalid="ignore"):
                top = terms.max(axis=2, keepdims=True)
                shares = np.exp(terms - top)
            sums = np.cumsum(shares, axis=2)
            totals = sums[level, remaining, -1]
            uniform = rng.random(size)
            threshold = uniform[:, None] * totals[:, None]
            is_passed = sums[level, remaining] <= threshold
            count = np.minimum(is_passed.sum(axis=1), remaining)
            field = self._levels[level]
            own_energy = self._own[index] * count * (count - 1)
            energy += count * field + own_energy
            counts[:, index] = count
            level = self._next(index, field, count)
            remaining = remaining - count
        ran = counts.sum(axis=1)
        common_energy = self._chain.common / 2 * ran * (ran - 1)
        return counts, energy + common_energy


def _bernstein(values: np.ndarray, most: float, doubt: float) -> Bracket:
    """Return confidence limits of the mean of draws in [0, most].

    Each limit is wrong with probability at most `doubt`.
    """
    size = len(values)
    log = math.log(2 / doubt)
    mean = float(values.mean())
    variance = float(values.var(ddof=1))
    deviation_off = math.sqrt(2 * variance * log / size)
    degrees = 3 * (size - 1)
    range_off = 7 * most * log / degrees
    off = deviation_off + range_off
    low = max(mean - off, 0.0)
    high = min(mean + off, most)
    return low * (1 - _ROUNDING), high * (1 + _ROUNDING)


class Pair:
    """The pair P and Q of one G, with both ends of delta.

    Args:
        encoder, rounds: see `bracket`.
        delta: delta at which epsilon is to be found.
    """

    def __init__(self, encoder: np.ndarray, rounds: int, delta: float) -> None:
        self._encoder = encoder
        self._rounds = rounds
        self._delta = delta
        gram = encoder.T @ encoder
        self._gram = gram
        self._diagonal = np.diag(gram).copy()
        self._doubt = DOUBT * delta / LOOKS / (4 * _STEPS)
        chain = _least_chain(gram)
        first_order, *further_orders = _ORDERS
        self._counts = _Counts(chain, self._diagonal, rounds, first_order)
        least = self._of_renyi(self._counts)
        for order in further_orders:
            counts = _Counts(chain, self._diagonal, rounds, order)
            epsilon = self._of_renyi(counts)
            if epsilon > least:
                break
            if epsilon < least:
                least = epsilon
                self._counts = counts

    def _of_renyi(self, counts: _Counts) -> float:
        """Return epsilon at which the Renyi bound of present against absent is delta.

        This bound needs no draws.
        """
        a = counts.order
        log_power = (a - 1) * math.log1p(-1 / a)
        log_share = log_power - math.log(a)
        log_ratio = counts.log_total + log_share - math.log(self._delta)
        epsilon = log_ratio / (a - 1) * (1 + _ROUNDING)
        return max(epsilon, 0.0)

    @functools.cached_property
    def _present(self) -> tuple[np.ndarray, np.ndarray]:
        """Draws of log f and of log M e^(E - E') f^(1 - a)."""
        bits = np.random.Philox(_SEED)
        rng = np.random.Generator(bits)
        counts, chain_energy = self._counts.draw(_DRAWS, rng)
        logs = np.empty(_DRAWS)
        for rows in self._parts(_DRAWS):
            draws = rows.stop - rows.start
            noise = rng.standard_normal((draws, len(self._gram)))
            moved = counts[rows] @ self._gram + noise @ self._encoder
            logs[rows] = self._log_ratio(moved)
        products = (counts @ self._gram) * counts
        square = products.sum(axis=1)
        energy = square / 2 - counts @ self._diagonal / 2
        energy_below = np.minimum(energy - chain_energy, 0.0)
        power = 1 - self._counts.order
        weight = energy_below + self._counts.log_total + power * logs
        return logs, weight

    def _parts(self, draws: int) -> list[slice]:
        step = max(4_000_000 // len(self._gram), 1)
        return [
            slice(start, min(start + step, draws)) for start in range(0, draws, step)
        ]

    def _log_ratio(self, moved: np.ndarray) -> np.ndarray:
        """Return log f from C^T y / sigma, [n, t]."""
        logs = log_sum(moved - self._diagonal / 2)
        idle_rounds = self._rounds - len(self._gram)
        if idle_rounds > 0:
            logs = np.logaddexp(logs, math.log(idle_rounds))
        return np.asarray(logs - math.log(self._rounds))

    def present(self, epsilon: float) -> Bracket:
        """Return both ends of E_P (1 - e^eps/f)+."""
        logs, weight = self._present
        a = self._counts.order
        log_power = (a - 1) * math.log1p(-1 / a)
        log_scale = self._counts.log_total - (a - 1) * epsilon
        log_most = log_scale + log_power - math.log(a)
        most = math.exp(min(log_most, 600.0))
        is_over = logs > epsilon
        excess = -np.expm1(epsilon - logs[is_over])
        values = np.zeros(len(logs))
        values[is_over] = np.exp(weight[is_over]) * excess
        low, high = _bernstein(values, most, self._doubt)
        return low, min(high, 1.0)

    def absent(self, epsilon: float) -> float:
        """Return an upper bound on E_Q (1 - e^eps f)+."""
        rounds_run = len(self._gram)
        share = np.full(rounds_run, 1 / self._rounds)
        square = float(share @ self._gram @ share)
        root = math.sqrt(square)
        half_variance = float(share @ self._diagonal) / 2
        tau = (epsilon - half_variance) / root
        distance = max(tau, 0.0)
        most = math.exp(-(distance**2) / 2)
        if most <= self._delta / 2:
            return most
        log_doubt = math.log(2 / self._doubt)
        draws_needed = 7 * most * log_doubt / 3 / (0.3 * self._delta)
        if draws_needed > _MOST_DRAWS:
            return 1.0
        bits = np.random.Philox(_SEED + 1)
        rng = np.random.Generator(bits)
        draws = max(int(draws_needed), _DRAWS)
        values = np.empty(draws)
        shift = tau * (self._gram @ share) / root
        for rows in self._parts(draws):
            rows_drawn = rows.stop - rows.start
            noise = rng.standard_normal((rows_drawn, rounds_run))
            moved = noise @ self._encoder
            projection = moved @ share
            log_weight = tau * projection / root - tau**2 / 2
            weight = np.exp(np.minimum(log_weight, 0.0))
            logs = self._log_ratio(moved - shift)
            log_ratio = np.minimum(epsilon + logs, 0.0)
            excess = -np.expm1(log_ratio)
            values[rows] = weight * excess
        _, high = _bernstein(values, most, self._doubt)
        return high


def _least_chain(gram: np.ndarray) -> _Chain:
    """Return the chain above G with the least excess, of a few values of `common`."""
    below_diagonal = np.tril_indices(len(gram), -1)
    overlaps = gram[below_diagonal]
    commons = np.zeros(1)
    if len(overlaps):
        shares = np.linspace(0, 1, 9)
        quantiles = np.quantile(overlaps, shares)
        commons = np.unique(quantiles)
    chains = [_Chain.over(gram, float(common)) for common in (0.0, *commons)]
    return min(chains, key=lambda chain: chain.excess)


def bracket(encoder: np.ndarray, rounds: int, delta: float) -> Bracket:
    """Return both ends of epsilon; the high end is infinite where no draws show it.

    Args:
        encoder: |C| over sigma of the run rounds, float64 [t, t].
        rounds: T, the number of planned rounds.
        delta: in (0, 1).
    """
    values = np.ascontiguousarray(encoder, dtype=float).tobytes()
    return _bracket(values, len(encoder), rounds, delta)


@functools.lru_cache(maxsize=512)
def _bracket(encoder: bytes, done: int, rounds: int, delta: float) -> Bracket:
    matrix = np.frombuffer(encoder).reshape(done, done)
    pair = Pair(matrix, rounds, delta)
    remaining_delta = delta * (1 - DOUBT)

    def epsilon_at(step: int) -> float:
        return float(2.0 ** (4 - step / _PER_OCTAVE))

    low = 0
    high = _STEPS
    while high - low > 1:
        middle = (low + high) // 2
        _, delta_end = pair.present(epsilon_at(middle))
        if delta_end <= remaining_delta:
            low = middle
        else:
            high = middle
    step = low
    # Far from the epsilon that the draws are made for, the low end is useless: it is
    # searched next to the high end.
    low_end = 0.0
    last = min(step + _PER_OCTAVE, _STEPS)
    for near in range(step, last, _PER_OCTAVE // 128):
        epsilon = epsilon_at(near)
        delta_end, _ = pair.present(epsilon)
        if delta_end > delta:
            low_end = epsilon
            break
    stride = max(_PER_OCTAVE // 32, 1)
    while step > 0 and pair.absent(epsilon_at(step)) > remaining_delta:
        step -= stride
    if step <= 0:
        return low_end, math.inf
    return low_end, epsilon_at(step)
