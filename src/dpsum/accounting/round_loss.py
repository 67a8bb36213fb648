"""The privacy loss of one sampled Gaussian: how likely a larger one is, with a bound on
rounding.

The pair is P = sum_n P(N = n) N(n, z^2), N ~ Binomial(k, q), against Q = N(0, z^2); see
`analyses.poisson`.
"""

import math

import numpy as np
import scipy
from scipy.special import gammaln, logsumexp, ndtri

from dpsum.accounting.gaussian import FUNCTION, ROUNDING, upper_tail


def normal_tail(
    x: np.ndarray, off: np.ndarray, mean: float, deviation: float, sign: float
) -> tuple[np.ndarray, np.ndarray]:
    """The chance of N(mean, deviation^2) above (sign 1) or below (-1) an x that may be
    off, and its error's share.
    """
    return upper_tail(
        sign * (x - mean) / deviation,
        (off + 3 * ROUNDING * (np.abs(x) + mean)) / deviation,
    )


class RoundLoss:
    """The privacy loss of one round, by removal (P against Q) or by addition (Q against
    P).

    Args:
        noise_multiplier, rate: z and q.
        add: the direction.
        uses: k; P is the mixture over Binomial(k, q).
        dropped: how much of that mixture's far end may be left out. P is then a little
            less than it is: what is left out goes on top of an upper end (`missing`),
            and a lower end can only fall.
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
            counts = np.arange(uses + 1, dtype=float)
            most = max(
                int(
                    np.searchsorted(-scipy.stats.binom.sf(counts, uses, rate), -dropped)
                ),
                1,
            )
            self.missing = (
                0.0
                if add
                else float(scipy.stats.binom.sf(most, uses, rate)) * (1 + 1e-9)
            )
            self._counts = counts[1 : most + 1]
            self._logs = scipy.stats.binom.logpmf(counts[: most + 1], uses, rate)
            # Each is three logarithms of factorials and two products, rounded apart
            # from one another.
            size = 3 * gammaln(uses + 1) - uses * (math.log(rate) + math.log1p(-rate))
            self._off = FUNCTION * (1.0 + float(size))

    def tails(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `compositions.RoundLaw`."""
        x, off = self._where(-losses if self.add else losses)
        # By addition a larger loss means a smaller x.
        sign = -1.0 if self.add else 1.0
        without, mixed, share = self._both(x, off, sign)
        return (without, mixed, share) if self.add else (mixed, without, share)

    def _both(
        self, x: np.ndarray, off: np.ndarray, sign: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The probability of Q and of P above (sign 1) or below (-1) an x that may be
        off, and the share of both.
        """

        def beyond(mean: float) -> tuple[np.ndarray, np.ndarray]:
            return normal_tail(x, off, mean, self.z, sign)

        without, share = beyond(0.0)
        if self.uses == 1:
            present, present_share = beyond(1.0)
            mixed = (1.0 - self.q) * without + self.q * present
            return without, mixed, np.maximum(share, present_share) + 4 * ROUNDING
        mixed = math.exp(self._logs[0]) * without
        most = share
        for count, log in zip(self._counts, self._logs[1:], strict=True):
            present, present_share = beyond(float(count))
            mixed = mixed + math.exp(log) * present
            most = np.maximum(most, present_share)
        return (
            without,
            mixed,
            most + 1.001 * self._off + 2 * FUNCTION + ROUNDING * len(self._logs),
        )

    def _where(self, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The x at which log dP/dQ is `losses`, -inf below the range of dP/dQ; and how
        far it may be off.

        Near its least a loss says little of x: there e^l - (1 - q) is a difference of
        numbers that are nearly equal. It is off by `FUNCTION` of e^l - 1. Where it is
        no larger than twice that, x is taken at the safe side (as if it were that
        large, by addition, and -inf by removal), and nothing is said to be known of it.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.uses > 1:
                return self._where_mixed(losses - self._logs[0])
            change = np.expm1(np.minimum(losses, 601.0))
            total = change + self.q
            off = FUNCTION * np.abs(change)
            unknown = np.abs(total) <= 2 * off
            total = np.where(unknown, 2 * off if self.add else 0.0, total)
            logs = np.where(total > 0, np.log(np.maximum(total, 0.0) / self.q), -np.inf)
            # Beyond the range of exp, e^l - (1 - q) is e^l.
            logs = np.where(losses > 600.0, losses - math.log(self.q), logs)
            x = 0.5 + self.z**2 * logs
            share = np.where(unknown, 1.0, off / np.abs(total)) + 3 * ROUNDING
            moved = self.z**2 * (
                2 * share + 2 * FUNCTION * np.abs(logs)
            ) + 2 * ROUNDING * (1 + np.abs(x))
            return x, np.where(np.isfinite(x), moved, 0.0)

    def _where_mixed(self, rise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same by Newton's method, for losses that are `rise` above their least.

        Solved is M(x) = log sum_{n >= 1} (p_n / p_0) exp((n x - n^2/2) / z^2) =
        log(e^rise - 1). M is convex and its slope is between 1/z^2 and k/z^2. Started
        where one summand alone reaches the value, so to the right of the root, it falls
        to the root in a few steps. An error of M or of the value moves x by at most z^2
        times it, and what is left to fall is at most k times the last step.
        """
        # `rise` is off by as much as log p_0, and log(e^rise - 1) by that over 1 -
        # e^-rise.
        off = self._off + ROUNDING * np.abs(rise)
        rise = np.where(np.abs(rise) <= 2 * off, 2 * off if self.add else 0.0, rise)
        targets = np.where(
            rise > 0, rise + np.log(-np.expm1(-np.maximum(rise, 0.0))), -np.inf
        )
        inside = np.isfinite(targets)
        target = targets[inside]
        moved = 2 * (off / -np.expm1(-np.maximum(rise, 1e-300)))[inside] + 2 * self._off
        variance = self.z**2
        counts = self._counts
        ratios = self._logs[1:] - self._logs[0]
        x = np.full(len(target), np.inf)
        for count, ratio in zip(counts, ratios, strict=True):
            np.minimum(x, (target - ratio) * variance / count + count / 2, out=x)
        for _ in range(60):
            top = np.full(len(x), -np.inf)
            for count, ratio in zip(counts, ratios, strict=True):
                np.maximum(top, ratio + count * (x - count / 2) / variance, out=top)
            total = np.zeros(len(x))
            slope = np.zeros(len(x))
            for count, ratio in zip(counts, ratios, strict=True):
                summand = np.exp(ratio + count * (x - count / 2) / variance - top)
                total += summand
                slope += count * summand
            step = (top + np.log(total) - target) * variance * total / slope
            x -= step
            if not len(step) or np.max(np.abs(step) / (1 + np.abs(x))) < 1e-15:
                break
        roots = np.full(rise.shape, -np.inf)
        error = np.zeros(rise.shape)
        roots[inside] = x
        largest = (
            counts[-1] * (np.abs(x) + counts[-1]) / variance
            + np.abs(target)
            + float(np.abs(ratios).max())
            + 4
        )
        error[inside] = variance * (moved + 2 * FUNCTION * largest) + counts[
            -1
        ] * np.abs(step)
        return roots, error

    def loss(self, x: float) -> float:
        """The loss of removal at x."""
        if self.uses > 1:
            exponents = self._counts * (x - self._counts / 2) / self.z**2
            return float(
                logsumexp(np.append(self._logs[1:] + exponents, self._logs[0]))
            )
        exponent = (x - 0.5) / self.z**2
        return float(np.logaddexp(math.log1p(-self.q), math.log(self.q) + exponent))

    def range(self, mass: float, most: float = 600.0) -> tuple[float, float]:
        """Losses below and above which the first distribution has at most `mass` on
        each side.

        What lies above `most` is cut off and counts as infinite.
        """
        reach = -float(ndtri(mass)) * self.z
        low = self.uses * math.log1p(-self.q)
        if self.add:
            return -min(self.loss(reach), most), -low
        return low, min(self.loss(self._far(mass, reach)), most)

    def _far(self, mass: float, reach: float) -> float:
        """An x above which P has at most `mass`."""
        if self.uses == 1:
            return 1.0 + reach

        def excess(x: float) -> float:
            return float(self._both(np.array(x), np.array(0.0), 1.0)[1]) - mass

        most = float(self._counts[-1]) + reach
        return (
            most
            if excess(most) >= 0
            else float(scipy.optimize.brentq(excess, 0.0, most, xtol=1e-6)) + 2e-6
        )
