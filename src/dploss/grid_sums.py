"""Tails of sums of independent variables on a grid, by FFT, with error bounds.

The delta of a composition is an E g(S, K), where S is a sum of independent variables on one grid
and g is zero for S below K: the kernels below. The answer may be 1e-9 or smaller, while
an FFT is accurate to about 1e-16 of its largest entry. The sum is therefore first
tilted by exp(theta S), which makes the tail at K typical. The returned error covers
rounding and the mass that wraps around.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import scipy
import scipy.fft

# Relative L2 rounding error of one FFT of length n: at most FFT_ROUNDING * log2(n)
# (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., Theorem 24.2 has
# 7.5e-16; the rest is a margin).
FFT_ROUNDING = 2e-15
# Probability outside the window, under the tilted law, beyond which it counts as an
# error.
OUTSIDE = 1e-12
# Most grid points of a window.
MOST_POINTS = 1 << 25


class GridVariable:
    """A random variable on a grid.

    It takes the value (first + i) * step with probability weights[i] >= 0, float64 [n].
    The weights may add up to less than one; the missing mass contributes nothing. Zeros
    at both ends are dropped. The object caches what sums need repeatedly (logarithms, a
    coarse copy).
    """

    def __init__(self, *, first: int, weights: np.ndarray, step: float) -> None:
        support = np.flatnonzero(weights > 0)
        if weights.ndim != 1 or len(support) == 0 or not step > 0:
            raise ValueError(
                "a grid variable needs at least one positive weight and a positive step"
            )
        self.first = first + int(support[0])
        self.step = step
        first_index = support[0]
        last_index = support[-1]
        self.weights = weights[first_index : last_index + 1]
        indices = self.first + np.arange(len(self.weights))
        self.values = indices * step
        with np.errstate(divide="ignore"):
            self.log_weights = np.log(self.weights)
        self.coarse_values, self.coarse_log_weights = _coarse(self)

    def log_mgf(self, theta: float) -> float:
        """Return log E exp(theta X)."""
        exponents = theta * self.values
        exponents += self.log_weights
        top = exponents.max()
        exponents -= top
        np.exp(exponents, out=exponents)
        return float(top + np.log(exponents.sum()))


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Kernel g(S, K) = a(S) - c(K) b(S) for S > K, with 0 <= g <= bound.

    If `lipschitz`, g <= S - K.
    `scaled` kernels are computed with S and K measured from a point near K, so that b
    and c stay in range.
    """

    a: Callable[[np.ndarray], np.ndarray]
    b: Callable[[np.ndarray], np.ndarray]
    c: Callable[[float], float]
    bound: float
    lipschitz: bool
    scaled: bool

    def limits(self, theta: float, step: float) -> tuple[float, float]:
        """Return bounds on g(x) exp(-theta x), x = S - K, over the grid.

        They are a bound on the largest value, and one on the sum of squares.
        """
        peak = math.inf
        square = math.inf
        if self.bound < math.inf:
            peak = self.bound
            square = self.bound**2 / (2.0 * theta * step)
        if self.lipschitz:
            peak = min(peak, 1.0 / (math.e * theta))
            square_if_lipschitz = 1.0 / (4.0 * theta**3 * step)
            square = min(square, square_if_lipschitz)
        return peak, square + 2.0 * peak**2


# E (S - K)+
EXCESS = Kernel(
    a=lambda x: x,
    b=np.ones_like,
    c=lambda at: at,
    bound=math.inf,
    lipschitz=True,
    scaled=True,
)
# E (1 - exp(K - S))+: the delta of a privacy loss S at epsilon K.
LOSS = Kernel(
    a=np.ones_like,
    b=lambda x: np.exp(-x),
    c=math.exp,
    bound=1.0,
    lipschitz=True,
    scaled=True,
)
# E (1 - K/S)+, for S > 0: the delta of a privacy loss log S at epsilon log K.
RATIO = Kernel(
    a=np.ones_like,
    b=lambda x: 1.0 / x,
    c=lambda at: at,
    bound=1.0,
    lipschitz=False,
    scaled=False,
)


