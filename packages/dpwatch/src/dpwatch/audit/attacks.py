"""Attacks on one call of a release: canaries by secret coins, and a score for each.

- `together`: many canaries in a call, in separate directions (single coordinates, or
  spread over all coordinates). Each is scored by its likelihood ratio under the
  measured noise, over the calls of a block. Where the noise of two calls has a common
  part, the score subtracts it.
- `alone`: one canary in a call, against a row in the opposite direction. It moves the
  sum as far as one canary can. Other changes are scored as well, such as the noise's
  size where the denominator is the realised number, and answers that are far from all
  others. The canary is the first row of a call, the last, or any, in random turns.
- `over_rounds`: canaries among the units of a participation, in the rounds and cohorts
  that it draws. The score is that of the participation's own description
  (`ideal.Tally`).

The scores depend on everything but the coins, so that the order of canaries by score
may be given to `ranks.rank_test`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats

from dpsum.audit.ideal import Tally
from dpsum.errors import DpsumError
from dpwatch.audit.watched import LARGE, Watched, log_spread, unit_vector

BLOCK = 16
"""Number of calls whose noise is analysed together."""

TRAINING = 64
"""Number of calls in each world from which the score of `alone` is learned."""

_POSITIONS = 3
_ANYWHERE = 2
"""Numbers of positions of a canary that is alone: first, last, and any."""

_FAR = 4.0
_LEAST_MEMBERS = 8
"""Groups of answers are this many times the reach of a row apart, and clear of the noise. Where a group has fewer members of a world, its calls are not compared.
"""

_SAME_POSITIONS = 1e-4
"""Probability of calls as uneven as those whose shares are taken position by position."""

_PLAIN = 6.0
"""Number of standard errors beyond which a change of the noise is scored as well."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
    """Canaries of one call.

    Attributes:
        rows: contributions before clipping, float64 [j, d].
        filters: linear filters of the release, one for each canary, float64 [j, k].
        shift, deviation: how far each canary moves its filter's value, and the
            deviation of the noise of that value, float64 [j].
    """

    rows: np.ndarray
    filters: np.ndarray
    shift: np.ndarray
    deviation: np.ndarray


