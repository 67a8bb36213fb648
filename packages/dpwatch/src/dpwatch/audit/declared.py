"""Declared mechanisms: the families against which an audit tests a release."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import ndtri

from dpsum.accounting.accountant import Curve, Events
from dpsum.accounting.analyses import find
from dpsum.accounting.calibration import calibrate
from dpsum.audit.ideal import Drawn, gaussian, secret
from dpsum.audit.ranks import Family, RankTest, posteriors
from dpsum.errors import DpsumError
from dpsum.randomness import stream

_PILOT = 1000
_MANY_DRAWS = 0.998
_LEAST = 200
"""Least observations of an attack: with fewer, the normal approximation of the
false-alarm probability fails.
"""

ALONE: dict[str, Any] = {
    "kind": "one-pass",
    "clients": 1,
    "cohort": 1,
    "rounds": 1,
    "rate": 1.0,
}
"""Sampler of a single call."""


class OfRounds(Family):
    """Family of the Gaussian releases of all rounds of a participation.

    Args:
        noise_multiplier: z of each round.
        sampler: sampler of the participation.
        once: whether a unit is in one round.
        whole: for single calls, the participation that consists of them. Its epsilon is
            reported.

    Attributes:
        known: whether the observer may know who is in which round.
        units: number of units that cohorts are drawn from.
    """

    def __init__(
        self,
        noise_multiplier: float,
        sampler: Mapping[str, Any],
        *,
        once: bool = False,
        whole: OfRounds | None = None,
    ) -> None:
        analysis = find("gaussian", sampler["kind"])
        self._rounds = int(sampler["rounds"])
        schedule = ((noise_multiplier, self._rounds),)
        super().__init__(analysis, schedule, sampler)
        self.name = self.name if whole is None else whole.name
        self._one = analysis.gaussian(Events.planned(schedule, sampler))
        self.known = analysis.known
        self.noise_multiplier = noise_multiplier
        self._once = once
        self.whole = whole
        self.units = int(sampler[analysis.units_of(sampler)])
        self._rate = float(sampler["rate"])

    def epsilon(self, leak: float, delta: float) -> float:
        return (
            super().epsilon(leak, delta)
            if self.whole is None
            else self.whole.epsilon(leak, delta)
        )

    def ideal(self, coins: np.ndarray) -> Drawn | None:
        """Return a function that draws the best attacker's scores."""
        if self.known and self._one is not None:
            return functools.partial(gaussian, coins, self._one**-2)
        once = self._rounds if self._once else 0
        multipliers = [self.noise_multiplier] * self._rounds
        return lambda generator: secret(
            coins, multipliers, generator, rate=self._rate, once=once
        )


class Whatever(Family):
    """Family of all (leak times epsilon, delta)-DP mechanisms."""

    noise_multiplier = None
    whole = None

    def __init__(self, epsilon: float, delta: float) -> None:
        self._epsilon = epsilon
        self._delta = delta
        self.name = f"whatever is (eps, {delta:g})-DP"
        self.largest = 1e3 / epsilon
        self.posteriors = functools.cache(self._posteriors)

    def epsilon(self, leak: float, delta: float) -> float:
        return leak * self._epsilon

    def ideal(self, coins: np.ndarray) -> Drawn | None:
        """Return None: no single mechanism defines the scores."""
        return None

    def _posteriors(self, leak: float) -> np.ndarray:
        # With probability delta the loss is infinite; 1,000 has the same effect.
        share = np.full(2, self._delta)
        return posteriors(
            Curve(
                np.array([leak * self._epsilon, 1e3 + leak * self._epsilon]),
                share,
                share,
            )
        )


Declared = OfRounds | Whatever


def observations_for(
    family: Family, leak: float, *, power: float, false_alarm: float
) -> int:
    """Return the number of coins that an attack needs to detect a leak.

    The function draws the statistic of a pilot with a thousand coins. With n times as
    many coins, its mean is n times as large, and its deviation n^1/2 times.

    Args:
        family: the declared family.
        leak: factor by which the noise is smaller than declared, above 1.
        power: probability of detecting that leak.
        false_alarm: probability of refuting correct code.
    """
    test = RankTest(
        family, _PILOT, confidence=_MANY_DRAWS, generator=stream(0, "audit-plan")
    )
    null_draws = test.draws(1.0)
    leaky_draws = test.draws(min(leak, family.largest))
    gap = max(float(leaky_draws.mean() - null_draws.mean()), 1e-9)
    blocks = (
        -ndtri(false_alarm) * null_draws.std() + ndtri(power) * leaky_draws.std()
    ) / gap
    return int(np.clip(math.ceil(_PILOT * blocks**2), _LEAST, 10**9))


def description(participation: Any) -> dict[str, Any]:
    """Return the sampler of a participation or of a ledger.

    Raises:
        DpsumError: the argument is neither.
    """
    described = (
        participation
        if isinstance(participation, Mapping)
        else getattr(participation, "describe", dict)()
    )
    if not isinstance(described.get("kind"), str) or not isinstance(
        described.get("rounds"), int
    ):
        shown = repr(participation)[:60]
        raise DpsumError(
            f"participation is {shown}: pass one of dpsum's participations, a"
            " function of a seed that returns one, or a ledger's sampler"
        )
    return dict(described)


def declared(
    sampler: dict[str, Any],
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    mechanism: str | None,
    *,
    once: bool,
) -> tuple[Declared, float | None]:
    """Return the family of the declared mechanism, and the declared epsilon.

    Arguments as in `anything.audited`.

    Raises:
        DpsumError: the arguments contradict one another, or no analysis covers them.
    """
    for name, value in (("epsilon", epsilon), ("noise_multiplier", noise_multiplier)):
        if value is not None and not 0 < value < math.inf:
            raise DpsumError(f"{name} is {value}: it must be finite and above 0")
    if epsilon is not None and noise_multiplier is not None:
        raise DpsumError(
            "both epsilon and noise_multiplier are declared: one follows from the"
            " other, leave one out"
        )
    if mechanism not in ("gaussian", None):
        raise DpsumError(
            f"mechanism is {mechanism!r}: declare gaussian, or None for any other"
        )
    if mechanism is None or (epsilon is None and noise_multiplier is None):
        if noise_multiplier is not None or sampler != ALONE:
            raise DpsumError(
                "a noise multiplier or a participation needs a declared mechanism:"
                " declare gaussian with noise_multiplier or epsilon, or epsilon of"
                " one call alone"
            )
        return Whatever(epsilon or 1.0, delta), epsilon
    if sampler != ALONE:
        find("gaussian", sampler["kind"]).check(sampler)
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = calibrate("proven", sampler, epsilon, delta)
    z = float(noise_multiplier)
    family = OfRounds(z, ALONE, whole=OfRounds(z, sampler, once=once))
    return family, family.epsilon(1.0, delta) if epsilon is None else epsilon
