"""Privacy of balls-and-bins participation: each client is in one secret round of T.

Chua et al., Balls-and-Bins Sampling for DP-SGD (2024): under zero-out adjacency the
releases of rounds 1..t are dominated by the pair

    P = (1 - t/T) N(0, z^2 I) + (1/T) sum_{i <= t} N(e_i, z^2 I),    Q = N(0, z^2 I),

and with X_1..X_t independent log-normals, log X_i ~ N(-1/(2 z^2), 1/z^2), and S their
sum under Q,

    dP/dQ = (1 - t/T) + S/T,
    delta(P||Q) = (1/T)     E (S - K)+,   K = T e^eps  - (T - t),
    delta(Q||P) = (e^eps/T) E (K - S)+,   K = T e^-eps - (T - t).

Both are expectations of a convex function of S, which gives the upper end: putting X on
a grid without moving its mean (each value split between its two neighbours) can only
raise them. The lower end puts X on a finer grid by rounding it away from the tail. Sums
are convolved by FFT in `grid_sums`, whose error is added to the upper and taken from
the lower end. Each (z, T, t, delta) is computed once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp, ndtri

from dploss.fine_brackets import is_wide
from dploss.gaussian import (
    FUNCTION,
    ROUNDING,
    Bracket,
    Rounded,
    gaussian_deltas,
    gaussian_epsilon,
    guess_epsilon,
    upper_tail,
)
from dploss.grid_sums import (
    EXCESS,
    RATIO,
    DeltaEnd,
    GridVariable,
    UpperTail,
    crossing,
    raised,
)
from dploss.groups import (
    group_epsilon,
    known_draws_epsilon,
    squares_of_a_multinomial,
)
from dpsum.accounting.accountant import EPSILONS, ComposedAccountant, Curve, Events
from dpsum.accounting.image_level import ImageUse
from dpsum.sampling import Sampling

# Share of delta that may be spent on cutting the log-normal's own tail. With little
# noise that tail is so long that the grid could not resolve what lies below it, and
# delta so flat that a larger share moves epsilon little.
CUT = 1e-4
CUT_HEAVY = 1e-2
HEAVY = 1.5
# Grid cells (the upper end's error falls with the square of a cell, the lower end's
# with the cell).
UPPER_CELLS = 1 << 13
UPPER_CELLS_ADD = 1 << 12
LOWER_CELLS = 1 << 20
# Range of a quadrature over a normal variable, in deviations.
_REACH = 12.0
# The delta for which a whole curve's grid is made.
SMALL = 1e-6
# Below this noise the log-normal leaves the range of floating point, and the
# one-Gaussian ceiling is given.
LEAST_NOISE = 0.05
# Noise multiplier below which bounds in closed form are computed as well.
LITTLE_NOISE = 0.35
# The grid's cut and tilts are not made for a smaller delta.
LEAST_DELTA = 1e-30
# Share of delta for the probability that more than one X is large.
_NOT_ONE = 1e-3


@dataclass(frozen=True, kw_only=True)
class _LogNormal:
    """X with log X ~ N(-s^2/2, s^2), s = 1/z: mean one."""

    s: float

    def tail(self, at: np.ndarray) -> Rounded:
        """Return P(X > at), with a bound on the relative error."""
        return self._tail(at, self.s / 2)

    def moment(self, at: np.ndarray) -> Rounded:
        """Return E X 1{X > at}, with a bound on the relative error."""
        return self._tail(at, -self.s / 2)

    def _tail(self, at: np.ndarray, shift: float) -> Rounded:
        # log, the division, the sum, and s = 1/z were each rounded.
        with np.errstate(divide="ignore"):
            score = np.log(at) / self.s
        rounding = FUNCTION + 4 * ROUNDING
        off = rounding * (np.abs(score) + self.s)
        return upper_tail(score + shift, off)

    def cut(self, mass: float) -> float:
        """Return the value with E X 1{X > value} = mass."""
        score = ndtri(mass)
        log_value = -self.s * score + self.s**2 / 2
        return float(np.exp(log_value))

    def excess(self, at: float) -> float:
        """Return an upper bound on E (X - at)+."""
        moment, off = self.moment(np.array(at))
        return float(moment * (1 + off))


def _spread(law: _LogNormal, step: float, cut: float, heavier: bool) -> np.ndarray:
    """Return weights of X, truncated at `cut`, on the grid 0, step, 2 step, ...

    Each value is split between its neighbours, so that the mean does not change.
    Weights are rounded up if `heavier`, else down.
    """
    cells = int(np.ceil(cut / step))
    edges = np.arange(cells + 1) * step
    tail, tail_off = law.tail(edges)
    moment, moment_off = law.moment(edges)
    off = np.maximum(tail_off, moment_off)
    sign = 1.0 if heavier else -1.0
    lean = 1 + sign * off
    tail = np.minimum(tail * lean, 1.0)
    moment = moment * lean
    inside = np.maximum(tail[:-1] - tail[1:], 0.0)
    moment_inside = moment[:-1] - moment[1:]
    right = (moment_inside - edges[:-1] * inside) / step
    # Each leaning term is off by at most twice its error, and edge x tail is at most the
    # moment.
    larger_off = np.maximum(off[:-1], off[1:])
    slack = 4 * larger_off * moment[:-1] / step
    right = np.clip(right + sign * slack, 0.0, inside)
    weights = np.zeros(cells + 1)
    weights[:-1] += inside - right
    weights[1:] += right
    weights[-1] += tail[-1]
    weights[0] += 1.0 - tail[0]
    return weights


def _rounded_down(law: _LogNormal, step: float, cut: float) -> np.ndarray:
    """Return weights with each value rounded down to the grid, and at most `cut`.

    The weights are rounded down as well.
    """
    cells = int(np.floor(cut / step))
    edges = np.arange(cells + 1) * step
    tail, off = law.tail(edges)
    tail = tail * (1 - off)
    inside = np.maximum(tail[:-1] - tail[1:], 0.0)
    weights = np.append(inside, tail[-1])
    weights[0] += 1.0 - tail[0]
    return weights


class _Grid:
    """X on a grid for one (z, T, delta): at one end, in one direction."""

    def __init__(
        self,
        noise_multiplier: float,
        rounds: int,
        delta: float,
        upper: bool,
        add: bool,
    ) -> None:
        law = _LogNormal(s=1.0 / noise_multiplier)
        square = min(law.s**2, 500.0)
        square_deviation = rounds * math.expm1(square)
        spread = 30.0 * square_deviation**0.5
        if add:
            # Only sums below K <= T matter, and a sum with one X above 2T is not among them.
            cut = min(law.cut(1e-16), 2.0 * rounds)
            length = min(float(rounds), spread)
            step = max(length, cut) / UPPER_CELLS_ADD
            weights = _spread(law, step, cut, heavier=False)
            first = 1 - len(weights)
            # -X, so that the sums in question are the large ones.
            weights = weights[::-1].copy()
            self.one = GridVariable(first=first, weights=weights, step=step)
            return
        cut_share = CUT
        if law.s > HEAVY:
            cut_share = CUT_HEAVY
        cut = law.cut(cut_share * delta)
        self.excess = law.excess(cut)
        length = min(float(rounds) + cut, spread) + cut
        if upper:
            step = length / UPPER_CELLS
            weights = _spread(law, step, cut, heavier=True)
        else:
            step = length / LOWER_CELLS
            weights = _rounded_down(law, step, cut)
        values = np.arange(len(weights)) * step
        self.one = GridVariable(first=0, weights=weights, step=step)
        self.biased = GridVariable(first=0, weights=values * weights, step=step)


grid_of = lru_cache(maxsize=8)(_Grid)


def removal(
    grid: _Grid, rounds: int, done: int, near: float, *, upper: bool
) -> DeltaEnd:
    """Return one end of delta(P||Q) over eps for one (z, T, t), sharp near one eps.

    E (S - K)+ = t E (1 - K/S)+ with one summand size-biased: relative accuracy also
    where S has a heavy tail (small z).
    """

    def position(epsilon: float) -> float:
        return rounds * math.expm1(epsilon) + done

    parts = [(grid.biased, 1)]
    if done > 1:
        parts.append((grid.one, done - 1))
    tail = UpperTail(parts, around=position(near), kernel=RATIO)
    return DeltaEnd(
        tail, upper=upper, position=position, extra=grid.excess, share=(done, rounds)
    )


def _addition_delta(
    noise_multiplier: float, rounds: int, done: int, delta: float, epsilon: float
) -> float:
    """Return an upper bound on delta(Q||P) at epsilon; `delta` only selects the grid.

    For a large epsilon K is far below a cell of the grid, which then gives no bound.
    There a sum below K has every summand below K, so that (e^eps/T) E (K - S)+ <=
    (e^eps/T) K P(X < K)^t.
    """
    at = rounds * math.expm1(-epsilon) + done
    if at <= 0.0:
        return 0.0
    all_small = _all_small(noise_multiplier, rounds, done, epsilon)
    if all_small <= delta:
        return all_small
    grid = grid_of(noise_multiplier, rounds, delta, True, True)
    parts = [(grid.one, done)]
    tail = UpperTail(parts, around=-at, kernel=EXCESS)
    return _added(tail, rounds, done, epsilon)


def _all_small(
    noise_multiplier: float, rounds: int, done: int, epsilon: float
) -> float:
    """Bound (e^eps/T) K P(X < K)^t from above, for K = T e^-eps - (T - t) > 0."""
    # K was rounded in each of its three operations.
    at = rounds * math.expm1(-epsilon) + done
    at += 2 * FUNCTION * (rounds + done)
    s = 1.0 / noise_multiplier
    score = math.log(at) / s
    rounding = FUNCTION + 4 * ROUNDING
    score_off = rounding * (abs(score) + s)
    shifted = np.array(-score - s / 2)
    tail, tail_off = upper_tail(shifted, score_off)
    chance_below = float(tail * (1 + tail_off))
    chance_below = min(chance_below, 1.0)
    share = math.exp(epsilon) * at / rounds
    share = share * (1 + 4 * FUNCTION)
    share = min(share, 1.0)
    return share * chance_below**done * (1 + 1e-12)


def _addition_fits(
    noise_multiplier: float, rounds: int, done: int, epsilon: float, delta: float
) -> bool:
    """Return whether a proof without a grid gives delta(Q||P) <= delta at epsilon.

    It is 0 where no f is as small as e^-eps. After all rounds f < e^-eps needs every X
    below K = T e^-eps, so that it is at most P(X < K)^T.
    """
    if done < rounds:
        log_least = math.log1p(-done / rounds)
        return log_least > -epsilon * (1 - 1e-12)
    s = 1.0 / noise_multiplier
    log_largest = math.log(rounds) - epsilon
    score = log_largest / s + s / 2
    score_off = 1e-9 * (1 + abs(score))
    log_chance = rounds * float(log_ndtr(score + score_off))
    return log_chance <= math.log(delta)


def _added(tail: UpperTail, rounds: int, done: int, epsilon: float) -> float:
    """Return delta(Q||P) at epsilon, from the tail of -S."""
    at = rounds * math.expm1(-epsilon) + done
    if at <= 0.0:
        return 0.0
    value, error = tail.value(-at)
    return math.exp(epsilon) / rounds * (value + error)


def renyi(
    noise_multiplier: float, rounds: int, done: int, orders: Sequence[int]
) -> np.ndarray:
    """Return Renyi divergences after `done` of `rounds` rounds, at integer orders >= 2.

    They are the greater of both directions. With a = alpha and b = alpha - 1,

        E_Q (dP/dQ)^a  = T^-a a! [u^a] e^((T - t) u) (sum_j E X^j u^j / j!)^t,   E X^j = e^(j (j - 1) / (2 z^2)),
        E_P (dQ/dP)^a  = E_Q (dP/dQ)^-b = T^b / Gamma(b)  integral_0^inf u^(b - 1) e^(-(T - t) u) (E e^(-u X))^t du,

    the first by powers of a series with terms above 0, the second by the trapezoidal
    rule, whose error is far below the margin added here (the integrands are analytic
    and fall off faster than exponentials). Where b is so large against z T that the
    rule would not reach far enough into the log-normal's tail, the second is bounded: a
    mean is at least the geometric mean, so E_Q (dP/dQ)^-b <= e^(t (b/T) (b/T + 1) / (2
    z^2)), which is exact at T = 1.
    """
    _check(noise_multiplier, rounds, done, 0.5)
    alphas = np.array(orders)
    if done == 0:
        return np.zeros(len(alphas))
    most = int(alphas.max())
    log_moments = _series_moments(noise_multiplier, rounds, done, most)
    removed = log_moments[alphas]
    added = [
        _inverse_moment(noise_multiplier, rounds, done, int(order) - 1)
        for order in alphas
    ]
    divergences = np.maximum(removed, added) / (alphas - 1.0)
    return np.asarray(divergences * (1 + 1e-9) + 1e-10)


def _series_moments(
    noise_multiplier: float, rounds: int, done: int, most: int
) -> np.ndarray:
    """Return log E_Q (dP/dQ)^a for a = 0, ..., `most`."""
    j = np.arange(most + 1, dtype=float)
    factorials = gammaln(j + 1)
    log_moments = j * (j - 1) / (2 * noise_multiplier**2)
    power = log_moments - factorials
    if done == rounds:
        total = np.where(j == 0, 0.0, -np.inf)
    else:
        total = j * math.log(rounds - done) - factorials
    exponent = done
    while exponent:
        if exponent & 1:
            total = _product(total, power)
        exponent >>= 1
        if exponent:
            power = _product(power, power)
    log_moments = total + factorials - j * math.log(rounds)
    return np.asarray(log_moments)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the log coefficients of a product of power series, from those of both."""
    indices = np.arange(len(left))
    power = np.subtract.outer(indices, indices)
    is_term = power >= 0
    left_terms = left[np.maximum(power, 0)]
    terms = right[None, :] + left_terms
    terms = np.where(is_term, terms, -np.inf)
    return np.asarray(logsumexp(terms, axis=1))


