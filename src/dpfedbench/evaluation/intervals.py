"""Confidence intervals of a mean accuracy, over tasks or over seeds.

This module also writes the file of a test, metrics.json.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from dpfedbench.errors import BenchError
from dpfedbench.files import write_json
from dpfedbench.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean and the ends of its interval, in the unit of the values."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float]) -> Interval:
    """Return Student's t interval, at 95 %, of the mean of independent values.

    A single value gives no information about the spread: the interval is then unbounded
    (NaN at both ends).

    Raises:
        BenchError: a value is not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    if not np.isfinite(sample).all():
        raise BenchError("an accuracy is not finite: look at the run's history")
    mean = float(sample.mean())
    half = math.nan
    if sample.size > 1:
        half = float(
            stdtrit(sample.size - 1, 0.975)
            * sample.std(ddof=1)
            / math.sqrt(sample.size)
        )
    return Interval(mean=mean, low=mean - half, high=mean + half)


def write_metrics(path: Path, run: Run, interval: Interval, **more: Any) -> None:
    """Write metrics.json: the run, its accuracy in percent, the interval, and more."""
    head = {"dataset": run.dataset, "method": run.method, "seed": run.seed}
    write_json(
        path,
        head
        | {"accuracy": interval.mean, "ci_low": interval.low, "ci_high": interval.high}
        | more,
    )


def write_task_metrics(
    path: Path, run: Run, accuracies: np.ndarray, *, members: int, **more: Any
) -> None:
    """Write metrics.json of a test on tasks.

    `accuracies` are in percent, float64 [tasks].
    """
    write_metrics(
        path,
        run,
        mean_interval(accuracies.tolist()),
        **more,
        tasks=len(accuracies),
        shots=run.task.shots,
        query_per_class=run.evaluation.query_per_class,
        steps=run.evaluation.steps,
        members=members,
        per_task=[round(float(value), 6) for value in accuracies],
    )
