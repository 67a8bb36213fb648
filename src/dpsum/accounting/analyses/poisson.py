"""Poisson participation: each unit is in each round with probability q, independently.

One round is dominated, under add-or-remove and zero-out alike, by P = (1 - q) N(0, z^2)
+ q N(1, z^2) against Q = N(0, z^2), in both directions. Where k clients that take part
independently are zeroed together (`uses`: the clients that use one image), N of them
come, N ~ Binomial(k, q), their contributions add up to a vector of norm at most N, and
the pair is the mixture of Gaussians P = sum_n P(N = n) N(n, z^2) against Q
(Choquette-Choo et al., Privacy Amplification for Matrix Mechanisms, 2024: vectors may
be replaced by bounds of their norms). It is attained where all k point the same way.
"""

import contextlib
import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dploss.compositions import (
    Stage,
    lower_end,
    upper_curve,
    upper_end,
)
from dploss.fine_brackets import best_upper_end, is_unusual, is_wide, refined
from dploss.gaussian import (
    Bracket,
    Schedule,
    gaussian_deltas,
    gaussian_epsilon,
    grouped,
    joint_of,
)
from dploss.grid_sums import WindowTooWide
from dploss.groups import known_draws_epsilon, squares_of_binomials
from dploss.renyi import renyi_of_rounds
from dploss.round_loss import RoundLoss
from dpsum.accounting.accountant import (
    EPSILONS,
    Accountant,
    ComposedAccountant,
    Curve,
    Events,
)
from dpsum.accounting.image_level import ImageUse
from dpsum.errors import DpsumError
from dpsum.ledger import Release
from dpsum.sampling import Sampling

_law = lru_cache(maxsize=256)(RoundLoss)


@lru_cache(maxsize=256)
def stage_of(schedule: Schedule, rate: float, uses: int = 1) -> Stage:
    """Return the stage of Poisson-sampled rounds, for removing and adding units.

    Removing costs more than adding (Zhu, Dong and Wang 2022, for eps >= 0). Both orders
    are computed all the same.

    Args:
        schedule: noise of the rounds.
        rate: probability that a unit takes part in a round.
        uses: number of units that are removed or added together.
    """
    return Stage(
        schedule,
        rate,
        lambda z, mass: [_law(z, rate, add, uses, mass) for add in (False, True)],
        uses,
        first_is_worst=uses == 1,
    )


def check(schedule: Schedule, rate: float, delta: float, uses: int = 1) -> None:
    """Refuse invalid numbers; ValueError, since no accountant passes them on."""
    is_valid = 0 < rate <= 1 and 0 < delta < 1 and uses >= 1
    for z, count in schedule:
        is_valid = is_valid and 0 < z < math.inf and count >= 1
    if not is_valid:
        raise ValueError(
            "Poisson accounting needs 0 < q <= 1, 0 < delta < 1, z > 0, counts >= 1 and"
            " uses >= 1"
        )


@lru_cache(maxsize=4096)
def upper_epsilon(
    schedule: Schedule, rate: float, delta: float, uses: int = 1
) -> float:
    """Return a proven upper bound on epsilon, for both directions of add-or-remove.

    Args:
        schedule: (z, rounds) pairs with z > 0; empty: no release.
        rate: q in (0, 1].
        delta: in (0, 1).
        uses: k >= 1, number of clients that are zeroed out (or added, or removed)
            together.
    """
    check(schedule, rate, delta, uses)
    if not schedule:
        return 0.0
    stage = stage_of(schedule, rate, uses)
    # Sampling can only help (joint convexity), so composed Gaussians are a ceiling, and
    # reached at q = 1.
    ceiling = gaussian_epsilon(stage.joint / uses, delta)
    if uses == 1 and rate < 1.0:
        return best_upper_end(stage, delta, ceiling)
    if stage.no_grid:
        return ceiling
    return upper_end([stage], delta, ceiling=ceiling)


def upper_deltas(
    schedule: Schedule, rate: float, epsilons: np.ndarray
) -> list[np.ndarray]:
    """Return upper bounds on delta by removal and by addition at each epsilon >= 0.

    They are sharp where they are not small.
    """
    check(schedule, rate, 0.5)
    stage = stage_of(schedule, rate)
    if stage.no_grid:
        return [gaussian_deltas(stage.joint, epsilons)] * 2
    return upper_curve(stage, epsilons)