class WindowTooWide(ArithmeticError):
    """Error of a sum whose window has more grid points than fit into memory."""


class UpperTail:
    """E g(S, K) for a sum S of independent variables and any K, sharp near one K.

    Args:
        parts: the summands, each with its number of independent copies; all on one
            grid.
        around: the K near which the value is sharp.
        kernel: g. For RATIO, K > 0.
        tilt: share of the best tilt; closer to 1 for an expectation below 1e-20.

    Attributes:
        theta: the tilt, which is the share `tilt` of the best one for `around`.
    """

    def __init__(
        self,
        parts: Sequence[tuple[GridVariable, int]],
        *,
        around: float,
        kernel: Kernel,
        tilt: float = 0.5,
    ) -> None:
        self._parts = parts
        self._around = around
        self._kernel = kernel
        self._step = parts[0][0].step
        # Half the best tilt is precise enough, and its window is much shorter.
        self.theta = tilt * _best_tilt(parts, around)
        low, high, slopes = _window(parts, self.theta)
        # `around` and the mass above it must lie in the window, else there is nothing to
        # sum.
        low = min(low, around)
        high = max(high, around)
        first = int(np.floor(low / self._step))
        self._start = first - 1
        end = int(np.ceil(high / self._step)) + 2
        length = end - self._start
        if length > MOST_POINTS:
            raise WindowTooWide(f"a window of {length} grid points")
        size = scipy.fft.next_fast_len(max(length, 2), real=True)
        mass = self._transform(size)
        self._error_outside(size, slopes)
        self._sum_up(mass)

    def _transform(self, size: int) -> np.ndarray:
        """Return the tilted law of S on the window, and a bound on its L2 FFT error."""
        spectrum: np.ndarray | None = None
        shift = 0
        scale = -self.theta * self._around
        forward = 0.0
        copies = 0
        self._log_mgfs = []
        for variable, count in self._parts:
            tilted = self.theta * variable.values
            tilted += variable.log_weights
            top = tilted.max()
            tilted -= top
            np.exp(tilted, out=tilted)
            total = float(tilted.sum())
            tilted /= total
            log_mgf = float(top) + float(np.log(total))
            self._log_mgfs.append(log_mgf)
            folded = _fold(tilted, size)
            transformed = scipy.fft.rfft(folded, n=size)
            power = _power(transformed, count)
            if spectrum is None:
                spectrum = power
            else:
                spectrum = spectrum * power
            shift += variable.first * count
            scale += count * log_mgf
            forward += count * _norm(tilted)
            copies += count
        mass = scipy.fft.irfft(spectrum, n=size)
        rounding = FFT_ROUNDING * np.log2(size)
        mass_norm = _norm(mass)
        transform_error = rounding * (forward + mass_norm)
        power_error = 1e-15 * copies * mass_norm
        self._fft_error = 1.01 * (transform_error + power_error)
        self._log_scale = scale
        self._copies = copies
        offset = (shift - self._start) % size
        return np.roll(mass, offset)

    def _error_outside(self, size: int, slopes: tuple[float, float]) -> None:
        """Bound the tilted mass outside the window (Chernoff, on the exact weights)."""
        least = 0
        most = 0
        for variable, count in self._parts:
            last = variable.first + len(variable.weights) - 1
            least += variable.first * count
            most += last * count
        low_slope, high_slope = slopes
        end = self._start + size
        self._outside = 0.0
        if self._start > least:
            low_edge = self._start * self._step
            self._outside += self._chernoff(low_slope, low_edge)
        if end <= most:
            self._outside += self._chernoff(high_slope, end * self._step)

    def _chernoff(self, slope: float, edge: float) -> float:
        """Bound the tilted mass beyond an edge: above it for a slope above 0."""
        exponent = -slope * edge
        for (variable, count), log_mgf in zip(self._parts, self._log_mgfs, strict=True):
            moved_log_mgf = variable.log_mgf(self.theta + slope)
            exponent += count * (moved_log_mgf - log_mgf)
        return float(np.exp(min(exponent, 0.0)))

    def _sum_up(self, mass: np.ndarray) -> None:
        """Compute suffix sums, so that the value at one K is a look-up."""
        kernel = self._kernel
        # Below this point the untilting would overflow. No caller needs such a K.
        slope = self.theta
        if kernel is LOSS:
            slope = max(slope, 1.0)
        self._lowest = -250.0 / slope
        indices = self._start + np.arange(len(mass))
        offsets = indices * self._step - self._around
        keep = int(np.searchsorted(offsets, self._lowest))
        if not kernel.scaled:
            # S > K > 0 there, so that values of at most 0 do not matter.
            keep = max(keep, 1 - self._start)
        self._offsets = offsets[keep:]
        untilting = np.exp(-self.theta * self._offsets)
        untilted = np.maximum(mass[keep:], 0.0) * untilting
        points = self._offsets
        if not kernel.scaled:
            points = points + self._around
        self._firsts = _suffix_sums(untilted * kernel.a(points))
        self._seconds = _suffix_sums(untilted * kernel.b(points))
        peak, square = kernel.limits(self.theta, self._step)
        outside_error = self._outside * peak
        self._error = self._fft_error * square**0.5 + outside_error

    def value(self, at: float) -> tuple[float, float]:
        """Return E g(S, at) and a bound on its error.

        Both are infinite for an `at` too far below `around`.
        """
        kernel = self._kernel
        offset = at - self._around
        if offset <= self._lowest or self._log_scale > 600.0:
            return math.inf, math.inf
        if not kernel.scaled and not at > 0:
            return math.inf, math.inf
        index = int(np.searchsorted(self._offsets, offset))
        first = float(self._firsts[index])
        scale = math.exp(self._log_scale)
        if kernel is LOSS and offset > 690.0:
            # exp(offset) would overflow; the mass above is negligible.
            half = 0.5 * first
            return half * scale, (half + self._error) * scale
        point = at
        if kernel.scaled:
            point = offset
        suffix_sum = float(self._seconds[index])
        second = kernel.c(point) * suffix_sum
        terms = len(self._offsets) - index
        size = abs(first) + abs(second)
        rounding = 1e-15 * terms * size
        exponent = min(-self.theta * offset, 300.0)
        untilting = math.exp(exponent)
        error = self._error * untilting + rounding
        tail = max(first - second, 0.0)
        # Exponents of up to 700 were rounded once per copy when tilting.
        tilting_error = 1e-12 * (self._copies + 1) * tail
        return tail * scale, (error + tilting_error) * scale


