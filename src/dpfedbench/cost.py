"""What the runs of a plan cost on this machine, before any of them is run.

Runs of one kind of work differ in nothing that takes time: each kind is trained for a few rounds, by the loop that
trains it in earnest, on drawn data of the size of its own, and a few clients of its cohort take part. Two rounds of
different size give the time of a client and of a round without them; validation and tests in training are timed too.
Compiled loops are made ready before the clock runs. Meta-tests, audits and the start of each job are not in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.compiled import processor
from dpfedbench.data.fragments import make_fragments
from dpfedbench.data.images import SPLITS, RawImages, load_dataset, save_dataset
from dpfedbench.data.partition import make_partition
from dpfedbench.data.records import RawRecords, load_any_records, save_records
from dpfedbench.data.text_tasks import make_text_partition
from dpfedbench.data.tokens import RawTexts, load_texts
from dpfedbench.errors import BenchError
from dpfedbench.experiments.datasets import HELD
from dpfedbench.federation.engine import Rounds
from dpfedbench.files import read_json, write_json, write_text
from dpfedbench.models.gradients import device_of
from dpfedbench.parts.budget import Budget, OwnSum
from dpfedbench.parts.clipping.rule import ClippingRule
from dpfedbench.parts.noise.noise import Noise
from dpfedbench.parts.participation.participation import Participation
from dpfedbench.parts.server.server_step import ServerStep
from dpfedbench.reporting import values
from dpfedbench.results_format import VERSION
from dpfedbench.settings.part import Section

_LONG = 0.3
"""Seconds of a round that is long enough to be timed."""
_DRAWN = 2048
"""Clients that are drawn, at the most: so many take part in a timed round."""
_SEED = 2**64 - 1
_TEXT = 800
"""Words of a drawn task, unless its clients use more."""

_SMALL = (Budget, OwnSum, ClippingRule, Noise, Participation, ServerStep)
"""Sections that change next to nothing of the time."""

HEADINGS = ("method", "runs", "trained on", "time")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
    """Seconds of a kind of work: of a round, of a client in it, of a validation task (records: of all), of a test.

    `trained` is how many records a round is of, where it is not the cohort's clients; `unit` names what is counted.
    """

    round: float
    client: float
    validation: float
    test: float
    trained: int | None
    unit: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run costs: rounds, how much is trained on, in which unit, and seconds."""

    method: str
    rounds: int
    trained: float
    unit: str
    seconds: float


def kind_of(run: Any, holds: str) -> str:
    """Equal for runs whose rounds take as long, but for the number of clients in them.

    Rates, thresholds and budgets are fractions and change nothing of how much is computed; sizes are whole numbers. How
    a client is drawn, clipped, noised and stepped by is next to nothing beside what it computes.
    """
    tasks, measured = run.holds == "tasks", run.validation.every or run.evaluation.every
    found: dict[str, Any] = {
        "data": holds.rpartition(" of ")[2] if tasks else holds,
        "sums": [(sum_.name, sum_.unit, sum_.private, getattr(sum_.noise, "mechanism", "")) for sum_ in run.sums[:-1]],
        "mechanism": getattr(run.sums[-1].noise, "mechanism", "gaussian"),
        "by_record": [run.within_records, run.sums_query_examples, run.pretrains],
        "measured": [run.validation.every > 0, run.evaluation.every > 0],
        "lot": None if tasks else run.participation.cohort,
    }
    for key in type(run).model_fields:
        value = run.model.without_references() if key == "model" else getattr(run, key)
        if isinstance(value, Section) and not isinstance(value, _SMALL):
            found[key] = _sizes(value.plain())
    records = {"validation": run.validation.tasks} if not tasks and run.validation.every else {}
    found |= records if measured else {"validation": None, "evaluation": None}
    if tasks:
        found["clients"] = [run.clients.support_per_class, run.clients.query_per_class]
        if not measured:
            del found["task"]["shots"]
    return json.dumps(found, sort_keys=True)


