"""An audit of anybody's release: a lower bound on the epsilon of a function that takes contributions.

    found = audited(release, dimension=1000, noise_multiplier=1.0, delta=1e-5)
    print(found.epsilon, found.claimed, found.refuted)

`release` is one call of a mechanism: contributions [n, d] in, what is released out. Every call is attacked by itself,
by an observer who knows who is in it and who chose all other contributions; what the attacks show is how many times
less noise the call has than declared (the leak), and epsilon is that of the declared participation with so much less
noise. The participation itself is not tried but taken from the declaration: to check a loader or sampler, watch it.

Three attacks share the chance of a false alarm: canaries in single coordinates, canaries spread over all of them, and
one canary alone (`attacks`). The bound of each is `ranks.rank_test`. It is exact where the trade-off curve of a call is
that of a Gaussian with more or less noise, or, where no mechanism is declared, of anything that is (epsilon, delta)-DP.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtri

from dpsum.accounting.analyses import find
from dpsum.accounting.analyses.base import Deltas
from dpsum.accounting.calibration import calibrate
from dpsum.audit import attacks
from dpsum.audit.bounds import Bound
from dpsum.audit.ideal import Drawn, gaussian
from dpsum.audit.ranks import Family, RankTest, posteriors, rank_test
from dpsum.audit.watched import NULLS, ReleaseCall, Watched, look
from dpsum.errors import DpsumError
from dpsum.randomness import stream

CONFIDENCE = 0.95
FALSE_ALARM = 1e-3
"""The chance, about, with which right code is refuted by a whole audit."""

_TOGETHER, _SPREAD = 256, 32
"""Canaries of a call, in coordinates of their own and spread over all, at most."""

_PILOT = 1000
_LEAST, _MOST = 200, 20_000
"""Observations of an attack: with fewer the chance of a false alarm is no normal one."""

_ALONE = {"kind": "one-pass", "clients": 1, "cohort": 1, "rounds": 1, "rate": 1.0}
_ANOTHER = 1e-4


class Described(Protocol):
    """A participation of dpsum."""

    def describe(self) -> Mapping[str, Any]: ...


class _OfCalls(Family):
    """Gaussian releases, one to each call, and epsilon of a participation made of them.

    Args:
        noise_multiplier: z.
        sampler: the participation's.
    """

    def __init__(self, noise_multiplier: float, sampler: Mapping[str, Any]) -> None:
        super().__init__(find("gaussian", "one-pass"), ((noise_multiplier, 1),), _ALONE)
        whole = find("gaussian", sampler["kind"])
        self._whole = Family(whole, ((noise_multiplier, int(sampler["rounds"])),), sampler)
        self.name = f"{sampler['kind']} with any Gaussian noise"
        self.noise_multiplier: float | None = noise_multiplier

    def epsilon(self, leak: float, delta: float) -> float:
        return self._whole.epsilon(leak, delta)

    def ideal(self, coins: np.ndarray) -> Drawn | None:
        """Draws the best attacker's scores."""
        assert self.noise_multiplier is not None
        return functools.partial(gaussian, coins, self.noise_multiplier**-2)