@lru_cache(maxsize=256)
def lower_epsilon(
    schedule: Schedule, rate: float, delta: float, uses: int = 1
) -> float:
    """Return a proven lower bound on epsilon (by removal); see `upper_epsilon`."""
    upper = upper_epsilon(schedule, rate, delta, uses)
    if not schedule or rate == 1.0 or upper == 0.0:
        return upper
    stage = stage_of(schedule, rate, uses)
    if uses > 1:
        if stage.no_grid:
            return 0.0
        return lower_end([stage], delta, upper=upper)
    return _refined_ends(stage, delta, upper)[0]


def ends(schedule: Schedule, rate: float, delta: float) -> Bracket:
    """Return proven ends of epsilon for one unit; arguments as in `upper_epsilon`.

    The high end is at most `upper_epsilon`. It is lower where the bracket is wide and
    the finer grids of the low end give a lower one.
    """
    upper = upper_epsilon(schedule, rate, delta)
    low = lower_epsilon(schedule, rate, delta)
    if not is_wide(low, upper):
        return low, upper
    return _refined_ends(stage_of(schedule, rate), delta, upper)


@lru_cache(maxsize=256)
def _refined_ends(stage: Stage, delta: float, upper: float) -> Bracket:
    """Return proven ends on the usual grid, and on finer grids where these are wide."""
    low = 0.0
    if not is_unusual([stage], delta):
        with contextlib.suppress(WindowTooWide):
            low = lower_end([stage], delta, upper=upper)
    if is_wide(low, upper):
        return refined((stage,), delta, low, upper)
    return low, upper


@lru_cache(maxsize=256)
def composed_ends(stages: tuple[tuple[Schedule, float], ...], delta: float) -> Bracket:
    """Return proven ends of epsilon of several stages, one after another.

    The stages may be a search and the training that follows. A unit is in all stages or
    in none. Each stage draws its rounds independently of the others, given the earlier
    releases. The pairs of all rounds are composed like those of one stage, whatever
    their noise and rate.

    Where a stage has no grid (rate 1, or very little noise), the high end is that of
    composed Gaussians, which sampling can only improve. The low end is then that of the
    Gaussian stages together, and at least that of any stage alone: fewer releases
    reveal no more.
    """
    if len(stages) == 1:
        return ends(*stages[0], delta)
    ceiling = _as_one_gaussian([schedule for schedule, _ in stages], delta)
    certain = [schedule for schedule, rate in stages if rate == 1.0]
    if certain:
        lows = [lower_epsilon(schedule, rate, delta) for schedule, rate in stages]
        return max(*lows, _as_one_gaussian(certain, delta)), ceiling
    alone = [upper_epsilon(schedule, rate, delta) for schedule, rate in stages]
    each_stage = [stage_of(schedule, rate) for schedule, rate in stages]
    if is_unusual(each_stage, delta):
        return refined(tuple(each_stage), delta, 0.0, ceiling)
    start = min(sum(alone), 1.3 * max(alone))
    high = upper_end(each_stage, delta, ceiling=ceiling, start=start)
    low = lower_end(each_stage, delta, upper=high)
    if is_wide(low, high):
        return refined(tuple(each_stage), delta, low, high)
    return low, high


def _as_one_gaussian(schedules: Sequence[Schedule], delta: float) -> float:
    """Return epsilon of all rounds if every unit were in each."""
    rounds = tuple(itertools.chain(*schedules))
    return gaussian_epsilon(joint_of(rounds), delta)