def _sizes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sizes(each) for key, each in value.items() if key not in ("seed", "every", "tasks")}
    if isinstance(value, list | tuple):
        return [_sizes(each) for each in value]
    return None if isinstance(value, float) else value


class Calibration:
    """The rates of kinds of work on this machine: measured when they are first asked for, and kept in a file.

    Args:
        folder: where the file lies; its name says machine and versions.
        room: an empty folder for drawn data.
        holdings: what data sets hold (`experiments.datasets.read_holdings`).
        prepared: the folder of prepared data sets, which says the sizes of those that `holdings` does not name.
        threads, device, kernels: as of `engine.train`.
    """

    def __init__(
        self, folder: Path, *, room: Path, holdings: Mapping[str, str], prepared: Path, threads: int = 1,
        device: str = "auto", kernels: bool = True,
    ) -> None:  # fmt: skip
        self.device, self.threads = device_of(device), threads
        self._holdings, self._prepared, self._kernels = holdings, prepared, kernels
        versions = [f"{name}{importlib.metadata.version(name)}" for name in ("torch", "numba", "numpy")]
        machine = [processor(), f"{os.cpu_count()}cores", self.device, f"{threads}threads", f"dpfedbench{VERSION}"]
        name = "-".join([*machine, *versions, *([] if kernels else ["no-kernels"])])
        self.path = folder / f"rates-{re.sub('[^A-Za-z0-9.]+', '-', name)}.json"
        try:
            known = read_json(self.path)
            self._rates = {key: Rate(**rate) for key, rate in known.items()}
        except (BenchError, AttributeError, TypeError):
            self._rates = {}  # none yet, or damaged: measured again
        self._expected: dict[str, int] = {}
        self._drawn: dict[tuple[Any, ...], tuple[Path, Path]] = {}
        self._room = room

    def holds(self, run: Any) -> str:
        """What the run's data set holds, in the words of config/datasets.tsv; "" where nothing says it yet."""
        if known := self._holdings.get(run.dataset):
            return known
        try:
            summary = read_json(self._prepared / run.dataset / "summary.json")
            if summary["kind"] == "texts":
                return "texts"
            shape = "x".join(map(str, summary["image_shape"]))
            if summary["kind"] == "records":
                counts = [summary["split_records"][split] for split in ("train", "test")]
                return f"records {counts[0]}/{counts[1]} of {shape}"
            counts = [summary["split_classes"][split] for split in SPLITS]
            return f"classes {'/'.join(map(str, counts))} x {summary['examples_per_class']} of {shape}"
        except (BenchError, KeyError, TypeError):
            return ""

    def measure(self, runs: Sequence[Any], say: Callable[[str], None] = lambda _: None) -> None:
        """Time each kind of work among the runs that is not known yet, and keep the file."""
        kinds: dict[str, list[Any]] = {}
        for run in runs:
            if run.loop() is not None and (holds := self.holds(run)):
                kinds.setdefault(_name(kind_of(run, holds)), []).append(run)
        missing = {key: group for key, group in kinds.items() if key not in self._rates}
        started = time.monotonic()
        for number, (key, group) in enumerate(missing.items(), start=1):
            # Noise that a budget says has to be found first, and in a large cohort more can take part.
            run = min(group, key=lambda run: (not _stated(run), -run.participation.cohort))
            self._rates[key] = self._timed(run)
            say(f"kind of work {number} of {len(missing)}: {run.method}, {run.dataset}")
            write_json(self.path, {key: dataclasses.asdict(rate) for key, rate in self._rates.items()})
        if missing:
            say(f"kinds of work measured: {len(missing)}, in {time.monotonic() - started:.0f} s, kept in {self.path}")

    def cost(self, run: Any) -> Cost | None:
        """What a run costs, after `measure`; None where nothing says how large its data are."""
        if run.loop() is None:
            return Cost(method=run.method, rounds=0, trained=0, unit="clients", seconds=0.0)
        if not (holds := self.holds(run)):
            return None
        rate, rounds = self._rates[_name(kind_of(run, holds))], self._rounds(run)
        cohort = run.participation.cohort if rate.trained is None else 0
        seconds = rounds * (rate.round + cohort * rate.client)
        if run.validation.every:
            tasks = run.validation.tasks if run.holds == "tasks" else 1
            seconds += -(-rounds // run.validation.every) * tasks * rate.validation
        if run.evaluation.every:
            seconds += rounds // run.evaluation.every * rate.test
        trained = rounds * (cohort if rate.trained is None else rate.trained)
        return Cost(method=run.method, rounds=rounds, trained=trained, unit=rate.unit, seconds=seconds)

    def _rounds(self, run: Any) -> int:
        """The rounds that the budget allows, of those planned; of noise that will decay, as if it stayed."""
        stops = [sum_.budget for sum_ in run.sums if sum_.budget is not None and sum_.budget.stop]
        if all(budget.epsilon is None for budget in stops) or not _stated(run):
            return int(run.participation.rounds)
        key = run.key
        if key not in self._expected:
            rounds = self._made(run)
            self._expected[key] = rounds.budget.expected(rounds.planned)
        return self._expected[key]

    def _made(self, run: Any) -> Any:
        """The rounds of a run on drawn data; a threshold or cells that another run finds are made up."""
        run = run.replace(model=run.model.without_references())
        data, clients = self._data(run)
        found = any(sum_.clipping is not None and sum_.clipping.reference for sum_ in run.sums)
        return Rounds.of(
            run, data_dir=data, clients_dir=clients, ledger=[], threads=self.threads, device=self.device,  # type: ignore[arg-type]
            kernels=self._kernels, first=1.0 if found else None,
        )  # fmt: skip

    def _timed(self, run: Any) -> Rate:
        tasks = min(run.validation.tasks, 4 * self.threads) if run.holds == "tasks" else run.validation.tasks
        cohort = min(run.participation.cohort, _DRAWN)
        run = run.replace(validation=run.validation.replace(tasks=tasks))
        # Noise in shares of clients is enough in a whole cohort alone.
        whole = any(sum_.noise is not None and sum_.noise.one_by_one for sum_ in run.sums)
        # Of a seed that no run has: whose cohorts and lots are secret are those of runs.
        run = run.replace(seed=_SEED)
        if whole:
            run = run.replace(participation=run.participation.replace(cohort=cohort))
        rounds = self._made(run)
        # From the middle on: some methods' first rounds are longer.
        work, indices = rounds.clients.work(np.arange(1)), itertools.count(rounds.planned // 2)

        def seconds(clients: int) -> float:
            if work is None:
                rounds.plan = _Few(rounds.plan, clients)
            index = next(indices) % max(rounds.planned, 1)
            return self._seconds(lambda: rounds.round(index))

        few = count = cohort if whole else min(cohort, self.threads if self.device == "cpu" else 256)
        seconds(few)  # compiled here, or read from numba's cache
        first = longest = seconds(few)
        if work is None:
            while longest < _LONG and count < cohort:
                count = min(cohort, max(2 * count, int(count * _LONG / longest)))
                longest = seconds(count)
            first = min(first, seconds(few))
            client = max(0.0, longest - first) / (count - few) if count > few else longest / count
            fixed = max(0.0, longest - client * count)
        else:
            spent = [first]
            while sum(spent) < _LONG:
                spent.append(seconds(few))
            client, fixed = 0.0, float(np.mean(spent))
        theta, measures = rounds.theta.numpy(), rounds.measures
        validation = self._second(lambda: measures.validate(theta)) if run.validation.every else 0.0
        return Rate(
            round=fixed, client=client, validation=validation / (tasks if run.holds == "tasks" else 1),
            test=self._second(lambda: measures.test(theta)) if run.evaluation.every else 0.0,
            trained=work, unit=rounds.clients.served,
        )  # fmt: skip

    def _seconds(self, call: Callable[[], Any]) -> float:
        """Seconds of a call: on a CPU those that it computed, so that other work beside it does not count."""
        clock, share = (time.process_time, self.threads) if self.device == "cpu" else (time.perf_counter, 1)
        started = clock()
        call()
        return (clock() - started) / share

    def _second(self, call: Callable[[], Any]) -> float:
        """Seconds of a call, the second one."""
        call()
        return self._seconds(call)

    def _data(self, run: Any) -> tuple[Path, Path]:
        """A drawn data set of the size of the run's, and a partition of it, in folders."""
        clients, task, held = run.clients, run.task, HELD.fullmatch(self.holds(run))
        assert held is not None
        sizes: tuple[Any, ...] = (run.dataset, run.holds, task, clients, run.evaluation.query_per_class)
        if sizes in self._drawn:
            return self._drawn[sizes]
        folder = self._room / str(len(self._drawn))
        data, parted, facts = folder / "data", folder / "clients", {"name": run.dataset}
        counts = [int(count) for count in (held["counts"] or "0").split("/")]
        shape = tuple(int(size) for size in (held["shape"] or "0").split("x"))
        if held["kind"] == "texts":
            used = (clients.support_per_class + clients.query_per_class) * task.text.record
            few = max(min(clients.count, _DRAWN), 1)
            _texts(few, max(_TEXT, used), task.text.words, run.evaluation.while_training).save(data, facts)
            make_text_partition(load_texts(data), clients=few, kind="disjoint", seed=0).save(parted)
        elif held["kind"] == "records":
            save_records(data, _records(counts, task.ways, shape), facts)
            make_fragments(load_any_records(data), clients=clients.count, fragments=clients.fragments, seed=0).save(
                parted
            )
        else:
            used = max(clients.examples_per_class, task.shots + run.evaluation.query_per_class)
            save_dataset(data, _classes(counts, int(held["each"]) if run.pretrains else used, shape), facts)
            if run.holds == "records":
                made: Any = make_fragments(
                    load_any_records(data), clients=clients.count, fragments=clients.fragments, seed=0
                )
            else:
                made = make_partition(
                    load_dataset(data), clients=min(clients.count, _DRAWN), ways=task.ways,
                    examples_per_class=clients.examples_per_class, kind="shared", seed=0,
                )  # fmt: skip
            made.save(parted)
        self._drawn[sizes] = data, parted
        return data, parted


class _Few:
    """A plan's first clients, in each round."""

    def __init__(self, plan: Any, count: int) -> None:
        self._plan, self._count = getattr(plan, "_plan", plan), count

    def cohort(self, index: int) -> np.ndarray:
        return np.arange(self._count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)


def _name(kind: str) -> str:
    return hashlib.sha256(kind.encode()).hexdigest()[:16]


def _stated(run: Any) -> bool:
    """Whether the configuration says the noise of all sums, and no budget has to."""
    return all(sum_.noise is None or getattr(sum_.noise, "multiplier", None) is not None for sum_ in run.sums)


def _classes(counts: Sequence[int], each: int, shape: tuple[int, ...]) -> RawImages:
    splits = tuple(split for split, count in zip(SPLITS, counts, strict=True) for _ in range(count))
    # One class is drawn, and the others are turned by a row: they are read as often, and drawn once.
    one = np.random.default_rng(0).integers(0, 256, (each, *shape), dtype=np.uint8)
    images = np.stack([np.roll(one, index, axis=1) for index in range(len(splits))])
    return RawImages(
        images=images, class_names=tuple(f"class {i}" for i in range(len(splits))), splits=splits, versions={}
    )


def _records(counts: Sequence[int], classes: int, shape: tuple[int, ...]) -> RawRecords:
    train, test = counts
    rng, labels = np.random.default_rng(0), np.arange(max(train, test), dtype=np.int64) % classes
    images = rng.integers(0, 256, (max(train, test), *shape), dtype=np.uint8)
    return RawRecords(
        train_images=images[:train], train_labels=labels[:train], test_images=images[:test], test_labels=labels[:test],
        class_names=tuple(f"class {i}" for i in range(classes)), versions={},
    )  # fmt: skip


def _texts(clients: int, words: int, known: int, tests: int) -> RawTexts:
    rng = np.random.default_rng(0)
    splits = ("train",) * clients + ("validation",) * 4 + ("test",) * tests
    names = np.array([f"w{i}" for i in range(known)])
    tasks = tuple((f"task {i}", tuple(rng.choice(names, words).tolist())) for i in range(len(splits)))
    return RawTexts(
        tasks=tasks, splits=splits, public=dict.fromkeys(names.tolist(), 1), public_text="drawn words", versions={}
    )


def table(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """By method and in total: runs, how much they train on, and hours."""
    rows: list[dict[str, Any]] = []
    for method in [*dict.fromkeys(cost.method for cost in costs), "total"]:
        own = [cost for cost in costs if method in (cost.method, "total")]
        trained: dict[str, float] = {}
        for cost in own:
            trained[cost.unit] = trained.get(cost.unit, 0) + cost.trained
        rows.append(
            {
                "method": method,
                "runs": len(own),
                **{unit: round(trained.get(unit, 0)) for unit in ("clients", "records")},
                "hours": round(sum(cost.seconds for cost in own) / 3600, 5),
            }
        )
    return rows


def _time(hours: float) -> str:
    """For people."""
    if hours >= 1.5:
        return f"{hours:.3g} h"
    return f"{60 * hours:.3g} min" if hours >= 0.025 else f"{3600 * hours:.2g} s"


def to_markdown(rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> str:
    """The table for people."""
    cells = []
    for row in rows:
        trained = [f"{row[unit]:,} {unit}" for unit in ("clients", "records") if row[unit]]
        cells.append([row["method"], f"{row['runs']:,}", ", ".join(trained) or "-", _time(row["hours"])])
    return "\n".join(
        ["# What the runs cost", "", *values.markdown_table(HEADINGS, cells), "", *(f"- {note}" for note in notes), ""]
    )


def report(
    runs: Sequence[Any], calibration: Calibration, folder: Path, *, cores: int, say: Callable[[str], None]
) -> list[Path]:
    """Write cost.csv and cost.md, say the table, and give back the files that were written.

    Args:
        runs: of the plan.
        calibration: of this machine.
        folder: where the two files go.
        cores: of the workflow, for the time by the clock.
        say: takes a line.

    Raises:
        BenchError: nothing says how large the data of any of the runs are.
    """
    import pandas as pd

    calibration.measure(runs, say)
    found = [calibration.cost(run) for run in runs]
    costs = [cost for cost in found if cost is not None]
    unknown = sorted({run.dataset for run, cost in zip(runs, found, strict=True) if cost is None})
    if not costs:
        raise BenchError(
            f"no run can be counted before its data set is prepared: make results/data/{unknown[0]}/images.npy"
        )
    rows, jobs = table(costs), max(1, cores // calibration.threads)
    hours = rows[-1]["hours"]
    where = f"{values.plural(calibration.threads, 'CPU thread')} each" if calibration.device == "cpu" else "one GPU"
    notes = [
        f"The time of all trainings on {where}, one after the other, by rates measured on {processor()}.",
        "On a CPU that is the time of the processor, as on a machine that does nothing else. "
        "Meta-tests, audits, data sets and about a second for the start of each job are not in it. Where noise may "
        "fall while a run trains, its budget is spent sooner than this counts.",
    ]
    if calibration.device == "cpu":
        notes.insert(1, f"On {cores} cores {jobs} run side by side: {_time(hours / jobs)} by the clock.")
    for name in unknown:
        left = sum(run.dataset == name for run in runs)
        notes.append(
            f"Not counted: {values.plural(left, 'run')} on {name}, whose size is known once "
            f"results/data/{name}/images.npy is made."
        )
    text, csv, markdown = to_markdown(rows, notes), folder / "cost.csv", folder / "cost.md"
    write_text(csv, values.csv_text(pd.DataFrame(rows)))
    write_text(markdown, text)
    for line in text.splitlines()[2:]:
        say(line)
    return [csv, markdown, *([calibration.path] if calibration.path.exists() else [])]
