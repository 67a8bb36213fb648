"""Inputs of the workflow's rules that follow from the plan: files of runs, parameters
of scripts, labels for the report.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, explicit_values
from dpfedbench.experiments.plan import Plan, PlannedItem
from dpfedbench.run import Run

Wildcards = Any
"""Snakemake's wildcards of a job, one attribute each."""

Input = Callable[[Wildcards], list[str]]
"""Input function of a rule: returns the files that a job with given wildcards needs."""

RUNS = "results/runs"
_SHOWN = (("tables", ".csv"), ("figures", ".png"))
"""Folders and endings of the targets that a page shows."""
_ACCOUNTED = ("config.yaml", "metrics.json", "privacy.json", "training.json")
"""Files of each run that tables read."""


class Planned:
    """Plan as the workflow's rules use it. Paths are relative to the working folder.

    Args:
        configuration: the whole configuration.
        plan: its plan.
        order: names of the papers in the order in which their results are made; by
            default that of the plan.

    Attributes:
        report: folder of tables and figures.
        papers: names of the papers that have a table or figure.
        order: the same names in the order in which their results are made.
        audited_runs: for each private run of a paper, the run whose audit represents
            it, by paper; under "" those of all papers.
        partitions: one run for each partition, by the partition's folder.
    """

    def __init__(
        self, configuration: Configuration, plan: Plan, order: Sequence[str] = ()
    ) -> None:
        self.configuration = configuration
        self.plan = plan
        self.report = (
            f"results/{configuration.preset}" if configuration.preset else "results"
        )
        self.papers = list(dict.fromkeys(paper for paper, _ in plan.items))
        self.order = list(order) or self.papers
        self.audited_runs = {
            paper: plan.audited_runs(paper or None) for paper in ("", *self.papers)
        }
        self.partitions = {run.clients_folder: run for run in plan.runs.values()}
        self._tests = plan.tests_of(None)
        self._searches = plan.searches

    # Targets

    @property
    def _frontiers(self) -> list[PlannedItem]:
        return [item for item in self.plan.items.values() if item.kind == "frontier"]

    def targets(self, paper: str | None = None) -> list[str]:
        """Return the tables and figures of one paper, or of all.

        They include the table of privacy and its figure.
        """
        folder = f"{paper}/" if paper else ""
        tables: list[str] = []
        figures: list[str] = []
        for item in self.plan.items_of(paper):
            names = tables if item.kind == "table" else figures
            names.append(f"{item.paper}/{item.name}")
        if self.audited_runs[paper or ""]:
            tables += [f"{folder}answer", f"{folder}privacy"]
            figures.append(f"{folder}privacy")
        if paper is None and self._frontiers:
            tables.append("frontier")
        return [
            *_product(
                [f"{self.report}/tables/{name}" for name in tables], ".csv", ".md"
            ),
            *_product(
                [f"{self.report}/figures/{name}" for name in figures], ".png", ".csv"
            ),
        ]

    def frontiers(self, *kinds: str) -> list[str]:
        """Return the files of the given kinds of all frontier figures."""
        folder = f"{self.report}/figures"
        stems = [f"{folder}/{item.paper}/{item.name}" for item in self._frontiers]
        return _product(stems, *(f".{kind}" for kind in kinds))

    def frontier_targets(self) -> list[str]:
        """Return all frontier figures, and their table if there is a figure."""
        if not self._frontiers:
            return []
        table = _product([f"{self.report}/tables/frontier"], ".csv", ".md")
        return self.frontiers("png", "csv") + table

    def folder_of(self, paper: str | None) -> str:
        """Return the folder of the page, frames, archive and costs of one experiment,
        or of all.
        """
        return f"{self.report}/experiments/{paper}" if paper else self.report

    def experiment_targets(self, paper: str) -> list[str]:
        """Return all results of one experiment: its tables and figures, and its page,
        data frames and archive, which show no other experiment.
        """
        names = ("index.html", "runs.parquet", "cells.parquet", "results.zip")
        folder = self.folder_of(paper)
        return [*self.targets(paper), *(f"{folder}/{name}" for name in names)]

    # Pages

    def page_items(self, paper: str | None = None) -> list[dict[str, Any]]:
        """Return the tables and figures among the targets, with their configuration."""
        items = []
        for target in self.targets(paper):
            path = Path(target).relative_to(self.report)
            if (path.parts[0], path.suffix) in _SHOWN:
                item = self.plan.items.get((path.parent.name, path.stem))
                description = item and item.describe(self.audited_runs[paper or ""])
                items.append({"path": path.as_posix(), "item": description})
        return items

    def files_for_page(self, paper: str | None = None) -> list[str]:
        """Return the files of runs that a page shows, of one paper or of all."""
        runs = {run for item in self.plan.items_of(paper) for run in item.runs}
        names = sorted([*_ACCOUNTED, "history.csv", "ledger.jsonl"])
        audits = self._audits_of(self.audited_runs[paper or ""])
        return _files_of(sorted(runs), *names) + audits

    # Pages of the papers that are finished so far

    def milestones(self) -> list[str]:
        """Return a file for each page that is made before all papers are finished."""
        return [self._milestone(count) for count in range(1, len(self.order))]

    def _milestone(self, count: int) -> str:
        return f"{self.report}/so-far/{count}/page.json"

    def finished_papers(self, wildcards: Wildcards) -> list[str]:
        """Return the papers that are finished at the wildcards' milestone.

        They are in the order of the configuration.
        """
        finished = self.order[: int(wildcards.finished)]
        return [paper for paper in self.papers if paper in finished]

    def missing_titles(self, wildcards: Wildcards) -> list[str]:
        """Return the titles of the papers that are not finished, in their order."""
        missing = self.order[int(wildcards.finished) :]
        papers = self.page_papers(*missing)
        return [papers[name]["title"] for name in missing]

    def so_far(self, of_paper: Callable[[str], list[Any]]) -> Callable[..., list[Any]]:
        """Return a function of the wildcards: what `of_paper` lists of the papers that
        are finished.
        """
        return lambda wildcards: [
            entry
            for paper in self.finished_papers(wildcards)
            for entry in of_paper(paper)
        ]

    def files_so_far(self, wildcards: Wildcards) -> list[str]:
        """Return the files of runs that a page of the finished papers shows.

        The page waits for the one before it, which lies in the same place.
        """
        files = self.so_far(self.files_for_page)(wildcards)
        if int(wildcards.finished) > 1:
            files.append(self._milestone(int(wildcards.finished) - 1))
        return list(dict.fromkeys(files))

    # Frames

    def files_to_collect(self, paper: str | None = None) -> list[str]:
        """Return the files that the frames of one paper, or of all, are read from."""
        return [
            *_files_of(sorted(self.plan.runs_of(paper)), *_ACCOUNTED),
            *_tests_of(sorted(self.plan.tests_of(paper))),
            *self._audits_of(self.audited_runs[paper or ""]),
        ]

    def data_to_time(self, *papers: str) -> tuple[list[str], list[str]]:
        """Return the images and the partitions of all runs of some papers, or of all
        papers.

        `cost` times the runs on them.
        """
        runs = [
            run
            for paper in papers or (None,)
            for run in self.plan.runs_of(paper).values()
        ]
        datasets = sorted({run.dataset for run in runs})
        partitions = dict.fromkeys(run.clients_folder for run in runs)
        return (
            [f"results/data/{name}/images.npy" for name in datasets],
            [f"results/clients/{folder}/clients.npz" for folder in partitions],
        )

    def rate_files(self) -> list[Path]:
        """Return the files of rates that `cost` has measured on this machine."""
        report = Path(self.report)
        files = [report / "cost_rates.csv"]
        return files + sorted(report.glob("experiments/*/cost_rates.csv"))

    def cost_reports(self, *papers: str) -> dict[str, list[dict[str, Any]]]:
        """Return the runs whose costs are estimated, by the folder of the estimate: one
        for each of some papers, or one for all papers.
        """
        return {
            self.folder_of(paper): [
                run.plain() for run in self.plan.runs_of(paper).values()
            ]
            for paper in papers or (None,)
        }

    @staticmethod
    def _audits_of(audited_runs: Mapping[str, str]) -> list[str]:
        """Return the audits that represent private runs. Several runs share one."""
        return _files_of(sorted(set(audited_runs.values())), "audit.json")

    def cell_records(self, paper: str = "") -> list[dict[str, Any]]:
        """Return the records of the cells of one paper, or of all; see
        `PlannedItem.cell_records`.

        Figures of accounts have no runs and are left out.
        """
        return [
            record
            for item in self.plan.items_of(paper or None)
            if item.kind != "account"
            for record in item.cell_records(self.audited_runs[paper])
        ]

    def page_papers(self, *names: str) -> dict[str, dict[str, str]]:
        """Return titles and sources of papers, in the order of the configuration."""
        return {
            name: {"title": paper.title, "source": paper.source}
            for name, paper in self.configuration.experiments.items()
            if name in names and paper
        }

    def stand_ins(self, *papers: str) -> dict[str, str]:
        """Return the measured data set for each data set of some papers, or of all
        papers, that is replaced.
        """
        return {
            cell.published_dataset: cell.runs[0].dataset
            for paper in papers or self.papers
            for item in self.plan.items_of(paper)
            for cell in item.cells
            if item.kind != "account" and cell.published_dataset != cell.runs[0].dataset
        }

    # Tables of privacy

    def private_cells(self, wildcards: Wildcards) -> list[dict[str, Any]]:
        """Return the records of the private cells of the wildcards' paper, or all."""
        records = self.cell_records(wildcards.of.rstrip("/"))
        return [record for record in records if record["private"]]

    def files_of_private(self, wildcards: Wildcards) -> list[str]:
        """Return the files of the private runs, and of their audits.

        Seeds share one audit, and some configurations do too.
        """
        audited_runs = self.audited_runs[wildcards.of.rstrip("/")]
        files = _files_of(audited_runs, *_ACCOUNTED, "ledger.jsonl")
        return files + self._audits_of(audited_runs)

    # Runs

    def run_of(self, wildcards: Wildcards) -> Run:
        """Return the run whose folder the wildcards name."""
        folder = "{method}/{dataset}/{task}/{key}/seed{seed}"
        return self.plan.runs[folder.format(**wildcards)]

    def test_of(self, wildcards: Wildcards) -> dict[str, Any]:
        """Return the values of the wildcards' meta-test that replace the run's own."""
        test = self._tests[self.run_of(wildcards).folder, wildcards.test]
        values = {"shots": test.task.shots} | test.evaluation.plain()
        return {
            key: values[key]
            for key in ("shots", "steps", "rate", "tasks", "query_per_class")
        }

    def search_for(self, run: Run) -> dict[str, Any] | None:
        """Return the search for settings that the run belongs to, or None.

        It is the search of a table, or the one that the configuration declares for the
        run's method; of both, it has the larger number of runs, and is private if one
        is.
        """
        declared = self.configuration.tuning.get(run.method)
        search = self._searches.get(run.folder)
        if declared is None:
            return search
        values = explicit_values(declared)
        if search is None:
            return values
        is_private = "private" in (search["data"], values["data"])
        return {
            "runs": max(search["runs"], values["runs"]),
            "data": "private" if is_private else "public",
        }

    def references_of(self, wildcards: Wildcards) -> list[str]:
        """Return the files of other runs that the run in the wildcards needs."""
        return [
            f"{RUNS}/{reference.folder}/{file}"
            for file, reference in self.run_of(wildcards).references.items()
        ]

    def made_for(self, wildcards: Wildcards) -> list[str]:
        """Return the files of other jobs that the model of the wildcards' run needs."""
        folder = self.run_of(wildcards).features_folder
        names = ("features.npy", "features.json") if folder else ()
        return self.references_of(wildcards) + [
            f"results/features/{folder}/{name}" for name in names
        ]

    def partition_of(self, wildcards: Wildcards) -> Run:
        """Return a run that uses the partition in the wildcards.

        All runs that share a partition have the same settings for it.
        """
        return self.partitions[f"{wildcards.dataset}/{wildcards.clients}"]

    def partition_for_account(self, wildcards: Wildcards) -> list[str]:
        """Return the files of the partition, if the account covers the image level.

        The partition says which clients use which image.
        """
        run = self.run_of(wildcards)
        # The account of an image needs to know which clients use which image.
        accounts_images = run.private and run.client_data != "records"
        names = ("clients.npz", "summary.json") if accounts_images else ()
        return [f"results/clients/{run.clients_folder}/{name}" for name in names]

    # Tables and figures

    def item_of(self, wildcards: Wildcards) -> PlannedItem:
        """Return the table or figure that the wildcards name.

        Raises:
            BenchError: the paper has none of that name.
        """
        name = wildcards.paper, wildcards.item
        if name not in self.plan.items:
            raise BenchError(
                "{} has no {}: its tables and figures are {}".format(
                    *name, ", ".join(item.name for item in self.plan.items_of(name[0]))
                )
            )
        return self.plan.items[name]

    def described(self, wildcards: Wildcards) -> dict[str, Any]:
        """Return the table or figure as plain data, for its script."""
        return self.item_of(wildcards).describe({})

    def files_of_runs(self, *names: str) -> Input:
        """Return an input function: the named files of every run of an item."""
        return lambda wildcards: _files_of(self.item_of(wildcards).runs, *names)

    def tests_of_runs(self, wildcards: Wildcards) -> list[str]:
        """Return the files of the item's meta-tests that are not the runs' own."""
        return _tests_of(self.item_of(wildcards).tests)

    # Labels of `snakemake --report`

    def category_of(self, wildcards: Wildcards) -> str:
        """Return the paper's title, the category of its items in the report."""
        return next(iter(self.page_papers(wildcards.paper).values()))["title"]

    def labels_of(self, wildcards: Wildcards) -> dict[str, str]:
        """Return the labels of a table or figure in the report."""
        item = self.item_of(wildcards)
        data = {cell.runs[0].dataset for cell in item.cells}
        return {
            "name": item.name,
            "title": item.spec["title"],
            "data": ", ".join(sorted(data)),
        }


def _product(stems: Iterable[str], *endings: str) -> list[str]:
    """Return each stem with each ending."""
    return [f"{stem}{ending}" for stem in stems for ending in endings]


def _files_of(runs: Iterable[str], *names: str) -> list[str]:
    """Return the named files of each run, given its folder."""
    return [f"{RUNS}/{run}/{name}" for run in runs for name in names]


def _tests_of(tests: Iterable[tuple[str, str]]) -> list[str]:
    """Return the files of meta-tests, given by the run's folder and the test's name."""
    return [f"{RUNS}/{run}/tests/{test}.json" for run, test in tests]
