"""Descriptions and durations of the workflow's jobs, for the line of progress."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from dpfedbench.experiments.plan import Plan
from dpfedbench.experiments.work import Rate, kind_key

REFERENCE_RATES = Path(__file__).parent / "reference_rates.csv"
"""Rates of the default preset's kinds of work on a reference machine, as `cost` writes
them."""

_SECONDS = {
    "prepare": 25.0,
    "features": 20.0,
    "partition": 1.5,
    "meta_test": 5.0,
    "meta_test_at": 5.0,
    "account": 2.0,
    "audit": 4.0,
    "figure": 2.0,
    "page": 6.0,
    "page_so_far": 6.0,
    "collect": 3.0,
}
"""Typical seconds of a job on the reference machine, by rule."""
_OTHER_SECONDS = 1.0
_ACTIVITIES = {
    "meta_test": "meta-test",
    "meta_test_at": "meta-test",
    "account": "account",
    "audit": "audit",
    "genotype": "cells",
    "configure": "configuration",
}
_NUMBERED = re.compile(r"(table|figure)(\d+[a-z]?)(?:-(.+))?")


def item_text(name: str) -> str:
    """Return an item's name for readers, e.g. "Figure 4a" of "figure4a"."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return name
    text = f"{numbered[1].capitalize()} {numbered[2]}"
    if numbered[3]:
        text = f"{text} ({numbered[3].replace('-', ' ')})"
    return text


class JobDescriptions:
    """Texts and times of the jobs of a plan.

    Args:
        plan: the plan of the configuration.
        papers: title of each paper, by its name.
        rates: files of rates as `cost` writes them. Of a kind of work that several
            files have, the first counts.
    """

    def __init__(
        self, plan: Plan, papers: Mapping[str, str], rates: Sequence[Path]
    ) -> None:
        self._plan = plan
        self._papers = papers
        self._cells = self._first_cells()
        self._rates, self._by_method = _read_rates(rates)
        self._kinds: dict[str, str] = {}  # kinds of work, by the run's key

    def _first_cells(self) -> dict[str, str]:
        """Return the first cell that shows each run, as text, by the run's folder."""
        cells: dict[str, str] = {}
        for item in self._plan.items.values():
            item_label = f"{self._papers[item.paper]}, {item_text(item.name)}"
            for cell in item.cells:
                for run in cell.runs:
                    text = (
                        f"{item_label}: {run.title} on {run.dataset}, seed {run.seed}"
                    )
                    cells.setdefault(run.folder, text)
        return cells

    def label(self, rule: str, wildcards: Mapping[str, str]) -> str:
        """Return what a job makes.

        Args:
            rule: the job's rule.
            wildcards: the job's wildcards.
        """
        if "item" in wildcards:
            paper = self._papers[wildcards["paper"]]
            return f"{paper}, {item_text(wildcards['item'])}"
        if "seed" in wildcards and "key" in wildcards:
            return self._run_label(rule, wildcards)
        if "dataset" in wildcards:
            return f"{rule} {wildcards['dataset']}"
        paper = wildcards.get("paper") or wildcards.get("of", "").rstrip("/")
        text = rule.replace("_of_paper", "").replace("_", " ")
        return f"{self._papers[paper]}, {text}" if paper else text

    def _run_label(self, rule: str, wildcards: Mapping[str, str]) -> str:
        folder = self._folder(wildcards)
        text = self._cells.get(folder)
        if text is None:
            run = self._plan.runs[folder]
            text = f"{run.title} on {run.dataset}, seed {run.seed}, for other runs"
        activity = _ACTIVITIES.get(rule)
        return f"{text}, {activity}" if activity else text

    @staticmethod
    def _folder(wildcards: Mapping[str, str]) -> str:
        names = ("method", "dataset", "task", "key")
        return "/".join([wildcards[name] for name in names]) + (
            f"/seed{wildcards['seed']}"
        )

    def seconds(self, rule: str, wildcards: Mapping[str, str]) -> float:
        """Return the estimated seconds of a job on the reference machine."""
        if rule != "train":
            return _SECONDS.get(rule, _OTHER_SECONDS)
        run = self._plan.runs[self._folder(wildcards)]
        if not run.trained:
            return _OTHER_SECONDS
        if run.key not in self._kinds:
            self._kinds[run.key] = kind_key(run)
        rate = self._rates.get(self._kinds[run.key])
        if rate is None:
            rate = self._by_method.get(run.method, Rate(seconds_per_unit=0.005))
        return _OTHER_SECONDS + rate.estimate(run, run.participation.rounds)[1]

    def is_public(self, rule: str, wildcards: Mapping[str, str]) -> bool:
        """Return whether the time of a job may be measured.

        The time of a private training may reveal the sizes of secret cohorts.
        """
        if rule != "train":
            return True
        return not self._plan.runs[self._folder(wildcards)].private


def _read_rates(files: Sequence[Path]) -> tuple[dict[str, Rate], dict[str, Rate]]:
    """Return rates by kind of work, and a typical rate for each method."""
    rates: dict[str, Rate] = {}
    typical: dict[str, Rate] = {}
    for path in reversed([path for path in files if path.exists()]):
        of_method: dict[str, list[float]] = {}
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                rate = Rate(
                    seconds_per_unit=float(row["seconds_per_unit"]),
                    validation=float(row["validation"]),
                    test=float(row["test"]),
                    lot=int(float(row["lot"])) if row["lot"] else None,
                )
                rates[row["kind"]] = rate
                of_method.setdefault(row["method"], []).append(rate.seconds_per_unit)
        typical |= {
            method: Rate(seconds_per_unit=median(seconds))
            for method, seconds in of_method.items()
        }
    return rates, typical