def _inverse_moment(
    noise_multiplier: float, rounds: int, done: int, power: int
) -> float:
    """Return log E_Q (dP/dQ)^-power, or an upper bound on it."""
    share = power / rounds
    if share / noise_multiplier > _REACH / 3:
        twice_variance = 2 * noise_multiplier**2
        return done * share * (share + 1) / twice_variance
    v, step, laplace = _laplace(noise_multiplier)
    not_run = (rounds - done) * np.exp(v)
    logs = power * v - not_run + done * laplace
    log_integral = float(logsumexp(logs)) + math.log(step)
    log_factorial = float(gammaln(power))
    return log_integral + power * math.log(rounds) - log_factorial


@lru_cache(maxsize=8)
def _laplace(noise_multiplier: float) -> tuple[np.ndarray, float, np.ndarray]:
    """Return a grid of v, its step, and log E exp(-e^v X) on the grid."""
    s = 1.0 / noise_multiplier
    normal = np.linspace(-_REACH, _REACH, 481)
    weights = np.exp(-(normal**2) / 2)
    weights /= weights.sum()
    values = np.exp(s * normal - s * s / 2)
    farthest_loss = (_REACH + 2) * s
    highest = 12.0 + farthest_loss + s * s / 2
    v = np.linspace(-40.0, highest, 8001)
    step = float(v[1] - v[0])
    parts = []
    for chunk in np.array_split(v, 20):
        products = np.outer(np.exp(chunk), values)
        parts.append(np.exp(-products) @ weights)
    transform = np.concatenate(parts)
    log_transform = np.log(np.maximum(transform, 1e-300))
    return v, step, log_transform