class PoissonAccountant(ComposedAccountant):
    """Accountant of Poisson sampling by the privacy loss distribution.

    Rounds may have different noise.
    """

    pair = "gaussian", "poisson"
    explanation = (
        "each client in each round with the same chance; privacy loss distribution,"
        " bracketed"
    )
    images = (
        "every client that uses the image contributes zero; each of them takes part on"
        " its own: a mixture of Gaussians over their number, composed over rounds, for"
        " the most used image"
    )
    ends_of = lower_epsilon, upper_epsilon

    def bracket(self, events: Events, delta: float) -> Bracket:
        least = grouped(events.schedule, least=True)
        most = grouped(events.schedule, least=False)
        if self.gaussian(events) is not None or least != most:
            return super().bracket(events, delta)
        return ends(least, events.rate, delta)

    def curve(self, events: Events) -> Curve:
        schedule = grouped(events.schedule, least=True)
        deltas = upper_deltas(schedule, events.rate, EPSILONS)
        return Curve(EPSILONS, *deltas)

    def renyi(self, events: Events, orders: Sequence[float]) -> np.ndarray:
        schedule = grouped(events.schedule, least=True)
        return renyi_of_rounds(schedule, events.rate, orders)

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        uses = use.most
        done = len(events.multipliers)
        rate = events.rate
        least = min(events.multipliers)
        # The server's noise is constant; otherwise each end would take its safe side.
        low_schedule = ((max(events.multipliers), done),)
        high_schedule = ((least, done),)
        high = upper_epsilon(high_schedule, rate, delta, uses)
        low = lower_epsilon(low_schedule, rate, delta, uses)
        if low == 0.0 < high:
            low = lower_epsilon(low_schedule, rate, delta)
            squares = squares_of_binomials(uses, rate, done)
            known_draws = known_draws_epsilon(*squares, least, delta)
            high = min(high, known_draws)
        return low, high


class PoissonLotsAccountant(PoissonAccountant):
    """Accountant of Poisson lots of each client's records.

    No two clients hold the same record. The noise of lots may follow a public
    validation loss, which two proofs cover (`accounting.filters`).
    """

    pair = "gaussian", "poisson-lots"
    explanation = (
        "each record of a client in each lot with the same chance; privacy loss"
        " distribution, bracketed; no record is at two clients"
    )
    units = "records"
    follows_loss = True

    image = Accountant.image


class OwnRecordsPoissonAccountant(PoissonAccountant):
    """Accountant of a few-shot client's sums over Poisson samples of its own examples.

    A client takes part once, and only its samples are secret. For one of its examples,
    its releases are one sampled Gaussian for each step. If the noise differs between
    rounds, the least noisy round counts.
    """

    pair = "gaussian", "within-task-poisson"
    within_task = True
    shared_records = True
    explanation = (
        "a client takes part once, and one of its examples is in each of its steps with"
        " the same chance, in secret; privacy loss distribution, bracketed"
    )
    images = (
        "an image is an example of up to {uses} simulated clients, each of which makes"
        " releases of its own; composed"
    )
    units = "records"

    def check_numbers(self, sampling: Sampling) -> None:
        """Check that each step reads a record with probability 1 / number of steps."""
        super().check_numbers(sampling)
        self.check_whole(sampling, "steps")
        share = sampling["rate"] * sampling["steps"]
        if not math.isclose(share, 1.0, rel_tol=1e-12):
            raise self.contradiction(
                sampling,
                f"with {sampling['steps']} steps the rate must be"
                f" 1/{sampling['steps']}",
            )

    def read(self, lines: Sequence[Release]) -> Events:
        named: dict[str, list[Release]] = {}
        for event in lines:
            named.setdefault(event.name, []).append(event)
        for of_name in named.values():
            if of_name[0].sampler | {"draw": ""} != lines[0].sampler | {"draw": ""}:
                raise DpsumError(
                    f"{lines[0].name} and {of_name[0].name} have samples of other"
                    " sizes: account for them separately"
                )
        # Each name has its own set of examples, so that the least noisy one counts.
        of_names = [PoissonAccountant.read(self, of_name) for of_name in named.values()]
        events = min(of_names, key=lambda events: min(events.multipliers))
        steps = int(events.sampling["steps"])
        claimed_schedule, _ = events.claimed[0]
        counted = min(z for z, _ in claimed_schedule)
        return Events(
            samplings=events.samplings,
            schedule=((min(events.multipliers), steps),),
            claimed=((((counted, steps),), events.sampling),),
            multipliers=events.multipliers,
        )

    def image(self, events: Events, use: ImageUse, delta: float) -> Bracket:
        steps = int(events.sampling["steps"])
        rate = events.rate
        low_schedule = ((max(events.multipliers), steps),)
        low = lower_epsilon(low_schedule, rate, delta)
        high_schedule = ((min(events.multipliers), steps * use.most),)
        return low, upper_epsilon(high_schedule, rate, delta)
