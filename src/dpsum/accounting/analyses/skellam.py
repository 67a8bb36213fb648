"""Skellam noise under secure aggregation, in one pass over blocks the server knows.

A client is in one release. There it moves a vector of integers by at most the bound
after rounding, which is at most one Gaussian release of multiplier z / `FACTOR`, in any
number of dimensions. The accountant recomputes bound, variance and shares from the
ledger's threshold, granularity and coordinates. The low end is that of a client whose
rotated contribution is one coordinate of norm C, under the noise of all shares.

X is Skellam of variance mu, the difference of two Poisson variables of mean mu / 2;
sums of it are Skellam again.

Guarantee. Let g be the largest step of the normal score -Phi^-1(P(X >= t)) from one
whole t to the next. Then X + v against X, each coordinate with noise of its own, is at
least as hard to tell apart as two normals at a distance of g |v|_2, for every v of
whole numbers. Proof. X is log-concave (Poisson variables are, and convolution keeps
it), so that the best tests between X and X + 1 are "X >= t" and mixtures of two of
these: their trade-off is linear between its corners (P(X >= t), 1 - P(X >= t - 1)), and
each corner lies on or above that of two normals at a distance of g. So does the line
between two of them, since the normals' is convex. A shift by k is k shifts by one after
another, which for normals is k g (Dong, Roth and Su 2022, Gaussian Differential
Privacy: groups), a negative one is the same by symmetry, and coordinates compose to g
|v|_2 (there: composition). Revealing nothing but the sum modulo a number, or choosing v
at random, makes no test better.

g is found numerically. It is the middle step, 2 Phi^-1((1 + P(X = 0)) / 2), or about (1
+ 1 / (6 mu)) / mu^1/2; all steps up to `_FAR` deviations are computed, and beyond it X
has geometric tails in place of its own, which changes the chance of any event by less
than 1e-60 and keeps it log-concave. There steps fall, since a normal's hazard rises.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from dploss.gaussian import Bracket, gaussian_epsilon
from dpsum.accounting.accountant import MEND, Events
from dpsum.accounting.analyses.known_rounds import OnePassAccountant
from dpsum.accounting.image_level import ImageUse
from dpsum.errors import DpsumError
from dpsum.ledger import Release
from dpsum.secure import Lattice

LEAST_VARIANCE = 256.0
"""Least variance of the noise on a coordinate, in squared units. Sums of 1,000
coordinates reach it from z = 1 on, whatever the modulus.
"""

FACTOR = 1.0007
"""Factor by which Skellam noise of that variance needs more deviation than normal noise
of the same privacy. The accountant checks it at each ledger's variance.
"""

_KEYS = ("granularity", "bits", "coordinates", "clients", "counted", "share_variance")
_FAR = 20.0
_ROUNDING = 1e-8  # relative, of a step; far above what double precision loses


@functools.lru_cache(maxsize=64)
def log_tails(variance: float) -> np.ndarray:
    """Return log P(X >= t) for t from 0 to `_FAR` deviations.

    The last entry is the log of P(X = t) / P(X = t - 1) at the last t.
    """
    deviation = math.sqrt(variance)
    far = math.ceil(_FAR * deviation) + 20
    ratios = np.empty(far)
    ratio = 0.0
    # P(X = t) / P(X = t - 1) = I_t / I_(t-1), which runs backwards from any start: each
    # step forgets most of it.
    start = far + 200 + math.ceil(5 * deviation)
    for t in range(start, 0, -1):
        ratio = 1.0 / (2.0 * t / variance + ratio)
        if t <= far:
            ratios[t - 1] = ratio
    logs = np.cumsum(np.log(ratios))
    log_chances = np.concatenate([[0.0], logs])
    chances = np.exp(log_chances)
    last_ratio = ratios[-1]
    beyond = chances[-1] * last_ratio / (1.0 - last_ratio)
    tails = np.cumsum(chances[::-1])
    tails = tails[::-1]
    tails = tails + beyond
    logs = np.append(
        np.log(tails / (2.0 * tails[1] + chances[0])), math.log(ratios[-1])
    )
    logs.flags.writeable = False
    return logs


def step(variance: float) -> float:
    """Return g at the variance mu > 0 of X.

    X and X + 1 are at most as far apart as two normals at this distance.
    """
    logs = log_tails(variance)
    last = logs[-1]
    scores = -ndtri_exp(logs[1:-1])
    farthest = scores[-1]
    log_scale = 0.5 * math.log(2 * math.pi)
    log_density = -0.5 * farthest**2 - log_scale
    hazard = math.exp(log_density - log_ndtr(-farthest))
    middle_step = 2 * float(scores[0])
    largest_step = float(np.diff(scores).max())
    far_step = -float(last) / hazard
    return (1 + _ROUNDING) * max(middle_step, largest_step, far_step)


def lower_epsilon(variance: float, shift: int, delta: float) -> float:
    """Return a lower bound on epsilon of X + shift against X in one dimension.

    It uses the best event "X >= t", and is at least 0.
    """
    logs = log_tails(variance)[:-1]
    upper = np.exp(logs)
    lower_chances = (1.0 - upper[1:])[::-1]
    tail_chances = np.concatenate([lower_chances, upper])  # from 1 - far on
    log_below = np.log1p(-upper[1:])
    log_below = log_below[::-1]
    log_both = np.concatenate([log_below, logs])
    if shift >= len(tail_chances):
        return 0.0
    power = tail_chances[: len(tail_chances) - shift] - delta
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratios = np.log(power) - log_both[shift:]
        epsilons = np.where(power > 0, log_ratios, 0.0)
    best = float(epsilons.max()) * (1 - _ROUNDING)
    return max(0.0, best)


class SkellamOnePassAccountant(OnePassAccountant):
    """Accountant of Skellam noise in known blocks.

    The high end is that of one Gaussian release, the low end that of one coordinate.
    """

    pair = "skellam", "one-pass"
    explanation = (
        "disjoint batches known to the server: each client is in one sum with Skellam"
        " noise, at most one Gaussian release; the low end is one coordinate's"
    )
    images = (
        "every client that uses the image contributes zero; known blocks: at most one"
        " Gaussian for the worst image of this partition; the low end is one client's"
    )
    width = (
        "the high end is a Gaussian's, the low end that of Skellam noise on one"
        " coordinate"
    )

    def gaussian(self, events: Events) -> float:
        return events.ends[0] / FACTOR

    def read(self, lines: Sequence[Release]) -> Events:
        """Read the ledger, and keep the least noisy release (`details`).

        It is the release that a client moves most, relative to its noise.
        """
        events = super().read(lines)
        for number, event in enumerate(lines):
            _check(event, f"the ledger's release {number}")
        worst = max(lines, key=_distance)
        return dataclasses.replace(events, details=worst)

    def bracket(self, events: Events, delta: float) -> Bracket:
        high = gaussian_epsilon(self.gaussian(events), delta)
        if events.details is None:
            return 0.0, high
        variance, shift = _alone(events.details)
        low = lower_epsilon(variance, shift, delta)
        return min(low, high), high

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        low, _ = self.bracket(events, delta)
        square = use.worst_square(events.multipliers)
        if square:
            high = gaussian_epsilon(square**-0.5 / FACTOR, delta)
        else:
            high = 0.0
        return min(low, high), high

    def explain(self, events: Events) -> str:
        stated = events.details.secure or {}
        lost = stated["clients"] - stated["counted"]
        return (
            f"{self.explanation}; assumes secure aggregation that shows the server the"
            f" sum modulo 2^{stated['bits']} alone, with an honest majority, and counts"
            f" {stated['counted']} of {stated['clients']} clients' shares of the noise:"
            f" {lost} may drop out or tell theirs"
        )


def _distance(event: Release) -> float:
    """Return by how many deviations a client moves one coordinate by itself."""
    variance, shift = _alone(event)
    return shift / math.sqrt(variance)


def _alone(event: Release) -> tuple[float, int]:
    """Return the variance of all shares' noise, and a client's largest move.

    The variance is in squared units, the move that of one coordinate in units.
    """
    lattice = event.secure or {}
    variance = lattice["share_variance"] * lattice["clients"]
    threshold = float(np.max(event.threshold))
    shift = math.floor(threshold / lattice["granularity"])
    return variance, shift


def _check(event: Release, where: str) -> None:
    """Refuse a release that no `SecureSum` makes, or with too little noise."""
    stated = event.secure
    if stated is None or set(stated) != set(_KEYS):
        raise DpsumError(
            f"{where} does not state its lattice of whole numbers"
            f" ({', '.join(_KEYS)}): {MEND}"
        )
    if not 1 <= stated["counted"] <= stated["clients"]:
        raise DpsumError(
            f"{where} counts {stated['counted']} of {stated['clients']} clients' noise:"
            f" {MEND}"
        )
    if stated["clients"] != event.sampler["cohort"]:
        raise DpsumError(
            f"{where} has shares of noise of {stated['clients']} clients, but its sampler"
            f" has {event.sampler['cohort']} in a round: its mechanism is not the one"
            " accounted for"
        )
    threshold = float(np.max(event.threshold))
    unit = stated["granularity"]
    lattice = Lattice(
        **{key: value for key, value in stated.items() if key != "share_variance"}
    )
    reach = unit * lattice.bound(threshold)
    if event.dimension > stated["coordinates"] or reach > np.max(event.sensitivity) * (
        1 + 1e-9
    ):
        raise DpsumError(
            f"{where} declares sensitivity {event.sensitivity}, but rounding"
            f" {event.dimension} coordinates makes it {reach:g}: its mechanism is not"
            " the one accounted for"
        )
    variance = stated["share_variance"] * stated["counted"]
    deviation = math.sqrt(variance)
    std_of_shares = unit * deviation
    if np.max(event.noise_std) > std_of_shares * (1 + 1e-9):
        raise DpsumError(
            f"{where} has noise of deviation {event.noise_std}, but {stated['counted']}"
            f" shares come to {std_of_shares:g}: its mechanism is not the"
            " one accounted for"
        )
    if variance < LEAST_VARIANCE or step(variance) * deviation > FACTOR:
        raise DpsumError(
            f"{where} has noise of variance {variance:.4g} units on a coordinate, below"
            f" the {LEAST_VARIANCE:g} of its analysis: raise noise.bits or"
            " noise.multiplier"
        )
