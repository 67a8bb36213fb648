"""Estimate of the time that the trainings of a plan take on this machine, before they
run.

Runs of one kind of work take the same time. One run of each kind is trained for some
tenths of a second, on its own data and by the real training loop; for a large cohort a
part of the cohort is enough. Validation and tests in training are timed too. Compiled
functions are compiled before the clock starts. Cohorts and lots of runs may be secret,
so that the timed ones are drawn from a seed that no run has.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from dpfedbench.config.initial_weights import RandomInitial
from dpfedbench.experiments.work import Rate, kind_of, rate_record
from dpfedbench.files import write_text
from dpfedbench.models.choose import device_of
from dpfedbench.models.kernels import processor
from dpfedbench.parts.clipping.reference import MedianOfRun
from dpfedbench.results import formats
from dpfedbench.results.summary import each_row
from dpfedbench.run import Run
from dpfedbench.training.federation import Federation
from dpfedbench.training.rounds import Rounds
from dpsum.ledger import Release
from dpsum.participation import Participation

_LONG = 0.3
"""Shortest reliable measurement, in seconds."""
_MOST = 2048
"""Largest number of clients of a timed round whose cohort has to be complete."""
_SEED = 2**64 - 1


class _FirstClients:
    """Participation plan whose cohort in each round is the first `count` clients."""

    def __init__(self, plan: Participation, count: int) -> None:
        self._plan = plan
        self._count = count

    def sample_cohort(self, index: int) -> np.ndarray:
        """Return the first clients, int [count]."""
        return np.arange(self._count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)


class Clock:
    """Timer of rounds of runs, with the data sets and clients of a results folder.

    The arguments are those of `engine.train`.
    """

    def __init__(
        self,
        results: Path,
        *,
        threads: int = 1,
        device: str = "auto",
        kernels: bool = True,
    ) -> None:
        self.results = results
        self.threads = threads
        self.device = device_of(device)
        self.kernels = kernels
        self._lines = list[Release]()

    def planned(self, run: Run) -> int:
        """Return the number of planned rounds that the budget allows.

        Noise that will decay counts as constant.
        """
        stops = any(
            sum_.budget and sum_.budget.stop and sum_.budget.epsilon is not None
            for sum_ in run.all_sums
        )
        rounds = int(run.participation.rounds)
        return (
            self._rounds(run).composition.expected_rounds(rounds)
            if stops and _stated(run)
            else rounds
        )

    def _rounds(self, run: Run, **other: Any) -> Rounds:
        """Return the rounds of a run on its data.

        A threshold or cells that another run would find have a placeholder, and initial
        weights that another run would train are random: neither changes the time.
        """
        referenced = any(
            isinstance(sum_.clipping, MedianOfRun) for sum_ in run.all_sums
        )
        self._lines.clear()
        clients_dir = self.results / "clients" / run.clients_folder
        model = run.model.without_references()
        run = run.replace(model=model, initial=RandomInitial(), **other)
        federation = Federation.load(
            run,
            data_dir=self.results / "data" / run.dataset,
            clients_dir=clients_dir,
            device=self.device,
            kernels=self.kernels,
            threads=self.threads,
        )
        return Rounds(
            run,
            federation,
            ledger=self._lines,
            threads=self.threads,
            first_threshold=1.0 if referenced else None,
        )

    def rate(self, run: Run) -> Rate:
        """Return the rate of the run's kind of work."""
        by_task = run.client_data == "tasks"
        tasks = run.validation.tasks
        if by_task:
            tasks = min(tasks, 4 * self.threads)
        # Noise that clients share is complete only with the whole cohort.
        whole = any(sum_.noise and sum_.noise.one_by_one for sum_ in run.all_sums)
        participation = run.participation
        cohort = participation.cohort
        if whole:
            cohort = min(cohort, _MOST)
            participation = dataclasses.replace(participation, cohort=cohort)
        rounds = self._rounds(
            run,
            seed=_SEED,
            validation=run.validation.replace(tasks=tasks),
            participation=participation,
        )
        lot = rounds.clients.work(np.arange(1))
        plan = rounds.plan
        # Start in the middle: the first rounds of some methods take longer.
        indices = itertools.count(rounds.planned // 2)

        def seconds(clients: int) -> float:
            if lot is None:  # the round's work is counted in clients
                rounds.plan = cast(Participation, _FirstClients(plan, clients))
            index = next(indices) % max(rounds.planned, 1)
            # A round can be repeated only as after a restart that takes its lines back.
            self._lines.clear()
            rounds.restore(rounds.state())
            return self._seconds(lambda: rounds.round(index))

        count = cohort
        if not whole and not lot:
            count = min(cohort, self.threads if self.device == "cpu" else 256)
        seconds(count)  # compiles functions, or reads them from numba's cache
        while (elapsed := seconds(count)) < _LONG and count < cohort:
            count = min(cohort, max(2 * count, int(count * _LONG / elapsed)))
        spent = [elapsed]
        while sum(spent) < _LONG:
            spent.append(seconds(count))
        theta = rounds.theta.numpy()
        validation = 0.0
        if run.validation.every:
            validation = self._seconds(lambda: rounds.measures.validate(theta), 2)
        test = 0.0
        if run.evaluation.every:
            test = self._seconds(lambda: rounds.measures.test(theta), 2)
        return Rate(
            seconds_per_unit=float(np.mean(spent)) / (lot or count),
            validation=validation / (tasks if by_task else 1),
            test=test,
            lot=lot,
            unit=rounds.clients.unit,
        )

    def _seconds(self, call: Callable[[], Any], calls: int = 1) -> float:
        """Return the seconds of the last of some calls.

        On a CPU it is processor time, so that other work on the machine does not count.
        """
        clock, share = (
            (time.process_time, self.threads)
            if self.device == "cpu"
            else (time.perf_counter, 1)
        )
        for _ in range(calls):
            started = clock()
            call()
        return (clock() - started) / share


def _stated(run: Run) -> bool:
    """Return whether the configuration, and no budget, gives the noise of all sums."""
    return all(
        sum_.noise is None or getattr(sum_.noise, "multiplier", None) is not None
        for sum_ in run.all_sums
    )


def _time(hours: float) -> str:
    """Return a duration as text for readers."""
    if hours >= 1.5:
        return f"{hours:.3g} h"
    return f"{60 * hours:.3g} min" if hours >= 0.025 else f"{3600 * hours:.2g} s"


def report(
    runs: Sequence[Run],
    clock: Clock,
    folder: Path,
    *,
    cores: int,
    say: Callable[[str], None],
) -> None:
    """Write cost.csv, cost.md and cost_rates.csv of the plan's runs, and print the table.

    cost_rates.csv has the measured rate of each kind of work. The workflow's terminal
    estimates the remaining time from it.

    Args:
        runs: the runs of the plan.
        clock: times the runs.
        folder: folder of the three files.
        cores: number of cores of the workflow.
        say: prints a line.
    """
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        if run.trained:
            kinds.setdefault(kind_of(run), []).append(run)
    records = [{"method": run.method, "runs": 1} for run in runs]
    planned: dict[str, int] = {}
    rates = []
    for number, group in enumerate(kinds.values(), start=1):
        # A noise that a budget determines has to be calibrated first, and a larger
        # cohort gives a better measurement.
        typical = min(
            group, key=lambda run: (not _stated(run), -run.participation.cohort)
        )
        say(
            f"kind of work {number} of {len(kinds)}: {typical.method},"
            f" {typical.dataset}"
        )
        rate = clock.rate(typical)
        rates.append(rate_record(typical, rate))
        for run in group:
            planned[run.key] = planned.get(run.key) or clock.planned(run)
            trained, seconds = rate.estimate(run, planned[run.key])
            records.append(
                {"method": run.method, rate.unit: trained, "hours": seconds / 3600}
            )
    columns = {"runs": int, "clients": int, "records": int, "hours": float}
    table = (
        pd.DataFrame(records, columns=["method", *columns])
        .fillna(0)
        .groupby("method", sort=False)
        .sum()
    )
    table.loc["total"] = table.sum()
    table = table.astype(columns)
    cells = []
    for row in each_row(table):
        served = {"clients": row.clients, "records": row.records}
        trained_on = [f"{count:,} {unit}" for unit, count in served.items() if count]
        cells.append(
            [
                row.Index,
                f"{row.runs:,}",
                ", ".join(trained_on) or "-",
                _time(row.hours),
            ]
        )
    hours = float(table["hours"].iloc[-1])
    notes = [
        "- The time of all trainings, one after the other, by rates measured on"
        f" {processor()}, {formats.plural(clock.threads, 'CPU thread')} each or one"
        " GPU."
    ]
    if clock.device == "cpu":
        jobs = max(1, cores // clock.threads)
        notes.append(
            f"- On {cores} cores {jobs} run side by side: {_time(hours / jobs)} by the"
            " clock."
        )
    notes.append(
        "- On a CPU that is the time of the processor, as on a machine that does"
        " nothing else. Meta-tests, audits, data sets and about a second for the"
        " start of each job are not in it. Where noise may fall while a run trains,"
        " its budget is spent sooner than this counts."
    )
    lines = [
        *formats.markdown_table(("method", "runs", "trained on", "time"), cells),
        "",
        *notes,
    ]
    write_text(
        folder / "cost.csv", formats.csv_text(table.reset_index().round({"hours": 5}))
    )
    write_text(folder / "cost_rates.csv", formats.csv_text(pd.DataFrame(rates)))
    write_text(folder / "cost.md", "\n".join(["# What the runs cost", "", *lines, ""]))
    for line in lines:
        say(line)