def _check(noise_multiplier: float, rounds: int, done: int, delta: float) -> None:
    if (
        not 0 < noise_multiplier < math.inf
        or not 0 < delta < 1
        or not 0 <= done <= rounds
    ):
        raise ValueError(
            "balls-and-bins needs z > 0, 0 < delta < 1 and 0 <= done <= rounds"
        )


def one_round_epsilons(
    noise_multiplier: float, rounds: int, done: int, delta: float
) -> Bracket:
    """Return proven ends of epsilon by removal that are close for little noise.

    Then one X is far larger than all others together. With a the epsilon of one
    Gaussian at delta T / t:

    - Low end, a - log T: the event that some X_i is above T e^eps has at least the
      chance (t/T) P_i(X_i > T e^eps) with the unit, and at most t Q(X > T e^eps)
      without it.
    - High end: let r be such that t Q(X > r) is a small part of delta, which is added.
      Else f = dP/dQ is at most (B + X_i) / T, B = T - t + t r, for the unit's round i,
      and delta(P||Q) is at most (t/T) times the Gaussian's delta at log(T e^eps - B).
      The unit that is in none of the t rounds needs B + r <= T e^eps.

    Infinity where the high end does not apply.
    """
    s = 1.0 / noise_multiplier
    spent = _NOT_ONE * delta
    share = rounds / done
    log_rounds = math.log(rounds)
    log_done = math.log(done)
    alone = gaussian_epsilon(noise_multiplier, min(delta * share, 1.0))
    low = (alone - log_rounds) * (1 - 1e-12) - 1e-12
    low = max(low, 0.0)
    remaining = (delta - spent) * share
    more = gaussian_epsilon(noise_multiplier, min(remaining, 1.0))
    score = float(ndtri(spent / done))
    log_r = -s * score - s * s / 2
    if log_r + log_done > more:
        return low, math.inf
    log_idle = math.log(max(rounds - done, 1e-300))
    log_b = np.logaddexp(log_r + log_done, log_idle)
    log_without = np.logaddexp(log_b, log_r)
    # Where T e^eps is B + r, the first condition of the high end holds as well.
    high = float(np.logaddexp(more, log_without) - log_rounds)
    high = high * (1 + 1e-12) + 1e-12
    return low, max(high, 0.0)