def _suffix_sums(values: np.ndarray) -> np.ndarray:
    """Return the sums of values[i:], float64 [n + 1]; the last is 0."""
    sums = np.cumsum(values[::-1])
    sums = sums[::-1]
    return np.append(sums, 0.0)


# An end is sharp where its FFT error is less than this share of its delta.
SHARP = 1e-5


@dataclass(frozen=True)
class DeltaEnd:
    """One end of delta as a function of epsilon, from a tail.

    It is valid everywhere, and sharp near the epsilon for which the tail is made.

    Args:
        tail: tail of the losses, or of a variable that determines them.
        upper: whether it is the upper end.
        position: function from an epsilon to the K of the tail.
        extra: mass that the tail omits; an upper end adds it.
        share: (t, T): t/T of the tail's value is delta.
    """

    tail: UpperTail
    _: KW_ONLY
    upper: bool
    position: Callable[[float], float] = float
    extra: float = 0.0
    share: tuple[int, int] = (1, 1)

    def delta(self, epsilon: float) -> float:
        """Return the end of delta at epsilon."""
        value, error = self.tail.value(self.position(epsilon))
        counted, rounds = self.share
        if self.upper:
            return (value + error + self.extra) * counted / rounds
        if math.isinf(value):
            return 0.0
        least = max(value - error, 0.0)
        return least * counted / rounds

    def sharp(self, epsilon: float) -> bool:
        """Return whether FFT errors at epsilon are negligible."""
        value, error = self.tail.value(self.position(epsilon))
        return error <= SHARP * value


