"""Correlated noise with balls-and-bins: each unit is in one secret round of T.

The releases are those of C S + sigma Z. With c_i column i of C over sigma, of which
only the rounds that were run count, and v_i the unit's contribution if its round is i
(|v_i| <= 1, chosen by what was released before), the ratio of densities with and
without the unit is

    f = (1/T) sum_i e^L_i,   L_i = sum_t (c_ti <v_i, y_t> - c_ti^2 |v_i|^2 / 2),   y_t standard normal without the unit.

**The dominating pair.** For any convex phi, E phi(f) is largest for v_i all one unit
vector and |c_ti| for c_ti: let V_t(L) be the mean of phi(f) where that is so after
round t. Its mixed derivatives in L_i and L_j are at least 0, and so is its second in
L_i less its first: both hold of phi(mean e^L), and a mean over shifts keeps them. So
the mean of V_t after a normal step of means that keep each e^L_i a martingale grows
with its covariances (Slepian and Kahane's interpolation) and variances, which are c_ti
c_tj <v_i, v_j> <= |c_ti c_tj|: round by round from the last to the first. Divergences
in both directions are such means. (Choquette-Choo et al., Near Exact Privacy
Amplification for Matrix Mechanisms, 2024, sample from this pair.) So f depends on G =
|C|^T |C| / sigma^2 alone, L being normal with covariance G, and grows with each of its
entries.

**Both ends, by draws** (`dploss.importance_sampling`): of the very pair, up to a few hundred
rounds. Their bound may fail with a chance that is part of delta and that the account
names. Where draws show nothing, or there are more rounds, the ends are these:

**High end without draws.** Let the observer be told i modulo p. Among the rounds of one
class, at least p apart, no entry of G is above some r beside the diagonal, and none
above s^2 on it. Raised to that, L_i = g + h_i with one g of variance r for all and
independent h_i of variance s^2 - r: the composition of one Gaussian release of
multiplier r^-1/2 and of balls-and-bins with as many bins as the class has rounds, at
(s^2 - r)^-1/2. By joint convexity the worst class bounds the mean of all; p is chosen
after the fact, since each bounds the same number. An encoder with no more than p bands
has r = 0.

**Low end without draws.** Where no entry of C^T C is below 0: with 0 for all of them
beside the diagonal, E phi(f) is that of balls-and-bins (Kahane again, of contributions
that are all the same, or zero in the rounds of the smallest columns).
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from dploss import importance_sampling
from dploss.fine_brackets import is_wide
from dploss.gaussian import (
    Bracket,
    exact_bracket,
    gaussian_deltas,
    gaussian_epsilon,
    least_root,
)
from dpsum.accounting.accountant import EPSILONS, Accountant, Curve, Events
from dpsum.accounting.analyses import balls_and_bins
from dpsum.accounting.analyses.correlated import encoder_of
from dpsum.accounting.image_level import ImageUse
from dpsum.errors import DpsumError
from dpsum.ledger import Release

_REACH = 9.0
_CELLS = 3000
_CURVES = 12
# Bound on the errors of quadrature and interpolation, far above the true errors.
_OFF = 1e-9
_ROUNDING = 1e-12


@functools.lru_cache(maxsize=256)
def _profile(
    z: float, rounds: int, done: int, delta: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return upper bounds on balls-and-bins' delta at e^x for rising x.

    They are for the unit present against absent, and for the reverse. Both are convex
    in e^x, so that chords between these points are upper bounds too.
    """
    top = gaussian_epsilon(z, 1e-4 * delta)
    above_zero = np.geomspace(1e-3, top, 160)
    epsilons = np.append(0.0, above_zero)
    grid_delta = 2.0 ** math.floor(math.log2(delta))
    grid = balls_and_bins.grid_of(z, rounds, grid_delta, True, False)
    present = np.full(len(epsilons), np.inf)
    sharp_points = np.geomspace(0.02 * top, top, _CURVES)
    sharp_points = np.append(0.0, sharp_points)
    for near in sharp_points:
        curve = balls_and_bins.removal(grid, rounds, done, upper=True, near=float(near))
        deltas = [curve.delta(float(epsilon)) for epsilon in epsilons]
        present = np.minimum(present, deltas)
    _, absent = balls_and_bins.upper_deltas(z, rounds, done, epsilons)
    present = np.minimum(np.minimum.accumulate(present), 1.0)
    absent = np.minimum(np.minimum.accumulate(absent), 1.0)
    negative_epsilons = -epsilons[:0:-1]
    negative_side = -np.expm1(negative_epsilons)

    def whole(values: np.ndarray, other: np.ndarray) -> np.ndarray:
        # H_x(P || Q) = 1 - e^x + e^x H_-x(Q || P)
        weight = 1 - negative_side
        negative_values = negative_side + weight * other[:0:-1]
        return np.concatenate([negative_values, values])

    grid_epsilons = np.concatenate([negative_epsilons, epsilons])
    return grid_epsilons, whole(present, absent), whole(absent, present)