@lru_cache(maxsize=4096)
def upper_epsilon(
    noise_multiplier: float, rounds: int, done: int, delta: float
) -> float:
    """Return a proven upper bound on epsilon after t = `done` of T = `rounds` rounds.

    It holds in both directions of zero-out.
    """
    _check(noise_multiplier, rounds, done, delta)
    if done == 0:
        return 0.0
    # P is a mixture of Q (weight 1 - t/T) and of Gaussian shifts, and the divergence is
    # jointly convex.
    delta_if_present = min(delta * rounds / done, 1.0)
    ceiling = gaussian_epsilon(noise_multiplier, delta_if_present)
    if noise_multiplier < LITTLE_NOISE:
        _, closed_form = one_round_epsilons(noise_multiplier, rounds, done, delta)
        if closed_form < ceiling and _addition_fits(
            noise_multiplier, rounds, done, closed_form, delta
        ):
            ceiling = closed_form
    if noise_multiplier < LEAST_NOISE or delta < LEAST_DELTA:
        return ceiling
    grid = grid_of(noise_multiplier, rounds, delta, True, False)
    curve_near = partial(removal, grid, rounds, done, upper=True)
    start = guess_epsilon(noise_multiplier, 1.0 / rounds, done, delta)
    epsilon = crossing(
        curve_near, delta=delta, start=start, ceiling=ceiling, upper=True
    )

    def fits(candidate: float) -> bool:
        added = _addition_delta(noise_multiplier, rounds, done, delta, candidate)
        return added <= delta

    # Adding seems never to cost more than removing, but there is no proof; one check is
    # usually enough.
    return raised(epsilon, ceiling, fits)


