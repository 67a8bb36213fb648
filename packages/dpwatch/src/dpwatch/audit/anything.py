"""Audit of any release: a lower bound on epsilon of a function of contributions.

    audit = audited(release, dimension=1000, noise_multiplier=1.0, delta=1e-5)
    print(audit.epsilon, audit.claimed, audit.refuted)

`release` is one call of a mechanism: it maps contributions [n, d] to a release. The
audit attacks every call separately, as an observer who knows who is in the call and who
chose all other contributions. The attacks show how many times less noise the call has
than declared (the leak). Epsilon is that of the declared participation with so much
less noise. A participation that draws cohorts is attacked as well, by canaries among
its units, through all of its rounds.

The attacks share the false-alarm probability: one canary alone, canaries in single
coordinates, canaries spread over all coordinates, and canaries over rounds (`attacks`).
The bound of each is `ranks.rank_test`. It is exact where the trade-off curve of a call
is that of a Gaussian with more or less noise, or, where no mechanism is declared, that
of any (epsilon, delta)-DP mechanism.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpsum.audit.bounds import Bound
from dpsum.audit.ranks import rank_test
from dpsum.errors import DpsumError
from dpsum.participation import Participation
from dpsum.randomness import stream
from dpwatch.audit import attacks
from dpwatch.audit.declared import (
    ALONE,
    Declared,
    OfRounds,
    declared,
    description,
    observations_for,
)
from dpwatch.audit.watched import NULLS, ReleaseCall, Watched

CONFIDENCE = 0.95
FALSE_ALARM = 1e-3
"""Approximate probability that a whole audit refutes correct code."""

_TOGETHER = (64, 256)
_SPREAD = 32
"""Numbers of canaries in a call: least and most in separate coordinates, and most
spread over all coordinates.
"""

_MOST = 20_000
"""Most canaries of an attack."""

_ROUNDS = 2000
"""Number of calls up to which a participation is drawn anew."""

_ANOTHER = 1e-4

Scored = tuple[np.ndarray, np.ndarray]
"""Scores float64 [m] and coins bool [m]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attack:
    """Result of one attack: its name, bound, number of calls, and number of coins."""

    name: str
    bound: Bound
    calls: int
    observations: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audited:
    """Result of an audit of a release.

    Attributes:
        epsilon: the lower bound at `delta`, the largest over the attacks. It is wrong
            with probability at most 1 - confidence.
        claimed: the declared epsilon; None if nothing was declared.
        ideal: epsilon that the best attacker on the declared mechanism would show in
            half of all audits.
        leak: lower bound on how many times less noise the release has than declared.
        chance: approximate probability that correct code shows as large a leak.
        refuted: whether `chance` is below `false_alarm`, and something was declared.
        little: approximate probability that correct code shows as little to every
            attack; NaN where no mechanism was declared.
        delta, confidence, false_alarm, noise_multiplier, adjacency, sampler, dimension:
            as declared, or derived from the declaration.
        calls: number of calls that were made.
        plan: the plan that was reported before the audit started.
        attacks: result of each attack.
    """

    epsilon: float
    claimed: float | None
    ideal: float
    leak: float
    chance: float
    refuted: bool
    little: float
    delta: float
    confidence: float
    false_alarm: float
    noise_multiplier: float | None
    adjacency: str
    sampler: Mapping[str, Any]
    dimension: int
    calls: int
    plan: str
    attacks: tuple[Attack, ...]

    @property
    def worst(self) -> Attack:
        """The attack with the largest leak."""
        return max(self.attacks, key=lambda attack: attack.bound.numbers["leak"])

    @property
    def status(self) -> str:
        """The verdict in one sentence."""
        if self.claimed is None:
            return (
                f"epsilon is at least {self.epsilon:.4g} at delta {self.delta:g};"
                " nothing was declared"
            )
        if self.refuted:
            return (
                f"REFUTED: epsilon is at least {self.epsilon:.4g}, declared was"
                f" {self.claimed:.4g}; the attack '{self.worst.name}' shows it; a"
                " correct mechanism fails so once in"
                f" {1 / max(self.chance, 1e-30):.2g} audits"
            )
        text = (
            f"not refuted: at least {self.epsilon:.4g} is shown of the"
            f" {self.claimed:.4g} declared"
        )
        if self.epsilon > self.claimed:
            text += f", as right code does once in {1 / self.chance:.2g} audits"
        if self.little < _ANOTHER:
            text += (
                f"; an ideal attacker shows {self.ideal:.4g}, so that this is another"
                " mechanism than declared: more noise, smaller contributions, or an"
                " attack that does not suit it"
            )
        return text

    def to_json(self) -> dict[str, Any]:
        """Return the audit as numbers, text and lists, for `dpwatch.export.report`."""
        values = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        values["attacks"] = [
            {
                "name": attack.name,
                "epsilon": attack.bound.epsilon,
                "leak": attack.bound.numbers["leak"],
                "chance": attack.bound.numbers["chance_of_as_much"],
                "ideal": attack.bound.ideal,
                "assumes": attack.bound.assumes,
                "calls": attack.calls,
                "observations": attack.observations,
                "reason": attack.bound.reason,
            }
            for attack in self.attacks
        ]
        return values | {"status": self.status}


