"""A page that calculates epsilon and noise from a grid of proven ends: one HTML file.

The page needs no server, no network and no Python. It holds ends of epsilon that dpsum
proved at the points of a grid, rounded outwards to 16 bits. Between the points it shows
ends of neighbouring points and never an interpolation. That is valid since epsilon is
monotone in each number:

- It falls with the noise multiplier z: more noise is less noise with a further draw
  added, which is post-processing.
- It rises with the number of rounds: the first rounds of many are post-processing of
  all of them. This is for Poisson sampling and for releases over everyone. A
  balls-and-bins round has a rate of one over the number of rounds, so that the page
  has its grid's numbers of rounds alone.
- It falls with delta, by definition of the privacy profile.
- It rises with the sampling rate of Poisson sampling. At a rate a q, a mechanism draws
  as at q and then keeps each unit with probability a, so that its release is the
  mixture of a release at q, with weight a, and of one without the unit. Mixtures of two
  pairs are no further apart than the pairs (joint convexity of the hockey-stick
  divergence), and the second pair's divergence is zero. Each round's pair at a q is
  therefore dominated by that at q, and so is the composition. It holds for each
  adjacency.

Known blocks, and releases over everyone, are one Gaussian for a unit: of multiplier
z / sqrt(k) after k rounds, and of half of that under replace-one adjacency. Their table
has this multiplier alone.

Where rounding would leave the range of the table, the high end is infinite and the low
end is that of more noise; below the least shown epsilon, the low end is 0.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dploss.compositions import LEAST_NOISE, lower_end
from dploss.gaussian import gaussian_epsilon, guess_epsilon
from dpsum.accounting.analyses import balls_and_bins, poisson
from dpsum.errors import DpsumError

TEMPLATE = Path(__file__).with_name("calculator.html")
LEAST_EPSILON = 0.03
"""Epsilon below which the page shows no low end."""

LARGEST_EPSILON = 50.0
"""Epsilon above which the page shows no high end."""

INFINITE = 65_535
_STEPS = 4000
_LEAST_CODE = 1e-4


def _geometric(first: float, last: float, count: int) -> tuple[float, ...]:
    """Return numbers in a geometric series, in three digits."""
    return tuple(float(f"{value:.3g}") for value in np.geomspace(first, last, count))


@dataclasses.dataclass(frozen=True)
class Grid:
    """Points at which the page has proven ends; each tuple ascends.

    Attributes:
        rates: Poisson sampling rates.
        rounds: numbers of rounds.
        multipliers: noise multipliers z, at least 0.2.
        deltas: deltas.
        gaussian_multipliers: multipliers of one Gaussian release.
    """

    rates: tuple[float, ...] = _geometric(1e-4, 0.3, 18)
    rounds: tuple[int, ...] = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
    multipliers: tuple[float, ...] = _geometric(0.5, 8, 16)
    deltas: tuple[float, ...] = (1e-7, 1e-6, 1e-5)
    gaussian_multipliers: tuple[float, ...] = _geometric(0.1, 200, 400)

    def __post_init__(self) -> None:
        """Refuse a grid that is not ascending or leaves the accountants' range.

        Raises:
            DpsumError: the message names the numbers.
        """
        for field in dataclasses.fields(self):
            values = getattr(self, field.name)
            if not values or list(values) != sorted(set(values)) or values[0] <= 0:
                raise DpsumError(
                    f"the grid's {field.name} do not ascend from above 0: {values}"
                )
        if self.multipliers[0] < LEAST_NOISE or self.rates[-1] >= 1:
            raise DpsumError(
                f"the grid's multipliers start at {self.multipliers[0]} and its rates"
                f" end at {self.rates[-1]}: they need at least {LEAST_NOISE} and less"
                " than 1"
            )

    @property
    def size(self) -> int:
        """Number of points, of all samplers."""
        bins = len(self.rounds) * len(self.multipliers) * len(self.deltas)
        return bins * (len(self.rates) + 1) + (
            len(self.gaussian_multipliers) * len(self.deltas)
        )


def encode(epsilon: float, *, up: bool) -> int:
    """Return the 16-bit code of an end of epsilon, rounded outwards.

    Args:
        epsilon: the end, at least 0.
        up: whether it is a high end.
    """
    if math.isinf(epsilon):
        return INFINITE
    if epsilon <= _LEAST_CODE:
        return 1 if up else 0
    # A margin of 1e-9 steps: another exponential function may differ in its last bits.
    position = _STEPS * math.log(epsilon / _LEAST_CODE)
    if up:
        return min(math.ceil(position + 1e-9) + 1, INFINITE)
    return min(math.floor(position - 1e-9) + 1, INFINITE - 1)


def _poisson_ends(z: float, rate: float, rounds: int, delta: float) -> list[float]:
    schedule = ((z, rounds),)
    high = poisson.upper_epsilon(schedule, rate, delta)
    if high < LEAST_EPSILON:
        return [0.0, high]
    stage = poisson.stage_of(schedule, rate)
    step = 2 * _looseness(high) * high / rounds
    return [lower_end([stage], delta, upper=high, step=step), high]


def _looseness(epsilon: float) -> float:
    """Return the share of epsilon that the grid of a low end may lose to rounding.

    Finer grids take time in proportion. A small epsilon has the coarsest.
    """
    if epsilon >= 1.0:
        return 0.01
    if epsilon >= 0.1:
        return 0.03
    return 0.1


def _bins_ends(z: float, rounds: int, delta: float) -> list[float]:
    high = balls_and_bins.upper_epsilon(z, rounds, rounds, delta)
    return [balls_and_bins.lower_epsilon(z, rounds, rounds, delta), high]


def _column(
    multipliers: Sequence[float],
    guess: Callable[[float], float],
    ends: Callable[[float], list[float]],
) -> list[list[float]]:
    """Return ends [low, high] at each multiplier; skip what the page does not show.

    By monotonicity in z, a small high end also bounds all larger multipliers, and the
    low end of a larger multiplier also bounds a smaller one.
    """
    column = []
    small = None
    for z in multipliers:
        if small is not None:
            column.append([0.0, small])
        elif guess(z) > 1.2 * LARGEST_EPSILON:
            column.append([0.0, math.inf])
        else:
            low, high = ends(z)
            column.append([low, high if high <= LARGEST_EPSILON else math.inf])
            if high < LEAST_EPSILON:
                small = high
    for index in range(len(column) - 2, -1, -1):
        column[index][0] = max(column[index][0], column[index + 1][0])
    return column


def _poisson_table(task: tuple[Grid, float]) -> list[int]:
    """Return codes at one rate: [rounds, deltas, multipliers, ends], flat."""
    grid, rate = task
    codes = list[int]()
    for rounds in grid.rounds:
        for delta in grid.deltas:
            column = _column(
                grid.multipliers,
                lambda z: guess_epsilon(z, rate, rounds, delta),  # noqa: B023
                lambda z: _poisson_ends(z, rate, rounds, delta),  # noqa: B023
            )
            codes += _codes(column)
    return codes


def _bins_table(task: tuple[Grid, int]) -> list[int]:
    """Return codes at one number of rounds: [deltas, multipliers, ends], flat."""
    grid, rounds = task
    codes = list[int]()
    for delta in grid.deltas:
        column = _column(
            grid.multipliers,
            lambda z: 0.0,
            lambda z: _bins_ends(z, rounds, delta),  # noqa: B023
        )
        codes += _codes(column)
    return codes


def _gaussian_table(grid: Grid) -> list[int]:
    """Return codes of one Gaussian: [deltas, multipliers, ends], flat."""
    codes = list[int]()
    for delta in grid.deltas:
        exact = [gaussian_epsilon(z, delta) for z in grid.gaussian_multipliers]
        codes += _codes([[epsilon, epsilon] for epsilon in exact])
    return codes


def _codes(column: Sequence[Sequence[float]]) -> list[int]:
    codes = []
    for low, high in column:
        codes += [encode(low, up=False), encode(high, up=True)]
    return codes


def _base64(codes: Sequence[int]) -> str:
    """Return 16-bit codes in little-endian order as base64."""
    return base64.b64encode(np.array(codes, dtype="<u2").tobytes()).decode()


def compute_tables(grid: Grid, *, processes: int = 1) -> dict[str, Any]:
    """Compute the ends at all points of a grid.

    Args:
        grid: the points.
        processes: number of processes that compute.

    Returns:
        The data of the page: the grid's numbers, its size and time, and the codes of
        each sampler as base64.
    """
    started = time.perf_counter()
    rates = [(grid, rate) for rate in grid.rates]
    numbers = [(grid, rounds) for rounds in grid.rounds]
    if processes == 1:
        sampled = [_poisson_table(task) for task in rates]
        bins = [_bins_table(task) for task in numbers]
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            sampled = pool.map(_poisson_table, rates, chunksize=1)
            bins = pool.map(_bins_table, numbers, chunksize=1)
    tables = {
        "poisson": _base64([code for part in sampled for code in part]),
        "balls-and-bins": _base64([code for part in bins for code in part]),
        "gaussian": _base64(_gaussian_table(grid)),
    }
    return dataclasses.asdict(grid) | {
        "size": grid.size,
        "seconds": round(time.perf_counter() - started, 1),
        "processes": processes,
        "steps": _STEPS,
        "least_code": _LEAST_CODE,
        "infinite": INFINITE,
        "least_epsilon": LEAST_EPSILON,
        "largest_epsilon": LARGEST_EPSILON,
        "tables": tables,
    }


def calculator_page(data: dict[str, Any]) -> str:
    """Return the HTML page with the tables of `compute_tables`."""
    template = TEMPLATE.read_text(encoding="utf-8")
    return template.replace('"DATA"', json.dumps(data))