def crossing(
    curve_near: Callable[[float], DeltaEnd],
    *,
    delta: float,
    start: float,
    ceiling: float,
    upper: bool,
) -> float:
    """Return a proven end of epsilon.

    There upper curves are at or below delta, or lower curves at or above it. Each
    result is valid, since a curve is valid everywhere. The next curve is made where the
    last one crossed delta, until it is sharp there.

    Args:
        curve_near: function from an epsilon to a curve that is sharp near it.
        delta: delta at which epsilon is stated.
        start: start of the search.
        ceiling: an upper bound that is known already.
        upper: whether to return the upper end.
    """
    best = ceiling if upper else 0.0
    near = min(start, ceiling)
    for _ in range(8):
        curve = curve_near(near)

        def excess(epsilon: float, curve: DeltaEnd = curve) -> float:
            value = max(curve.delta(epsilon), 1e-300)
            value = min(value, 1e300)
            return math.log(value / delta)

        # Far below `near` a lower curve may give no bound.
        floor = near
        if excess(0.0) > 0.0:
            floor = 0.0
        if excess(floor) <= 0.0:
            return 0.0 if upper else best
        if excess(ceiling) < 0.0:
            root = scipy.optimize.brentq(excess, floor, ceiling, xtol=1e-10, rtol=1e-12)
            proved = proving_side(excess, float(root), floor, upper)
        elif upper:
            # This curve proves nothing below the ceiling; one made nearer to it may.
            near = (near + ceiling) / 2
            continue
        else:
            proved = ceiling
        best = better_end(best, proved, upper)
        is_near = abs(proved - near) <= 1e-3 * near
        if is_near or curve.sharp(proved):
            break
        near = proved
    return best


def better_end(one: float, other: float, upper: bool) -> float:
    """Return the tighter of two proven ends."""
    if upper:
        return min(one, other)
    return max(one, other)


def raised(epsilon: float, ceiling: float, fits: Callable[[float], bool]) -> float:
    """Return the first epsilon that fits, in small steps upwards, at most the ceiling.

    The start usually fits.
    """
    while epsilon < ceiling and not fits(epsilon):
        epsilon = min(1.002 * epsilon + 1e-6, ceiling)
    return epsilon


def proving_side(
    excess: Callable[[float], float], root: float, floor: float, upper: bool
) -> float:
    """Move a root in small steps to the side on which it is a proven end."""
    nudge = 1e-10
    while (excess(root) <= 0.0) != upper:
        if upper:
            root = root + nudge
        else:
            root = max(root - nudge, floor)
        nudge *= 2
    return root


def _norm(values: np.ndarray) -> float:
    """Return the L2 norm without BLAS, whose threads cost more than they save here."""
    return float((values * values).sum()) ** 0.5


def _power(base: np.ndarray, exponent: int) -> np.ndarray:
    """Return base ** exponent by squaring, ten times as fast as numpy's complex power."""
    result: np.ndarray | None = None
    while True:
        if exponent & 1:
            if result is None:
                result = base
            else:
                result = result * base
        exponent >>= 1
        if not exponent:
            break
        base = base * base
    assert result is not None
    return result