class _Whatever(Family):
    """Everything that is (leak times epsilon, delta)-DP."""

    noise_multiplier: float | None = None

    def __init__(self, epsilon: float, delta: float) -> None:
        self._epsilon, self._delta = epsilon, delta
        self.name, self.largest = f"whatever is (eps, {delta:g})-DP", 1e3 / epsilon
        self.posteriors = functools.cache(self._posteriors)

    def epsilon(self, leak: float, delta: float) -> float:
        return leak * self._epsilon

    def ideal(self, coins: np.ndarray) -> Drawn | None:
        """There is no one mechanism whose scores they would be."""
        return None

    def _posteriors(self, leak: float) -> np.ndarray:
        # With chance delta everything is told; a loss of 1,000 is as good as that.
        share = np.full(2, self._delta)
        return posteriors(Deltas(np.array([leak * self._epsilon, 1e3 + leak * self._epsilon]), share, share))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attack:
    """What one attack showed: its name, its bound, the calls it took and the coins it guessed."""

    name: str
    bound: Bound
    calls: int
    observations: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audited:
    """The audit of a release.

    Attributes:
        epsilon: the lower bound at `delta`, wrong with a chance of at most 1 - confidence; the largest of the attacks'.
        claimed: epsilon as declared; None: nothing was.
        ideal: what the best attacker of the mechanism declared would show in half of all audits.
        leak: how many times less noise the release is shown to have than declared, at least.
        chance: that right code shows as much, about.
        refuted: whether that is below `false_alarm`, and something was declared.
        little: the chance that right code shows as little to every attack, about; NaN where no mechanism was declared.
        delta, confidence, false_alarm, noise_multiplier, adjacency, sampler, dimension: as declared, or found from it.
        calls: that were made.
        plan: what was said before it started.
        attacks: one by one.
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
        """The attack that showed the most."""
        return max(self.attacks, key=lambda attack: attack.bound.found["leak"])

    @property
    def status(self) -> str:
        """The verdict, in a sentence."""
        if self.claimed is None:
            return f"epsilon is at least {self.epsilon:.4g} at delta {self.delta:g}; nothing was declared"
        if self.refuted:
            return (
                f"REFUTED: epsilon is at least {self.epsilon:.4g}, declared was {self.claimed:.4g}; the attack "
                f"'{self.worst.name}' shows it, as right code does once in {1 / max(self.chance, 1e-30):.2g} audits"
            )
        said = f"not refuted: at least {self.epsilon:.4g} is shown of the {self.claimed:.4g} declared"
        if self.little < _ANOTHER:
            said += (
                f"; an ideal attacker shows {self.ideal:.4g}, so that this is another mechanism than declared: more "
                "noise, smaller contributions, or an attack that does not suit it"
            )
        return said

    def to_json(self) -> dict[str, Any]:
        """The audit as numbers, text and lists; what is not finite is None."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["attacks"] = [
            {
                "name": attack.name, "epsilon": attack.bound.epsilon, "leak": attack.bound.found["leak"],
                "chance": attack.bound.found["chance_of_as_much"], "ideal": attack.bound.ideal,
                "assumes": attack.bound.assumes, "calls": attack.calls, "observations": attack.observations,
                "reason": attack.bound.reason,
            }
            for attack in self.attacks
        ]  # fmt: skip
        values |= {"status": self.status, "sampler": dict(self.sampler)}
        return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [{key: _plain(each) for key, each in item.items()} for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def observations_for(family: Family, leak: float, *, power: float, false_alarm: float, confidence: float) -> int:
    """How many coins an attack takes to tell a leak from the declared mechanism.

    From draws of the statistic of a pilot's thousand coins: of n times as many its mean is n times as large, and its
    deviation n^1/2 times.

    Args:
        family: declared.
        leak: how many times less noise is to be told, above 1.
        power: the chance to tell it.
        false_alarm: the attack's.
        confidence: of the test.
    """
    test = RankTest(family, _PILOT, confidence=confidence, generator=stream(0, "audit-plan"))
    own, other = test.draws(1.0), test.draws(min(leak, family.largest))
    gap = max(float(other.mean() - own.mean()), 1e-9)
    wanted = (-ndtri(false_alarm) * own.std() + ndtri(power) * other.std()) / gap
    return int(np.clip(math.ceil(_PILOT * wanted**2), _LEAST, 10**9))


def audited(
    release: ReleaseCall,
    *,
    dimension: int,
    participation: Described | Mapping[str, Any] | None = None,
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
    """Attack a release, and say how much less private than declared it is at least.

    Args:
        release: one call of the mechanism: contributions float64 [n, d] of a cohort to what is released (clipped,
            added up and noised), an array or several in a list or dict. It draws noise anew in each call. n differs
            from call to call; rows have norm 0 or 1e6 and more.
        dimension: d.
        participation: how cohorts are drawn: a participation of dpsum, or its description in a ledger. None: epsilon is
            that of one call.
        epsilon: declared, at `delta`, of the participation; the noise multiplier is what the accountant finds for it.
        noise_multiplier: z, declared in place of epsilon: deviation of the noise over sensitivity. Neither: nothing is
            declared, and there is a bound alone.
        delta: of epsilon.
        mechanism: "gaussian", or None: not declared; then epsilon is that of one call.
        adjacency: what the other world has of a unit: "add-or-remove" (no row), "zero-out" (a row of zeros: the number
            of rows is public) or "replace-one" (the row against it; sensitivity is twice the threshold).
        cohort: rows of every call, for the last two, if it has to be a certain number.
        leak: the plan is to tell so many times less noise than declared ...
        power: ... with this chance.
        calls: of each attack at most; the plan says what is left of the power.
        confidence: of the bound.
        false_alarm: the chance to refute right code, about.
        seed: of canaries and coins; the release has noise of its own.
        say: is told the plan before the attacks start, e.g. print.
        progress: is told the calls made and planned.

    Raises:
        DpsumError: bad input; a release that fails, changes its answer's size, keeps state or ignores its input.
    """
    sampler = dict(_ALONE if participation is None else _description(participation))
    for name, value, low, high in (
        ("delta", delta, 0, 1), ("confidence", confidence, 0, 1), ("false_alarm", false_alarm, 0, 1),
        ("power", power, 0, 1), ("leak", leak, 1, 1000),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value < high:
            raise DpsumError(f"{name} is {value!r}: it must lie between {low} and {high}")
    if calls is not None and (isinstance(calls, bool) or not isinstance(calls, int) or calls < attacks.BLOCK):
        raise DpsumError(f"calls is {calls!r}: an attack takes {attacks.BLOCK} at least")
    family, claimed = _declared(sampler, epsilon, noise_multiplier, delta, mechanism)
    watched = Watched(release, dimension, adjacency, cohort)
    shares = 3 if dimension > 1 else 2
    share, alarm = 1 - (1 - confidence) / shares, false_alarm / shares
    needed = observations_for(family, leak, power=power, false_alarm=alarm, confidence=share)
    wanted = min(needed, _MOST, calls or _MOST)
    plan = _plan(watched, wanted, needed, leak=leak, power=power, calls=calls)
    if say is not None:
        say(plan)
    rng = stream(seed, "audit-anything")
    seen = look(watched, rng)
    sets = {}
    if seen.aligned:
        sets["in coordinates"] = attacks.in_coordinates(watched, seen, min(_TOGETHER, watched.most), rng)
    if seen.aligned and dimension > 1:
        sets["over all"] = attacks.over_all(watched, seen, min(_SPREAD, watched.most), rng)
    blocks = {name: _blocks(wanted, len(each.rows), calls) for name, each in sets.items()}
    total = watched.calls + sum(blocks.values()) * attacks.BLOCK + 2 * attacks.TRAINING + wanted

    def step() -> None:
        if progress is not None:
            progress(watched.calls, total)

    made = [("alone", watched.calls, *attacks.alone(watched, seen, calls=wanted, rng=rng, step=step))]
    for name, each in sets.items():
        made.append(
            (name, watched.calls, *attacks.together(watched, seen, each, blocks=blocks[name], rng=rng, step=step))
        )
    ends = [before for _, before, _, _ in made[1:]] + [watched.calls]
    found = tuple(
        Attack(
            name=name, calls=end - before, observations=len(coins),
            bound=rank_test(
                scores, coins, family, delta=delta, confidence=share, generator=stream(seed, f"audit-{name}"),
                ideal=family.ideal(coins),
            ),
        )
        for (name, before, scores, coins), end in zip(made, ends, strict=True)
    )  # fmt: skip
    chance = min(1.0, shares * min(attack.bound.found["chance_of_as_much"] for attack in found))
    return Audited(
        epsilon=max(attack.bound.epsilon for attack in found), claimed=claimed,
        ideal=max(attack.bound.ideal for attack in found), leak=max(attack.bound.found["leak"] for attack in found),
        chance=chance, refuted=claimed is not None and chance < false_alarm,
        little=max(attack.bound.chances.get("as_little", math.nan) for attack in found),
        delta=delta, confidence=confidence, false_alarm=false_alarm, noise_multiplier=family.noise_multiplier,
        adjacency=adjacency, sampler=sampler, dimension=dimension, calls=watched.calls, plan=plan, attacks=found,
    )  # fmt: skip


def _description(participation: Described | Mapping[str, Any]) -> dict[str, Any]:
    described = participation if isinstance(participation, Mapping) else getattr(participation, "describe", dict)()
    if not isinstance(described.get("kind"), str):
        raise DpsumError(f"participation is {participation!r:.60}: hand over one of dpsum's, or a ledger's sampler")
    return dict(described)


def _declared(
    sampler: dict[str, Any], epsilon: float | None, noise_multiplier: float | None, delta: float, mechanism: str | None
) -> tuple[_OfCalls | _Whatever, float | None]:  # fmt: skip
    """The family of what was declared, and epsilon as declared."""
    for name, value in (("epsilon", epsilon), ("noise_multiplier", noise_multiplier)):
        if value is not None and not 0 < value < math.inf:
            raise DpsumError(f"{name} is {value}: it must be finite and above 0")
    if epsilon is not None and noise_multiplier is not None:
        raise DpsumError("both epsilon and noise_multiplier are declared: one follows from the other, leave one out")
    if mechanism not in ("gaussian", None):
        raise DpsumError(f"mechanism is {mechanism!r}: declare gaussian, or None for any other")
    if mechanism is None or (epsilon is None and noise_multiplier is None):
        if noise_multiplier is not None or sampler != _ALONE:
            raise DpsumError(
                "a noise multiplier or a participation says nothing of a mechanism that is not declared: declare "
                "gaussian with noise_multiplier or epsilon, or epsilon of one call alone"
            )
        return _Whatever(epsilon or 1.0, delta), epsilon
    if sampler != _ALONE:
        find("gaussian", sampler["kind"]).check_sampler(sampler)
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = calibrate("holds", sampler, epsilon, delta)
    family = _OfCalls(float(noise_multiplier), sampler)
    return family, family.epsilon(1.0, delta) if epsilon is None else epsilon


def _blocks(wanted: int, canaries: int, calls: int | None) -> int:
    """Blocks of calls for so many observations, of which each canary in each call is half of one."""
    blocks = math.ceil(2 * wanted / (canaries * attacks.BLOCK))
    return max(1, min(blocks, (calls or _MOST) // attacks.BLOCK))


def _plan(watched: Watched, wanted: int, needed: int, *, leak: float, power: float, calls: int | None) -> str:
    counts = [wanted + 2 * attacks.TRAINING]
    counts += [
        _blocks(wanted, min(most, watched.most, watched.dimension), calls) * attacks.BLOCK
        for most in (_TOGETHER, _SPREAD)
    ]
    said = (
        f"about {sum(counts) + 3 * NULLS + _SPREAD:,} calls: {counts[0]:,} with one canary, {counts[1]:,} and "
        f"{counts[2]:,} with many; noise {leak:.3g} times less than declared is told with chance {power:g}"
    )
    if wanted < needed:
        said += (
            f" by {needed:,} canaries, and there are {wanted:,} in each attack: less noise is told with that chance "
            f"only from about {1 + (leak - 1) * math.sqrt(needed / wanted):.3g} times less on"
        )
    return said