def in_coordinates(watched: Watched, most: int, rng: np.random.Generator) -> Canaries:
    """Return canaries in single coordinates.

    They are in coordinates with clearly less noise than others, or in any.
    """
    least = np.flatnonzero(watched.variance < np.median(watched.variance) / 4)
    at = rng.permutation(least if len(least) else watched.dimension)[:most]
    rows = np.zeros((len(at), watched.dimension))
    rows[np.arange(len(at)), at] = LARGE
    copies = max(1, watched.most // len(at))
    crowd = np.concatenate([watched.background, np.repeat(rows, copies, axis=0)])
    moved = (
        np.stack([watched(crowd)[at] for _ in range(8)]).mean(axis=0) - watched.mean[at]
    )
    filters = np.zeros((len(at), len(watched.mean)))
    filters[np.arange(len(at)), at] = 1.0
    shift = np.full(len(at), float(np.median(moved)) / copies)
    return Canaries(
        rows=rows, filters=filters, shift=shift, deviation=np.sqrt(watched.variance[at])
    )


def over_all(watched: Watched, most: int, rng: np.random.Generator) -> Canaries:
    """Return orthogonal canaries spread over all coordinates: cosines of random signs.

    Where coordinates are clipped or noised in groups, such a canary is in all groups.
    """
    d = watched.dimension
    chosen = rng.permutation(d - 1)[:most] + 1
    rows = np.cos(np.pi * np.outer(chosen, 2 * np.arange(d) + 1) / (2 * d)) * np.sqrt(
        2 / d
    )
    rows *= LARGE * rng.choice([-1.0, 1.0], d)
    response = np.stack([watched.response(row) for row in rows])
    noisy = (
        watched.variance > np.median(watched.variance) / 1e6
    )  # coordinates without any are `in_coordinates`' own
    filters = np.where(noisy, response / watched.variance, 0.0)
    square = np.maximum((filters * response).sum(axis=1), 1e-300)
    return Canaries(rows=rows, filters=filters, shift=square, deviation=np.sqrt(square))


def together(
    watched: Watched, canaries: Canaries, *, blocks: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and coins, each [m], of blocks of calls with half of the canaries.

    The coordinates of absent canaries show the noise alone.
    """
    scores = []
    coins = []
    count = len(canaries.rows)
    deviation = np.maximum(
        canaries.deviation, 1e-3 * np.abs(canaries.shift)
    )  # where there is no noise at all
    shift = np.divide(
        canaries.shift, deviation, out=np.zeros(count), where=deviation > 0
    )
    for _ in range(blocks):
        here = rng.integers(2, size=(BLOCK, count)).astype(bool)
        coin = rng.integers(2, size=(BLOCK, count)).astype(bool)
        x = np.empty((BLOCK, count))
        for t in range(BLOCK):
            rows = np.concatenate([watched.background, canaries.rows[here[t]]])
            moved = canaries.filters @ (watched(rows, coin[t, here[t]]) - watched.mean)
            x[t] = np.divide(moved, deviation, out=np.zeros(count), where=deviation > 0)
            # Under replace-one the other world is equally far in the other direction.
        middle, reach = (
            (0.0, 2 * shift)
            if watched.adjacency == "replace-one"
            else (shift / 2, shift)
        )
        scores.append(_ratios(x - np.where(here, middle, 0.0), here, reach)[here])
        coins.append(coin[here])
    return np.concatenate(scores), np.concatenate(coins)


def _ratios(x: np.ndarray, here: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return log-likelihood ratios of the coins, float64 [t, j].

    The covariance of two calls is estimated over the coordinates, which have nothing
    else in common. A prior of independent noise has the weight of twice as many
    coordinates as there are calls. A canary of another call, whose coin is unknown,
    adds noise of variance shift^2 / 4 there and so lowers the weight.

    Args:
        x: values in deviations of the noise, relative to their mean over both worlds,
            float64 [t, j].
        here: whether there is a canary, bool [t, j].
        shift: distance between the two worlds, float64 [j].
    """
    calls = len(x)
    prior = 2 * len(x)
    unknown = shift**2 / 4
    weights = np.where(here, 1 / (1 + unknown), 1.0)
    common = (weights * x) @ (weights * x).T / (weights @ weights.T + prior)
    np.fill_diagonal(
        common,
        (np.where(here, 0.0, x**2).sum(axis=1) + prior) / ((~here).sum(axis=1) + prior),
    )
    # Noise that is equal to the last digits was drawn once, even in few coordinates.
    absent_twice = ~here[:, None] & ~here[None]
    same = np.where(absent_twice, np.abs(x[:, None] - x[None]) < 1e-6, True).all(
        axis=2
    ) & (absent_twice.sum(axis=2) > 1)
    common = np.where(same, np.sqrt(np.outer(np.diag(common), np.diag(common))), common)
    values, vectors = np.linalg.eigh(common)
    common = (vectors * np.maximum(values, 1e-3)) @ vectors.T
    inverse = np.linalg.inv(
        common[None] + np.eye(calls)[None] * (here.T * unknown[:, None])[:, :, None]
    )
    diagonal = np.einsum("jtt->tj", inverse)
    # Without the canary's own variance (Sherman and Morrison).
    ratios = (
        shift
        * np.einsum("jts,sj->tj", inverse, x)
        / np.maximum(1 - unknown * diagonal, 1e-12)
    )
    return np.asarray(ratios)


def alone(
    watched: Watched, *, calls: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and coins, each [calls], of one canary in each call."""
    rows = np.concatenate([watched.background, 2 * watched.direction[None, :]])

    def answer(present: bool, position: int) -> np.ndarray:
        order = _order(watched.pair_size, position, rng)
        return watched(rows, np.array([present]), order=order) - watched.mean

    worlds = [
        np.stack([answer(present, number % _POSITIONS) for number in range(TRAINING)])
        for present in (False, True)
    ]
    positions = np.arange(TRAINING) % _POSITIONS
    if watched.aligned:
        way = watched.response(watched.direction) / watched.variance
    # what is released is laid out otherwise: the direction is learned from calls that
    # are then left out
    else:
        cut = TRAINING // 2
        way = (
            worlds[1][:cut].mean(axis=0) - worlds[0][:cut].mean(axis=0)
        ) / watched.variance
        worlds = [world[cut:] for world in worlds]
        positions = positions[cut:]
    way = unit_vector(way)
    absent, present = (_features(world, way) for world in worlds)
    ratio = _learned_by_position(absent, present, positions)
    coins = rng.integers(2, size=calls).astype(bool)
    turns = rng.integers(_POSITIONS, size=calls)
    scores = [
        ratio(_features(answer(bool(coin), position)[None], way), position)
        for coin, position in zip(coins, turns, strict=True)
    ]
    return np.array(scores), coins


def _order(count: int, position: int, rng: np.random.Generator) -> np.ndarray:
    """Return positions of the rows of a call, the background and one canary first.

    Args:
        count: number of rows.
        position: the canary's: 0 first, 1 last, 2 any.
    """
    order = rng.random(count)
    if position < _ANYWHERE:
        order[1] = -1.0 if position == 0 else 2.0
    return order


def _learned_by_position(
    absent: np.ndarray, present: np.ndarray, positions: np.ndarray
) -> Callable[[np.ndarray, int], float]:
    """Return the fitted log-likelihood ratio of features [1, 2] at a position.

    Answers of right code are one group, and the ratio is `_learned` for all positions.
    Where some are far from the others, the shares of the groups are compared between
    the worlds, and the ratio within a group is that of its own centre.

    Args:
        absent, present: features of the calls in each world, [n, 2].
        positions: position of the canary in each of these calls, [n].
    """
    borders = _borders(absent[:, 0], present[:, 0])
    if not len(borders):
        ratio = _learned(absent, present)
        return lambda features, _: float(ratio(features)[0])
    groups = [np.searchsorted(borders, world[:, 0]) for world in (absent, present)]
    within = {}
    for group in range(len(borders) + 1):
        members = [
            world[of == group]
            for world, of in zip((absent, present), groups, strict=True)
        ]
        if min(map(len, members)) >= _LEAST_MEMBERS:
            within[group] = _learned(*members)

    shares = [_shares_by_position(of, len(borders) + 1, positions) for of in groups]

    def scored(features: np.ndarray, position: int) -> float:
        group = int(np.searchsorted(borders, features[0, 0]))
        value = float(np.log(shares[1][position, group] / shares[0][position, group]))
        if group in within:
            value += float(within[group](features)[0])
        return value

    return scored


def _shares_by_position(
    groups: np.ndarray, count: int, positions: np.ndarray
) -> np.ndarray:
    """Return the shares of the groups at each position, float64 [positions, count].

    They are above 0. They are the same for all positions unless the groups of calls
    clearly depend on the position (chi-squared test).

    Args:
        groups: number of the group of each call, [n].
        count: number of groups.
        positions: position of the canary in each call, [n].
    """
    counts = np.zeros((_POSITIONS, count))
    np.add.at(counts, (positions, groups), 1.0)
    seen = counts[:, counts.any(axis=0)]
    if scipy.stats.chi2_contingency(seen).pvalue > _SAME_POSITIONS:
        counts[:] = counts.mean(axis=0)
    counts += 0.5
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _borders(absent: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Return the borders between groups of answers that are very far apart.

    Between the worlds of right code there are the noise and the reach of one row. Both
    are measured by a quarter of the calls, so that the others may be far away: the
    noise by the densest absent answers, the reach by the present answers that have an
    absent one nearest by.
    """
    quarter = len(absent) // 4
    ordered = np.sort(absent)
    # The shortest range of a quarter; for normal noise about half a deviation.
    spread = float(np.min(ordered[quarter:] - ordered[:-quarter]))
    nearest = np.abs(present[:, None] - absent).min(axis=1)
    reach = float(np.quantile(nearest, 0.25))
    values = np.sort(np.concatenate([absent, present]))
    far = np.flatnonzero(np.diff(values) > _FAR * max(6 * spread, reach))
    return np.asarray((values[far] + values[far + 1]) / 2)


def _features(answers: np.ndarray, way: np.ndarray) -> np.ndarray:
    """Return the scored features [n, 2] of answers [n, k].

    They are the value along a direction, and the log of the spread of the rest.
    """
    along = answers @ way
    rest = answers - along[:, None] * way
    return np.stack([along, log_spread(rest)], axis=1)


def _learned(
    absent: np.ndarray, present: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the fitted log-likelihood ratio of two normal laws of features [n, 2].

    Only parameters that clearly differ between the laws are fitted separately.
    """
    count = len(absent)
    means = [absent.mean(axis=0), present.mean(axis=0)]
    variances = [
        np.maximum(world.var(axis=0, ddof=1), 1e-300) for world in (absent, present)
    ]
    pooled = (variances[0] + variances[1]) / 2
    same = np.abs(np.log(variances[1] / variances[0])) < _PLAIN * 2 / np.sqrt(count)
    variances = [np.where(same, pooled, variance) for variance in variances]
    moved = np.abs(means[1] - means[0]) > _PLAIN * np.sqrt(2 * pooled / count)
    used = np.array([True, bool(moved[1] or not same[1])])

    def ratio(projections: np.ndarray) -> np.ndarray:
        logs = [
            -((projections - mean) ** 2) / (2 * var) - 0.5 * np.log(var)
            for mean, var in zip(means, variances, strict=True)
        ]
        return np.asarray((logs[1] - logs[0])[:, used].sum(axis=1))

    return ratio


def over_rounds(
    watched: Watched,
    canaries: Canaries,
    plan: Any,
    *,
    known: bool,
    units: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and coins, each [m], of canaries among a participation's units.

    The canaries are in separate coordinates, and take part in all rounds that the
    participation draws for them.

    Args:
        watched: the release.
        canaries: the canaries.
        plan: the participation: `sample_cohort(index)`, `describe()`, and `once` where
            each unit is in one round.
        known: whether the observer may know who is in which round.
        units: number of units of the participation.
        rng: draws the units and the coins.
    """
    sampler = plan.describe()
    count = len(canaries.rows)
    rounds = int(sampler["rounds"])
    rate = float(sampler["rate"])
    coordinate = np.full(units, -1)
    coordinate[rng.permutation(units)[:count]] = np.arange(count)
    coins = rng.integers(2, size=count).astype(bool)
    cohorts = [_cohort(plan, index, units) for index in range(rounds)]
    here = [coordinate[cohort][coordinate[cohort] >= 0] for cohort in cohorts]
    tally = Tally(
        (count,),
        members=here if known else None,
        once=bool(getattr(plan, "once", False)),
    )
    noise = np.maximum(
        canaries.deviation / np.maximum(np.abs(canaries.shift), 1e-300), 1e-3
    )
    for index, (cohort, present_canaries) in enumerate(zip(cohorts, here, strict=True)):
        # `watched` pads a call of a fixed number of rows with zeros.
        fill = 0 if watched.fixed else len(cohort) - len(present_canaries)
        fill_rows = np.zeros((fill, watched.dimension))
        present = np.concatenate(
            [coins[present_canaries], np.ones(len(fill_rows), bool)]
        )
        answer = (
            watched(
                np.concatenate(
                    [watched.background, canaries.rows[present_canaries], fill_rows]
                ),
                present,
            )
            - watched.mean
        )
        moved = (canaries.filters @ answer) / canaries.shift
        if watched.adjacency == "replace-one":
            moved = (moved + 1) / 2
        tally.add(
            index, moved, noise / (2 if watched.adjacency == "replace-one" else 1), rate
        )
    took_part = (
        np.isin(np.arange(count), np.concatenate(here))
        if known
        else np.ones(count, bool)
    )
    return tally.scores[took_part], coins[took_part]


def _cohort(plan: Any, index: int, units: int) -> np.ndarray:
    cohort = np.asarray(plan.sample_cohort(index))
    if cohort.ndim != 1 or (cohort.dtype.kind not in "iu" and len(cohort)):
        raise DpsumError(
            f"participation returned a cohort for round {index} that is not a list of"
            " unit numbers"
        )
    if len(cohort) and not 0 <= cohort.min() <= cohort.max() < units:
        raise DpsumError(
            f"participation returned a cohort for round {index} with a unit outside"
            f" its {units:,} units"
        )
    return cohort.astype(int)