def upper_deltas(
    noise_multiplier: float, rounds: int, done: int, epsilons: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return upper bounds on delta(P||Q) and delta(Q||P) at each epsilon >= 0.

    Both are float64 [n], and sharp where they are not small.
    """
    _check(noise_multiplier, rounds, done, SMALL)
    if noise_multiplier < LEAST_NOISE:
        ceiling = gaussian_deltas(noise_multiplier, epsilons) * done / rounds
        return ceiling, ceiling
    removal_grid = grid_of(noise_multiplier, rounds, SMALL, True, False)
    addition_grid = grid_of(noise_multiplier, rounds, SMALL, True, True)
    removed_end = removal(removal_grid, rounds, done, upper=True, near=0.0)
    added_tail = UpperTail(
        [(addition_grid.one, done)], around=-float(done), kernel=EXCESS
    )
    at = epsilons.tolist()
    removed = [removed_end.delta(epsilon) for epsilon in at]
    added = [_added(added_tail, rounds, done, epsilon) for epsilon in at]
    return np.array(removed), np.array(added)


@lru_cache(maxsize=256)
def lower_epsilon(
    noise_multiplier: float, rounds: int, done: int, delta: float
) -> float:
    """Return a proven lower bound on epsilon (by removal); see `upper_epsilon`."""
    _check(noise_multiplier, rounds, done, delta)
    if done == 0:
        return 0.0
    upper = upper_epsilon(noise_multiplier, rounds, done, delta)
    low = 0.0
    if noise_multiplier >= LEAST_NOISE and delta >= LEAST_DELTA:
        grid = grid_of(noise_multiplier, rounds, delta, False, False)
        curve_near = partial(removal, grid, rounds, done, upper=False)
        low = crossing(curve_near, delta=delta, start=upper, ceiling=upper, upper=False)
    if is_wide(low, upper):
        closed_form, _ = one_round_epsilons(noise_multiplier, rounds, done, delta)
        closed_form = min(closed_form, upper)
        low = max(low, closed_form)
    return low


class BallsAndBinsAccountant(ComposedAccountant):
    """Accountant of balls-and-bins participation, by the privacy loss distribution.

    If the noise differs between rounds, the high end uses the least noise for all.
    """

    pair = "gaussian", "balls-and-bins"
    explanation = (
        "each client draws one secret round; privacy loss distribution, both"
        " directions, bracketed"
    )
    images = (
        "every client that uses the image contributes zero; each of them draws a secret"
        " round: the high end by one client after another or by draws that are told,"
        " the low end by one client or by the sum of all releases; the exact value is"
        " not known"
    )

    def check_numbers(self, sampling: Sampling) -> None:
        """Check that cohort x rounds is the number of clients: each is in one round."""
        super().check_numbers(sampling)
        units = sampling["cohort"] * sampling["rounds"]
        if not math.isclose(units, sampling["clients"], rel_tol=1e-12):
            raise self.contradiction(
                sampling,
                "cohort x rounds is the number of clients where each is in one round",
            )

    def gaussian(self, events: Events) -> float | None:
        """Return z of a run of one round, which has no sampling; else None."""
        if events.planned_rounds == 1:
            return events.ends[0]
        return None

    def width_reason(self, events: Events, delta: float) -> str:
        least, most, _ = events.ends
        if least < most:
            return "the high end is of the least noise of all rounds, the low end of the most"
        if delta < LEAST_DELTA:
            return (
                f"no grid is made below delta = {LEAST_DELTA:g}, and the ends in closed"
                " form are not close for this noise"
            )
        if least < LEAST_NOISE:
            return (
                f"no grid is made below a noise multiplier of {LEAST_NOISE:g}, and the"
                " ends in closed form are not close for so many rounds"
            )
        return (
            "a grid that fits into memory is too coarse for the log-normals of so many"
            " rounds"
        )

    def end(self, events: Events, delta: float, *, upper: bool, **more: str) -> float:
        least, most, done = events.ends
        if upper:
            return upper_epsilon(least, events.planned_rounds, done, delta)
        return lower_epsilon(most, events.planned_rounds, done, delta)

    def curve(self, events: Events) -> Curve:
        least, _, done = events.ends
        deltas = upper_deltas(least, events.planned_rounds, done, EPSILONS)
        return Curve(EPSILONS, *deltas)

    def renyi(self, events: Events, orders: Sequence[int]) -> np.ndarray:
        least, _, done = events.ends
        return renyi(least, events.planned_rounds, done, orders)

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        uses = use.most
        done = len(events.multipliers)
        rounds = events.planned_rounds
        least = min(events.multipliers)
        most = max(events.multipliers)
        high_of_one = partial(upper_epsilon, least, rounds, done)
        low = lower_epsilon(most, rounds, done, delta)
        if uses > 1 and done == rounds:
            all_releases = gaussian_epsilon(most * rounds**0.5 / uses, delta)
            low = max(low, all_releases)
        squares = squares_of_a_multinomial(uses, rounds, done)
        known_draws = known_draws_epsilon(*squares, least, delta)
        known_round = gaussian_epsilon(least / uses, delta)
        ceiling = min(known_round, known_draws)
        high = group_epsilon(high_of_one, uses, delta, ceiling=ceiling)
        return min(low, high), high