def _fold(weights: np.ndarray, size: int) -> np.ndarray:
    """Wrap a variable that is longer than the transform, which does not change."""
    if len(weights) <= size:
        return weights
    rows = -(-len(weights) // size)
    padded = np.zeros(rows * size)
    padded[: len(weights)] = weights
    return padded.reshape(rows, size).sum(axis=0)


def _coarse(variable: GridVariable, cells: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Return a variable in few atoms, finest at both ends.

    The copy serves to choose a tilt and a window, and not for bounds.
    """
    weights = variable.weights
    length = len(weights)
    rising = np.geomspace(1, length, cells).astype(int)
    fine_at_start = np.unique(rising) - 1
    even = np.linspace(0, length - 1, cells).astype(int)
    fine_at_end = length - 1 - fine_at_start
    marks = np.concatenate([fine_at_start, even, fine_at_end])
    edges = np.unique(marks)
    mass = np.add.reduceat(weights, edges)
    moments = weights * np.arange(length)
    moment = np.add.reduceat(moments, edges)
    keep = mass > 0
    means = moment[keep] / mass[keep]
    values = (variable.first + means) * variable.step
    return values, np.log(mass[keep])


Parts = Sequence[tuple[GridVariable, int]]


def tilted_moments(parts: Parts, theta: float) -> tuple[float, float]:
    """Return mean and variance of the coarse sum under the tilt."""
    mean = 0.0
    variance = 0.0
    for variable, count in parts:
        values = variable.coarse_values
        exponents = theta * values + variable.coarse_log_weights
        weights = np.exp(exponents - exponents.max())
        weights /= weights.sum()
        centre = float(weights @ values)
        mean += count * centre
        variance += count * float(weights @ (values - centre) ** 2)
    return mean, variance


def _best_tilt(parts: Parts, around: float) -> float:
    """Return the tilt under which the sum's mean is `around`.

    The tilt is at least one that moves the mean slightly.
    """

    def mean_at(theta: float) -> float:
        mean, _ = tilted_moments(parts, theta)
        return mean

    mean, variance = tilted_moments(parts, 0.0)
    deviation = max(variance, 1e-300) ** 0.5
    most = sum(count * float(variable.values[-1]) for variable, count in parts)
    target = max(around, mean + 0.2 * deviation)
    target = min(target, 0.05 * mean + 0.95 * most)
    high = 0.25 / deviation
    for _ in range(60):
        if mean_at(high) <= target:
            break
        high /= 4
    for _ in range(60):
        if mean_at(high) >= target:
            break
        high *= 4
    low = high / 4
    while high > 1.02 * low:
        middle = (low * high) ** 0.5
        if mean_at(middle) < target:
            low = middle
        else:
            high = middle
    return high


def _window(parts: Parts, theta: float) -> tuple[float, float, tuple[float, float]]:
    """Return the window of the tilted sum, and the slopes of its Chernoff bound.

    At most OUTSIDE of the mass is outside the window on each side.
    """
    _, variance = tilted_moments(parts, theta)
    scale = max(variance, 1e-300) ** -0.5
    slopes_of_scale = scale * np.geomspace(0.03, 60, 24)
    slopes_of_theta = theta * np.geomspace(0.01, 0.99, 8)
    slopes = np.concatenate([slopes_of_scale, slopes_of_theta])
    need = -math.log(OUTSIDE)
    upper = np.zeros(len(slopes))
    lower = np.zeros(len(slopes))
    least = 0.0
    most = 0.0
    for variable, count in parts:
        values = variable.coarse_values
        exponents = theta * values + variable.coarse_log_weights
        log_weights = exponents - log_sum(exponents)
        moves = np.outer(slopes, values)
        upper += count * log_sum(log_weights + moves)
        lower += count * log_sum(log_weights - moves)
        least += count * float(variable.values[0])
        most += count * float(variable.values[-1])
    highs = (need + upper) / slopes
    lows = -(need + lower) / slopes
    high = int(np.argmin(highs))
    low = int(np.argmax(lows))
    low_edge = max(float(lows[low]), least)
    high_edge = min(float(highs[high]), most)
    low_slope = -float(slopes[low])
    high_slope = float(slopes[high])
    return low_edge, high_edge, (low_slope, high_slope)


def log_sum(exponents: np.ndarray) -> np.ndarray:
    """Return log of the sum of e^x over the last axis, of which no row is all -inf."""
    top = exponents.max(axis=-1, keepdims=True)
    weights = np.exp(exponents - top)
    total = weights.sum(axis=-1)
    return np.squeeze(top, -1) + np.log(total)