def audited(
    release: ReleaseCall,
    *,
    dimension: int,
    participation: (
        Participation | Callable[[int], Participation] | Mapping[str, Any] | None
    ) = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float = 1e-5,
    mechanism: str | None = "gaussian",
    adjacency: str = "add-or-remove",
    cohort: int | None = None,
    leak: float = math.sqrt(2),
    power: float = 0.95,
    calls: int | None = None,
    confidence: float = CONFIDENCE,
    false_alarm: float = FALSE_ALARM,
    seed: int = 0,
    say: Callable[[str], object] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Audited:
    """Attack a release, and return a lower bound on its leak and its epsilon.

    Args:
        release: one call of the mechanism. It maps a cohort's contributions, float64
            [n, d], to the release (clipped, added up and noised): an array, or several
            in a list or dict. Each call draws new noise. n differs from call to call;
            rows have norm 0, or at least 1e6.
        dimension: d.
        participation: how cohorts are drawn, so that epsilon is that of all rounds. An
            object with `sample_cohort(index)` and `describe()`, such as dpsum's
            participations, is attacked with canaries among its units. A function from a
            seed to such an object is attacked as often as necessary. A description
            alone, as in a ledger, is accepted without an attack. None: epsilon is that
            of one call.
        epsilon: declared epsilon of the participation at `delta`. The accountant finds
            the noise multiplier for it.
        noise_multiplier: z, declared instead of epsilon: deviation of the noise over
            sensitivity. If neither is declared, the result is only a bound.
        mechanism: "gaussian", or None: no mechanism is declared, and epsilon is that of
            one call.
        adjacency: a unit's contribution in the other world: "add-or-remove" (no row),
            "zero-out" (a row of zeros: the number of rows is public) or "replace-one"
            (the opposite row; sensitivity is twice the threshold).
        cohort: number of rows of every call, for the last two, if it must be fixed.
        leak, power: the plan is to detect `leak` times less noise than declared with
            probability `power`.
        calls: largest number of calls of each attack; the plan states the remaining
            power.
        confidence: confidence of the bound.
        false_alarm: approximate probability of refuting correct code.
        seed: seed of canaries and coins; the release draws its own noise.
        say: called with the plan before the attacks start, e.g. print.
        progress: called with the numbers of calls made and planned.

    Raises:
        DpsumError: the input is invalid; or the release fails, changes the size of its
            answer, keeps state or ignores its input.
    """
    for name, value, low, high in (
        ("delta", delta, 0, 1),
        ("confidence", confidence, 0, 1),
        ("false_alarm", false_alarm, 0, 1),
        ("power", power, 0, 1),
        ("leak", leak, 1, 1000),
    ):
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not low < value < high
        ):
            raise DpsumError(
                f"{name} is {value!r}: it must lie between {low} and {high}"
            )
    if calls is not None and (
        isinstance(calls, bool) or not isinstance(calls, int) or calls < attacks.BLOCK
    ):
        raise DpsumError(
            f"calls is {calls!r}: an attack takes {attacks.BLOCK} at least"
        )
    make = participation if callable(participation) else lambda _: participation
    first = None if participation is None else make(seed)
    sampler = dict(ALONE) if participation is None else description(first)
    family, claimed = declared(
        sampler,
        epsilon,
        noise_multiplier,
        delta,
        mechanism,
        once=getattr(first, "once", False),
    )
    planned = 0

    def report_progress(calls_made: int) -> None:
        if progress is not None:
            progress(calls_made, max(planned, calls_made))

    watched = Watched(release, dimension, adjacency, cohort, report_progress)
    whole = (
        family.whole
        if hasattr(first, "describe") and hasattr(first, "sample_cohort")
        else None
    )
    shares = 2 + (dimension > 1) + (whole is not None)
    share = 1 - (1 - confidence) / shares
    alarm = false_alarm / shares
    needed = observations_for(family, leak, power=power, false_alarm=alarm)
    observations = min(needed, _MOST, calls or _MOST)
    repeats = 0
    units = 0
    among = 0
    if whole is not None:
        units = whole.units
        among = min(dimension, watched.most, max(1, 3 * units // 4))
        enough = (
            min(_MOST, observations_for(whole, leak, power=power, false_alarm=alarm))
            / among
        )
        again = max(1, (calls or _ROUNDS) // sampler["rounds"])
        repeats = (
            int(np.clip(math.ceil(enough), 1, again)) if callable(participation) else 1
        )
    planned, plan = _plan(
        watched,
        observations,
        needed,
        leak=leak,
        power=power,
        calls=calls,
        rounds=repeats * sampler["rounds"],
    )
    if say is not None:
        say(plan)
    rng = stream(seed, "audit-anything")
    watched.learn(rng)
    results = list[Attack]()

    def add(name: str, scored: Callable[[], Scored], family: Declared = family) -> None:
        before = watched.calls
        scores, coins = scored()
        if not len(coins):  # no canary was in a round that is known: nothing to test
            return
        bound = rank_test(
            scores,
            coins,
            family,
            delta=delta,
            confidence=share,
            generator=stream(seed, f"audit-{name}"),
            ideal=family.ideal(coins),
        )
        results.append(
            Attack(
                name=name,
                bound=bound,
                calls=watched.calls - before,
                observations=len(coins),
            )
        )

    def many(canaries: attacks.Canaries) -> Scored:
        blocks = _blocks(observations, len(canaries.rows), calls)
        return attacks.together(watched, canaries, blocks=blocks, rng=rng)

    def through(family: OfRounds) -> Scored:
        canaries = attacks.in_coordinates(watched, among, rng)
        repetitions = [
            attacks.over_rounds(
                watched,
                canaries,
                make(seed + index),
                known=family.known,
                units=units,
                rng=rng,
            )
            for index in range(repeats)
        ]
        return np.concatenate([scores for scores, _ in repetitions]), np.concatenate(
            [coins for _, coins in repetitions]
        )

    add("alone", lambda: attacks.alone(watched, calls=observations, rng=rng))
    if watched.aligned:
        fits = watched.most
        add(
            "in coordinates",
            lambda: many(
                attacks.in_coordinates(watched, min(_apart(observations), fits), rng)
            ),
        )
        if dimension > 1:
            add(
                "over all",
                lambda: many(attacks.over_all(watched, min(_SPREAD, fits), rng)),
            )
        if whole is not None:
            add("over rounds", functools.partial(through, whole), whole)
    chance = min(
        1.0,
        shares * min(attack.bound.numbers["chance_of_as_much"] for attack in results),
    )
    return Audited(
        epsilon=max(attack.bound.epsilon for attack in results),
        claimed=claimed,
        ideal=max(attack.bound.ideal for attack in results),
        leak=max(attack.bound.numbers["leak"] for attack in results),
        chance=chance,
        refuted=claimed is not None and chance < false_alarm,
        little=max(
            attack.bound.chances.get("as_little", math.nan) for attack in results
        ),
        delta=delta,
        confidence=confidence,
        false_alarm=false_alarm,
        noise_multiplier=family.noise_multiplier,
        adjacency=adjacency,
        sampler=sampler,
        dimension=dimension,
        calls=watched.calls,
        plan=plan,
        attacks=tuple(results),
    )


def _apart(wanted: int) -> int:
    """Return the number of canaries in separate coordinates of one call.

    It is the number for one block, but enough to detect repeated noise.
    """
    return int(np.clip(math.ceil(2 * wanted / attacks.BLOCK), *_TOGETHER))


def _blocks(wanted: int, canaries: int, calls: int | None) -> int:
    """Return the number of blocks of calls that give `wanted` observations.

    Each canary in each call is half of an observation.
    """
    blocks = math.ceil(2 * wanted / (canaries * attacks.BLOCK))
    return max(1, min(blocks, (calls or _MOST) // attacks.BLOCK))


def _plan(
    watched: Watched,
    wanted: int,
    needed: int,
    *,
    leak: float,
    power: float,
    calls: int | None,
    rounds: int,
) -> tuple[int, str]:
    """Return the number of calls of the audit, and the plan in words."""
    counts = [wanted + 2 * attacks.TRAINING]
    counts += [
        _blocks(wanted, min(most, watched.most, watched.dimension), calls)
        * attacks.BLOCK
        for most in (_apart(wanted), _SPREAD)
    ]
    count = sum(counts) + rounds + 3 * NULLS + _SPREAD
    text = (
        f"about {count:,} calls: {counts[0]:,} with one canary, {counts[1]:,} and"
        f" {counts[2]:,} with many"
    )
    text += f", {rounds:,} as the participation draws them" if rounds else ""
    text += f"; noise {leak:.3g} times less than declared is told with chance {power:g}"
    if wanted < needed:
        text += (
            f" by {needed:,} canaries, and there are {wanted:,} in each attack: less"
            " noise is told with that chance only from about"
            f" {1 + (leak - 1) * math.sqrt(needed / wanted):.3g} times less on"
        )
    return count, text
