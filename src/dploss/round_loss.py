"""Tails of the privacy loss of one sampled Gaussian, with bounds on rounding.

The pair is P = sum_n P(N = n) N(n, z^2), N ~ Binomial(k, q), against Q = N(0, z^2); see
`dpsum.accounting.analyses.poisson`.
"""

import math

import numpy as np
import scipy
from scipy.special import gammaln, logsumexp, ndtri

from dploss.compositions import Tails
from dploss.gaussian import FUNCTION, ROUNDING, Rounded, upper_tail


def normal_tail(
    x: np.ndarray, off: np.ndarray, mean: float, deviation: float, sign: float
) -> Rounded:
    """Return the probability of N(mean, deviation^2) above (sign 1) or below (-1) x.

    x has an error of at most `off`. The second value bounds the relative error.
    """
    score = sign * (x - mean) / deviation
    rounding = 3 * ROUNDING * (np.abs(x) + mean)
    return upper_tail(score, (off + rounding) / deviation)


class RoundLoss:
    """The privacy loss of one round, by removal (P against Q) or addition (Q against P).

    Args:
        noise_multiplier, rate: z and q.
        add: whether the direction is addition.
        uses: k; P is the mixture over Binomial(k, q).
        dropped: mass of that mixture's far tail that may be omitted. P is then slightly
            too small: an upper end adds the omitted mass (`missing`), and a lower end
            can only fall.
    """

    def __init__(
        self,
        noise_multiplier: float,
        rate: float,
        add: bool,
        uses: int = 1,
        dropped: float = 0.0,
    ) -> None:
        self.z = noise_multiplier
        self.q = rate
        self.add = add
        self.uses = uses
        self.missing = 0.0
        if uses > 1:
            self._set_mixture(dropped)

    def _set_mixture(self, dropped: float) -> None:
        """Set the weights of the mixture, without a far tail of at most `dropped`."""
        uses = self.uses
        rate = self.q
        counts = np.arange(uses + 1, dtype=float)
        tails = scipy.stats.binom.sf(counts, uses, rate)
        last = int(np.searchsorted(-tails, -dropped))
        last = max(last, 1)
        if not self.add:
            left_out = scipy.stats.binom.sf(last, uses, rate)
            left_out = float(left_out)
            self.missing = left_out * (1 + 1e-9)
        self._counts = counts[1 : last + 1]
        counts = counts[: last + 1]
        self._logs = scipy.stats.binom.logpmf(counts, uses, rate)
        # Each is three logarithms of factorials and two products, rounded separately.
        log_factorials = 3 * gammaln(uses + 1)
        log_chances = math.log(rate) + math.log1p(-rate)
        log_powers = uses * log_chances
        size = log_factorials - log_powers
        self._off = FUNCTION * (1.0 + float(size))

    def tails(self, losses: np.ndarray) -> Tails:
        """See `compositions.RoundLaw`."""
        if self.add:
            # By addition a larger loss means a smaller x.
            x, off = self._where(-losses)
            return self._both(x, off, -1.0)
        x, off = self._where(losses)
        without, mixed, share = self._both(x, off, 1.0)
        return mixed, without, share

    def _both(self, x: np.ndarray, off: np.ndarray, sign: float) -> Tails:
        """Return the probability of Q and of P above (sign 1) or below (-1) x.

        x has an error of at most `off`. The third value bounds both relative errors.
        """

        def tail_of(mean: float) -> Rounded:
            return normal_tail(x, off, mean, self.z, sign)

        without, share = tail_of(0.0)
        if self.uses == 1:
            present, present_share = tail_of(1.0)
            absent = (1.0 - self.q) * without
            mixed = absent + self.q * present
            largest_share = np.maximum(share, present_share)
            return without, mixed, largest_share + 4 * ROUNDING
        mixed = math.exp(self._logs[0]) * without
        largest_share = share
        for count, log in zip(self._counts, self._logs[1:], strict=True):
            present, present_share = tail_of(float(count))
            weight = math.exp(log)
            mixed = mixed + weight * present
            largest_share = np.maximum(largest_share, present_share)
        weights_off = 1.001 * self._off
        sum_off = ROUNDING * len(self._logs)
        share = largest_share + weights_off + 2 * FUNCTION + sum_off
        return without, mixed, share

    def _where(self, losses: np.ndarray) -> Rounded:
        """Return the x at which log dP/dQ is `losses`, with a bound on its error.

        x is -inf below the range of dP/dQ. Near the least loss, e^l - (1 - q) is a
        difference of nearly equal numbers, so that x is inaccurate. The difference has
        an error of `FUNCTION` times e^l - 1. Where it is at most twice that error, x is
        set on the safe side (as if it were that large, by addition, and -inf by
        removal), without an error bound.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.uses > 1:
                return self._where_mixed(losses - self._logs[0])
            return self._where_single(losses)

    def _where_single(self, losses: np.ndarray) -> Rounded:
        """Solve (1 - q) + q exp((x - 1/2) / z^2) = e^l."""
        change = np.expm1(np.minimum(losses, 601.0))
        total = change + self.q
        off = FUNCTION * np.abs(change)
        is_unknown = np.abs(total) <= 2 * off
        if self.add:
            safe_total = 2 * off
        else:
            safe_total = 0.0
        total = np.where(is_unknown, safe_total, total)
        ratio = np.maximum(total, 0.0) / self.q
        logs = np.log(ratio)
        logs = np.where(total > 0, logs, -np.inf)
        # Beyond the range of exp, e^l - (1 - q) is e^l.
        far_logs = losses - math.log(self.q)
        logs = np.where(losses > 600.0, far_logs, logs)
        variance = self.z**2
        x = 0.5 + variance * logs
        known_share = off / np.abs(total)
        share = np.where(is_unknown, 1.0, known_share) + 3 * ROUNDING
        logs_off = 2 * share + 2 * FUNCTION * np.abs(logs)
        rounding = 2 * ROUNDING * (1 + np.abs(x))
        moved = variance * logs_off + rounding
        return x, np.where(np.isfinite(x), moved, 0.0)

    def _where_mixed(self, rise: np.ndarray) -> Rounded:
        """Solve by Newton's method, for losses that are `rise` above their least.

        The equation is M(x) = log sum_{n >= 1} (p_n / p_0) exp((n x - n^2/2) / z^2) =
        log(e^rise - 1). M is convex, and its slope is between 1/z^2 and k/z^2. The
        iteration starts where one summand alone reaches the value, so to the right of
        the root, and falls to the root in a few steps. An error of M or of the value
        moves x by at most z^2 times that error. The remaining distance to the root is
        at most k times the last step.
        """
        # `rise` is off by as much as log p_0, and log(e^rise - 1) by that over 1 - e^-rise.
        off = self._off + ROUNDING * np.abs(rise)
        if self.add:
            safe_rise = 2 * off
        else:
            safe_rise = 0.0
        is_unknown = np.abs(rise) <= 2 * off
        rise = np.where(is_unknown, safe_rise, rise)
        share = -np.expm1(-np.maximum(rise, 0.0))
        log_change = np.log(share)
        targets = rise + log_change
        targets = np.where(rise > 0, targets, -np.inf)
        inside = np.isfinite(targets)
        target = targets[inside]
        share = -np.expm1(-np.maximum(rise, 1e-300))
        share_off = off / share
        target_off = 2 * share_off[inside] + 2 * self._off
        x, step = self._solve(target)
        variance = self.z**2
        most = self._counts[-1]
        ratios = self._logs[1:] - self._logs[0]
        largest_exponent = most * (np.abs(x) + most) / variance
        largest_ratio = float(np.abs(ratios).max())
        largest = largest_exponent + np.abs(target) + largest_ratio + 4
        function_off = target_off + 2 * FUNCTION * largest
        roots = np.full(rise.shape, -np.inf)
        error = np.zeros(rise.shape)
        roots[inside] = x
        step_off = most * np.abs(step)
        error[inside] = variance * function_off + step_off
        return roots, error

    def _solve(self, target: np.ndarray) -> Rounded:
        """Return the x at which M is `target`, float64 [n], and Newton's last step."""
        variance = self.z**2
        counts = self._counts
        ratios = self._logs[1:] - self._logs[0]
        x = np.full(len(target), np.inf)
        for count, ratio in zip(counts, ratios, strict=True):
            root_of_summand = (target - ratio) * variance / count + count / 2
            np.minimum(x, root_of_summand, out=x)
        for _ in range(60):
            top = np.full(len(x), -np.inf)
            for count, ratio in zip(counts, ratios, strict=True):
                exponent = ratio + count * (x - count / 2) / variance
                np.maximum(top, exponent, out=top)
            total = np.zeros(len(x))
            slope = np.zeros(len(x))
            for count, ratio in zip(counts, ratios, strict=True):
                exponent = ratio + count * (x - count / 2) / variance
                summand = np.exp(exponent - top)
                total += summand
                slope += count * summand
            excess = top + np.log(total) - target
            step = excess * variance * total / slope
            x -= step
            if not len(step):
                break
            scale = 1 + np.abs(x)
            relative_step = np.abs(step) / scale
            if np.max(relative_step) < 1e-15:
                break
        return x, step

    def loss(self, x: float) -> float:
        """Return the loss of removal at x."""
        if self.uses > 1:
            shifts = x - self._counts / 2
            exponents = self._counts * shifts / self.z**2
            present = self._logs[1:] + exponents
            logs = np.append(present, self._logs[0])
            return float(logsumexp(logs))
        exponent = (x - 0.5) / self.z**2
        log_absent = math.log1p(-self.q)
        log_present = math.log(self.q) + exponent
        return float(np.logaddexp(log_absent, log_present))

    def range(self, mass: float, most: float = 600.0) -> tuple[float, float]:
        """Return losses beyond which the first distribution has at most `mass`.

        The mass is on each side. Losses above `most` are cut off and count as infinite.
        """
        reach = -float(ndtri(mass)) * self.z
        low = self.uses * math.log1p(-self.q)
        if self.add:
            high = min(self.loss(reach), most)
            return -high, -low
        far = self._far(mass, reach)
        high = min(self.loss(far), most)
        return low, high

    def _far(self, mass: float, reach: float) -> float:
        """Return an x above which P has at most `mass`."""
        if self.uses == 1:
            return 1.0 + reach

        def excess(x: float) -> float:
            exact = np.array(0.0)
            _, mixed, _ = self._both(np.array(x), exact, 1.0)
            return float(mixed) - mass

        farthest = float(self._counts[-1]) + reach
        if excess(farthest) >= 0:
            return farthest
        root = scipy.optimize.brentq(excess, 0.0, farthest, xtol=1e-6)
        root = float(root)
        return root + 2e-6