@dataclasses.dataclass(frozen=True)
class _Composed:
    """Bound of one class: a Gaussian composed with balls-and-bins.

    The Gaussian has squared distance `common`, and balls-and-bins z = alone^-1/2.
    """

    common: float
    alone: float
    rounds: int
    done: int
    delta: float

    def deltas(self, epsilons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return upper bounds on delta at each epsilon >= 0, in both directions."""
        z = self.alone**-0.5
        if z < balls_and_bins.LEAST_NOISE:
            ceiling = gaussian_deltas(self._joint, epsilons)
            return ceiling, ceiling
        if self.common <= 0.0:
            return balls_and_bins.upper_deltas(z, self.rounds, self.done, epsilons)
        grid, present, absent = _profile(z, self.rounds, self.done, self.delta)
        edges = np.linspace(-_REACH, _REACH, _CELLS + 1)
        beyond = ndtr(-_REACH)
        mass = np.diff(ndtr(edges))
        mass[0] += beyond
        # Each loss of the Gaussian is taken for the upper end of its cell, where delta of the
        # rest is larger.
        deviation = math.sqrt(self.common)
        losses = self.common / 2 + deviation * edges[1:]
        at = epsilons[:, None] - losses

        def end(curve: np.ndarray) -> np.ndarray:
            powers = np.exp(at)
            inside = np.interp(powers, np.exp(grid), curve)
            rest = np.where(at < grid[0], 1.0, inside)
            delta = rest @ mass + beyond
            return np.minimum(delta * (1 + _OFF), 1.0)

        return end(present), end(absent)

    @property
    def _joint(self) -> float:
        return float((self.common + self.alone) ** -0.5)

    def epsilon(self) -> float:
        """Return an upper bound on epsilon at `delta`, for both directions."""
        z = self.alone**-0.5
        # If the round is public, the releases are one Gaussian, or, with probability
        # 1 - done/rounds, independent of the unit.
        delta_if_present = min(self.delta * self.rounds / self.done, 1.0)
        ceiling = gaussian_epsilon(self._joint, delta_if_present)
        if z < balls_and_bins.LEAST_NOISE or ceiling == 0.0:
            return ceiling
        if self.common <= 0.0:
            alone = balls_and_bins.upper_epsilon(z, self.rounds, self.done, self.delta)
            return min(alone, ceiling)

        def excess(epsilon: float) -> float:
            deltas = self.deltas(np.array([epsilon]))
            return float(np.max(deltas)) - self.delta

        if excess(ceiling) > 0:
            return ceiling
        return least_root(excess, xtol=1e-9) + 1e-9


def _classes(rounds: int, done: int, apart: int) -> set[tuple[int, int]]:
    """Return, for each class of rounds modulo `apart`, its planned and run rounds."""
    return {
        (len(range(first, rounds, apart)), len(range(first, done, apart)))
        for first in range(apart)
    }


def overlaps(gram: np.ndarray) -> tuple[float, ...]:
    """Return the largest entries of G = |C|^T |C| / sigma^2 by distance.

    Value k is the largest entry at distance k from the diagonal, or beyond.
    """
    sizes = np.abs(gram)
    largest = [np.diagonal(sizes, distance).max() for distance in range(len(gram))]
    from_the_end = np.maximum.accumulate(largest[::-1])
    return tuple(from_the_end[::-1].tolist())


@functools.lru_cache(maxsize=1024)
def upper_epsilon(
    overlap: tuple[float, ...], rounds: int, done: int, delta: float
) -> float:
    """Return a proven upper bound on epsilon, for both directions of zero-out.

    Args:
        overlap: `overlaps` of the run rounds (or of all planned rounds).
        rounds: T, the number of planned rounds.
        done: number of run rounds.
        delta: delta at which epsilon is stated.
    """
    if done == 0:
        return 0.0
    square = overlap[0]
    least = math.inf
    for class_count in _tried(overlap, rounds):
        common = _common(overlap, class_count)
        if done == rounds and common:
            gaussian_alone = gaussian_epsilon(common**-0.5, delta)
            if gaussian_alone >= least:
                continue  # the Gaussian alone is no less
        worst = 0.0
        for bins, run in _classes(rounds, done, class_count):
            if run and worst < least:
                composed = _Composed(common, square - common, bins, run, delta)
                worst = max(worst, composed.epsilon())
        least = min(least, worst)
    return least


def upper_deltas(
    overlap: tuple[float, ...], rounds: int, done: int, epsilons: np.ndarray
) -> np.ndarray:
    """Return upper bounds on delta at each epsilon >= 0, float64 [2, n].

    The rows are for the unit present against absent, and for the reverse.
    """
    square = overlap[0]
    least = np.ones((2, len(epsilons)))
    for class_count in _tried(overlap, rounds):
        common = _common(overlap, class_count)
        alone = square - common
        ends = []
        for bins, run in _classes(rounds, done, class_count):
            if run:
                composed = _Composed(common, alone, bins, run, balls_and_bins.SMALL)
                ends.append(composed.deltas(epsilons))
        worst = np.max(ends, axis=0)
        least = np.minimum(least, worst)
    return least


def _common(overlap: Sequence[float], apart: int) -> float:
    """Return r of rounds at this distance; 0 where columns overlap by rounding only."""
    if apart < len(overlap):
        shared = overlap[apart]
    else:
        shared = 0.0
    if shared <= _ROUNDING * overlap[0]:
        return 0.0
    return min(shared, overlap[0])


def _tried(overlap: Sequence[float], rounds: int) -> list[int]:
    """Return the numbers of classes to try.

    They are powers of two, and the distance from which columns do not overlap.
    """
    bands = rounds
    for distance, size in enumerate(overlap):
        if size <= _ROUNDING * overlap[0]:
            bands = distance
            break
    counts = [bands]
    power = 1
    while power < min(bands, rounds):
        counts.append(power)
        power *= 2
    return counts


def lower_epsilon(gram: np.ndarray, rounds: int, delta: float) -> float:
    """Return a proven lower bound on epsilon.

    It is 0 where an entry of `gram`, C^T C over the variance, is below 0.
    """
    if gram.min() < -_ROUNDING * gram.max():
        return 0.0
    squares = np.sort(np.diag(gram))
    squares = squares[::-1]
    norms = squares**0.5
    counts = {max(len(norms) * quarters // 4, 1) for quarters in (1, 2, 3, 4)}
    return max(
        balls_and_bins.lower_epsilon(1 / float(norms[count - 1]), rounds, count, delta)
        for count in counts
    )


class CorrelatedBallsAndBinsAccountant(balls_and_bins.BallsAndBinsAccountant):
    """Accountant of a mixture of an encoder's columns.

    It samples where there are not too many rounds, and else uses bounds. The sampling
    of its events has the encoder, also in a plan that knows it. Without the encoder
    there is no epsilon.
    """

    pair = "correlated-gaussian", "balls-and-bins"
    explanation = (
        "each client draws one secret round, correlated noise: the mixture of the"
        " encoder's columns, found from the ledger's weights"
    )
    images = (
        "every client that uses the image contributes zero; each of them draws a secret"
        " round: the high end is that of known and equal rounds, the low end one"
        " client's"
    )

    def read(self, lines: Sequence[Release]) -> Events:
        """Read the ledger; `details` is the least entry of C^T C over the largest."""
        events = super().read(lines)
        encoder, scale = encoder_of(lines)
        gram = encoder.T @ encoder
        sampling = dataclasses.replace(
            lines[0].sampler, encoder=np.abs(encoder).tobytes()
        )
        return dataclasses.replace(
            events,
            schedule=((1 / scale, len(lines)),),
            details=float(gram.min() / gram.max()),
            samplings=dict.fromkeys(events.samplings, sampling),
        )

    def gaussian(self, events: Events) -> float | None:
        """Return the multiplier of a run of one round (no sampling); else None."""
        if events.planned_rounds == 1:
            return _largest(events) ** -0.5
        return None

    def bracket(self, events: Events, delta: float) -> Bracket:
        z = self.gaussian(events)
        if z is not None:
            return exact_bracket(z, delta)
        encoder, rounds = _of(events)
        low, high = _bracket(encoder, rounds, delta)
        if _may_oppose(events):
            return 0.0, high
        # Contributions of one direction reach the pair if no entry of C^T C is below 0.
        return min(low, high), high

    high = Accountant.high

    def width_reason(self, events: Events, delta: float) -> str:
        if _may_oppose(events):
            return (
                "some columns of the encoder point away from each other, for which no"
                " low end is known"
            )
        encoder, rounds = _of(events)
        if _is_drawn(overlaps(encoder.T @ encoder), rounds):
            return "the draws of both ends spread, at the chance that is kept of delta"
        return (
            "there are too many rounds for draws, and the ends are those of simpler"
            " mixtures"
        )

    def explain(self, events: Events) -> str:
        _, rounds = _of(events)
        method = "bounded without draws"
        if rounds <= importance_sampling.MOST:
            method = (
                "by draws from a fixed seed, whose bound fails with a chance of at most"
                " delta / 1,000 over them, which is kept of delta"
            )
        return f"{self.explanation}; {method}"

    def curve(self, events: Events) -> Curve:
        encoder, rounds = _of(events)
        overlap = overlaps(encoder.T @ encoder)
        deltas = upper_deltas(overlap, rounds, len(encoder), EPSILONS)
        return Curve(EPSILONS, *deltas)

    def renyi(self, events: Events, orders: Sequence[int]) -> np.ndarray:
        """Return the divergences with public rounds: the releases are one Gaussian."""
        return np.array(orders) * _largest(events) / 2

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        low, _ = self.bracket(events, delta)
        z = _largest(events) ** -0.5
        high = gaussian_epsilon(z / use.most, delta)
        return low, max(low, high)


def _may_oppose(events: Events) -> bool:
    """Return whether C^T C has an entry below 0, or is not known."""
    return events.details is None or events.details < -_ROUNDING


def _largest(events: Events) -> float:
    """Return the largest squared norm of a column over sigma."""
    encoder, _ = _of(events)
    squares = (encoder**2).sum(axis=0)
    return float(squares.max())


def _of(events: Events) -> tuple[np.ndarray, int]:
    """Return |C| over sigma of the run rounds, float64 [t, t], and the planned rounds.

    Run rounds of a plan that ends early are rounded up to eighths of the plan: more
    rounds reveal no less.
    """
    if events.sampling.encoder is None:
        raise DpsumError(
            "the account of correlated noise in secret rounds needs the encoder's"
            " weights, not z alone"
        )
    least, _, done = events.ends
    planned = np.frombuffer(events.sampling.encoder)
    rounds = events.planned_rounds
    size = math.isqrt(len(planned))
    if events.details is None:
        eighth = -(-rounds // 8)
        done = -(-done // eighth) * eighth
        done = min(done, rounds, size)
    encoder = planned.reshape(size, size)[:done, :done]
    return encoder / least, rounds


def _is_drawn(apart: Sequence[float], rounds: int) -> bool:
    """Return whether the ends are found by draws, from the columns' overlaps."""
    if rounds > importance_sampling.MOST or len(apart) <= 1:
        return False
    return bool(_common(apart, 1))


def _bracket(encoder: np.ndarray, rounds: int, delta: float) -> Bracket:
    """Return both ends for columns |C| over sigma."""
    gram = encoder.T @ encoder
    overlap = overlaps(gram)
    if _is_drawn(overlap, rounds):
        low, high = importance_sampling.bracket(encoder, rounds, delta)
        if high < math.inf:
            if is_wide(low, high):
                without_draws = lower_epsilon(gram, rounds, delta)
                low = max(low, min(without_draws, high))
            return low, high
    low = lower_epsilon(gram, rounds, delta)
    high = upper_epsilon(overlap, rounds, len(gram), delta)
    return low, high
