"""Confidence intervals of a mean accuracy, over tasks or over seeds; and the file that
a test writes them to.
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
from dpfedbench.method import Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean and the ends of its interval, in the unit of the values.

    `over` names what was taken as independent: "tasks" or "seeds"; `count` is how many
    of them.
    """

    mean: float
    low: float
    high: float
    count: int
    over: str


def mean_interval(values: Sequence[float], *, over: str = "tasks") -> Interval:
    """Student's t interval of the mean of independent values, at 95 %; `over` says what
    they are draws of.

    Of a single value nothing is known about the spread: the interval is then unbounded
    (NaN at both ends).

    Raises:
        BenchError: there is no value, or one is not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise BenchError(f"no interval over no {over}: give at least one value")
    if not np.isfinite(sample).all():
        raise BenchError(
            f"an accuracy is not finite, so there is no interval over {over}: look at"
            " the run's history"
        )
    mean = float(sample.mean())
    half = math.nan
    if sample.size > 1:
        half = float(
            stdtrit(sample.size - 1, 0.975)
            * sample.std(ddof=1)
            / math.sqrt(sample.size)
        )
    return Interval(
        mean=mean, low=mean - half, high=mean + half, count=int(sample.size), over=over
    )


def seeds_interval(per_task: Sequence[Sequence[float]]) -> Interval:
    """The interval of a result, given for each seed its accuracy on each of its
    meta-test tasks.

    With two seeds or more it is Student's t over the seeds' means: each seed draws its
    own clients, initial weights, noise and meta-test tasks, so its spread holds all of
    them. With one seed only the spread over its tasks is known, and the interval is
    over tasks.
    """
    if len(per_task) == 1:
        return mean_interval(per_task[0], over="tasks")
    return mean_interval([float(np.mean(tasks)) for tasks in per_task], over="seeds")


def write_metrics(path: Path, run: Method, interval: Interval, **more: Any) -> None:
    """Write metrics.json: of which run, its accuracy in percent with the interval, and
    what else its test says.
    """
    head = {"dataset": run.dataset, "method": run.method, "seed": run.seed}
    write_json(
        path,
        head
        | {"accuracy": interval.mean, "ci_low": interval.low, "ci_high": interval.high}
        | more,
    )


def write_task_metrics(
    path: Path, run: Method, accuracies: np.ndarray, *, members: int, **more: Any
) -> None:
    """Write metrics.json of a test on tasks; `accuracies` are in percent, float64
    [tasks].
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
