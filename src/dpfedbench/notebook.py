"""Finished runs for notebooks and scripts: read their results, and use their models on
your own data. `results.load` lists the runs of a results folder.

`docs/python.md` has examples.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dpfedbench.audit.findings import mark, read_audits, with_excess
from dpfedbench.errors import BenchError
from dpfedbench.files import read_group
from dpfedbench.manifests import checked
from dpfedbench.papers import read_run_file
from dpfedbench.results_format import refuse_other_format
from dpfedbench.run import Run
from dpfedbench.training.accounts import (
    account_of,
    ledger_before,
    ledger_of,
    read_account,
)
from dpfedbench.training.history import read_history
from dpsum.accounting.account import PROFILES, Account
from dpsum.accounting.profiles import Entry
from dpsum.accounting.tuning import Search
from dpsum.ledger import Release

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from dpfedbench.evaluation.predictor import Predictor
    from dpfedbench.models.net import Array

QUANTITIES = {
    "test_accuracy": "test accuracy, %",
    "validation_accuracy": "validation accuracy, %",
    "test_loss": "test loss",
    "validation_loss": "validation loss",
    "loss": "training loss",
    "released_norm": "norm of the release",
    "norm_q50": "median norm of a client's gradient",
    "threshold": "clipping threshold C",
    "noise_multiplier": "noise multiplier",
    "epsilon_claimed": "claimed ε so far",
    "epsilon_proven": "proven ε so far",
}
"""Columns of a history with their labels, the most informative first."""


def open_run(folder: str | Path) -> FinishedRun:
    """Open the folder of a finished run; `load_runs` opens a whole results folder.

    Every file that is read, now or later, has to be as the workflow wrote it; its
    manifest is checked (`dpfedbench.manifests`).

    Raises:
        BenchError: the folder is not a run's, the run is not finished or damaged, or
            another version wrote it.
    """
    path = Path(folder).resolve()
    if not (path / "config.yaml").exists():
        raise BenchError(
            f"{folder} is not a run's folder: list the runs of a results folder with"
            " dpfedbench.load_runs(results)"
        )
    run = FinishedRun(
        folder=path, settings=read_run_file(checked(path / "config.yaml"))
    )
    refuse_other_format(run.training, str(folder))
    return run


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """Finished run. `settings` is its method with all values of config.yaml.

    Files are read on first access.
    """

    folder: Path
    settings: Run

    @functools.cached_property
    def history(self) -> pd.DataFrame:
        """History of the training, one row for each round.

        A value that was not measured is empty.
        """
        return read_history(checked(self.folder / "history.csv"))

    def cohort(self, round_number: int) -> np.ndarray:
        """Return the numbers of the clients that took part in a round.

        The simulation draws cohorts from the run's seed, so this function can draw them
        again. In a real federation secret cohorts stay secret.

        Args:
            round_number: counted from 1, as in the history.

        Returns:
            Client numbers from 0, int64 [cohort size].

        Raises:
            BenchError: the run has no such round.
        """
        rounds = int(self.training["rounds_run"])
        if not 1 <= round_number <= rounds:
            raise BenchError(
                f"there is no round {round_number}: the run has rounds 1 to {rounds}"
            )
        return self.settings.plan.sample_cohort(round_number - 1)

    @functools.cached_property
    def metrics(self) -> dict[str, Any]:
        """Result of the test: accuracy in percent, its interval, the tested data."""
        return read_group(checked(self.folder / "metrics.json"))

    @functools.cached_property
    def training(self) -> dict[str, Any]:
        """Report of the training: rounds, seconds, machine, versions, notices."""
        return read_group(checked(self.folder / "training.json"))

    @functools.cached_property
    def ledger(self) -> list[Release]:
        """All releases in order."""
        for name in ("training.json", "ledger.jsonl"):
            checked(self.folder / name)
        return ledger_of(self.settings, self.folder)

    @functools.cached_property
    def releases(self) -> pd.DataFrame:
        """The ledger as a frame, one row for each line, for a merge with the history.

        It has the fields of `ledger`, with `round` counted from 1 as in the history
        (a line of the file counts from 0), and `step` (from 1): the local step of the
        round, where clients make several releases in it.
        """
        frame = pd.DataFrame([dataclasses.asdict(line) for line in self.ledger])
        if not len(frame):
            return frame
        rounds = int(self.training["rounds_run"])
        steps = frame.groupby("name")["round"].transform("size") // rounds
        numbers = frame["round"]
        return frame.assign(round=numbers // steps + 1, step=numbers % steps + 1)

    @functools.cached_property
    def account(self) -> Account:
        """Account that the workflow computed.

        Its statuses show where the run's own audit exceeds it (`audit.findings`).
        """
        return self._marked(read_account(checked(self.folder / "privacy.json")))

    def account_at(self, delta: float) -> Account:
        """Return the account of the same ledger at another δ, for every protected unit.

        The image level needs the run's partition below the same results folder; without
        it, the account gives a reason in place of a value. Cells that a private search
        found need that search there.

        Raises:
            BenchError: δ is not a number between 0 and 1, or the search is missing.
        """
        if not isinstance(delta, numbers.Real):
            raise BenchError(f"delta is {delta!r}: give a number between 0 and 1")
        return self._marked(self.computed_account(delta))

    def computed_account(
        self, delta: float | None = None, *, search: Search | None = None
    ) -> Account:
        """Compute the account from the ledger, without what an audit says against it.

        Args:
            delta: δ of all units; None: the run's own.
            search: the search for hyper-parameters that the run is part of.
        """
        references = self._references
        if "ledger.jsonl" in references:
            checked(references["ledger.jsonl"].with_name("training.json"))
        return account_of(
            self.settings,
            self.ledger,
            clients_dir=self.find_partition(),
            search=search,
            delta=delta,
            before=ledger_before(self.settings, references),
        )

    def find_partition(self) -> Path | None:
        """Return the folder of the run's clients; None where the results have none."""
        folder = self._results / "clients" / self.settings.clients_folder
        if not (folder / "summary.json").exists():
            return None
        for name in ("clients.npz", "summary.json"):
            checked(folder / name)
        return folder

    def _marked(self, account: Account) -> Account:
        """Return the account with statuses that show what audit.json contradicts."""
        path = self.folder / "audit.json"
        if not path.exists():
            return account
        return _mark_account(account, read_audits(checked(path)))

    def epsilon(self, profile: str = "proven", *, delta: float | None = None) -> Entry:
        """Return one profile of the account.

        The profile has `epsilon_low`, `epsilon_high`, `status`, `explanation`, and the
        unit and observer that its ε is for.

        Args:
            profile: "claimed", "proven", "replace_one", "image_level" or "tuning".
            delta: δ of the account; None: the δ of the workflow's account.

        Raises:
            BenchError: there is no such profile, or it has no number for this run; the
                message gives the reason.
        """
        account = self.account if delta is None else self.account_at(delta)
        if profile not in account.profiles:
            unknown = f"choose one of {', '.join(PROFILES)}"
            raise BenchError(
                f"{profile} has no epsilon for this run:"
                f" {account.reasons.get(profile, unknown)}"
            )
        return account.profiles[profile]

    def accounts(self, delta: float | None = None) -> pd.DataFrame:
        """Return all profiles of all units, one a row.

        A profile without a number has its reason in the column `explanation`.
        """
        account = self.account if delta is None else self.account_at(delta)
        rows = []
        for unit in (account, *account.also):
            for name, entry in unit.profiles.items():
                rows.append({"profile": name, **dataclasses.asdict(entry)})
            for name in sorted(unit.reasons.keys() - unit.profiles.keys()):
                missing = {"delta": unit.delta, "explanation": unit.reasons[name]}
                rows.append({"profile": name, **missing})
        return pd.DataFrame(rows)

    def plot(self, *columns: str) -> Figure:
        """Plot columns of the history over the rounds, one below the other.

        Without arguments, plot all columns of `QUANTITIES` that have values.
        """
        from matplotlib import pyplot

        filled = self.history.dropna(axis="columns", how="all")
        chosen = columns or [name for name in QUANTITIES if name in filled]
        figure, grid = pyplot.subplots(
            len(chosen),
            sharex=True,
            squeeze=False,
            figsize=(6.4, 1 + 2 * len(chosen)),
            layout="constrained",
        )
        for axes, name in zip(grid.flat, chosen, strict=True):
            measured = self.history.dropna(subset=[name])
            axes.plot(measured["round"], measured[name], marker=".")
            axes.set_ylabel(QUANTITIES.get(name, name))
        grid[-1, 0].set_xlabel("round")
        return figure

    # The model

    @functools.cached_property
    def _results(self) -> Path:
        return self.folder.parents[5]

    @property
    def _references(self) -> dict[str, Path]:
        """Return the files of other runs that the model depends on.

        They lie below the same results folder.
        """
        references = self.settings.network_references
        return {
            name: checked(self._results / "runs" / reference.folder / name)
            for name, reference in references.items()
        }

    @property
    def model(self) -> nn.Module:
        """Copy of the trained network as a torch module.

        Its inputs are [n, C, H, W] in [0, 1].

        Of an ensemble it is the first member. Changes to the copy do not affect this
        object.
        """
        return self.trained.modules[0]

    @functools.cached_property
    def trained(self) -> Predictor:
        """Predictor with the weights at the end of training.

        For a method that adapts its model to each task, these weights are the start of
        the adaptation.

        Raises:
            BenchError: the model, its data set's summary.json or the search that found
                its cells is missing or damaged.
        """
        from dpfedbench.evaluation.predictor import trained

        data = self._results / "data" / self.settings.dataset
        summary = read_group(checked(data / "summary.json"))
        path = checked(self.folder / "model.safetensors")
        return trained(self.settings, path, summary, self._references)

    def adapt(
        self,
        x: Array,
        y: Array | None = None,
        *,
        steps: int | None = None,
        rate: float | None = None,
    ) -> Predictor:
        """Adapt the model to one task of your own, as the meta-test does.

        Args:
            x: images [n, H, W, C], uint8 or float in [0, 1]; for a text model, records
                of words, int64 [n, L].
            y: classes [n] of images, whole numbers from 0 up to `settings.task.ways`;
                text records are their own labels.
            steps: number of gradient steps; None: the meta-test's
                (`settings.evaluation`).
            rate: learning rate of the gradient steps; None: the meta-test's.

        Raises:
            BenchError: the run's model is used without adaptation, sizes do not fit it,
                or steps or rate are not numbers from 0 up.
        """
        if not self.settings.task.shots:
            raise BenchError(
                f"the model of {self.settings.method} is used without adaptation:"
                " take run.trained"
            )
        return self.trained.adapted(self.settings, x, y, steps=steps, rate=rate)


def _mark_account(
    account: Account, audits: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Account:
    """Return the account with statuses that show where its audit exceeds the proven ε.

    The audit is compared with the proven ε at the δ of the audit, whatever the δ of the
    account is: a mechanism that leaks more at any δ is not the one accounted for.

    Args:
        account: account of one run.
        audits: audits by unit and observer, as `findings.read_audits` returns them.
    """
    proven = account.profiles.get("proven")
    audit = None if proven is None else audits.get((proven.unit, proven.observer))

    def marked(entries: Mapping[str, Entry]) -> dict[str, Entry]:
        if audit is None:
            return dict(entries)
        audited: dict[str, Any] = {
            "bound": audit["epsilon"],
            "chance": audit["chance"],
            "proven_at_audit": float(audit["epsilon_proven"]),
            "count": 1,
        }
        return {
            name: dataclasses.replace(
                entry, status=with_excess(*mark(math.inf, entry.status, **audited))
            )
            for name, entry in entries.items()
        }

    return dataclasses.replace(
        account,
        profiles=marked(account.profiles),
        groups=marked(account.groups),
        also=tuple(_mark_account(unit, audits) for unit in account.also),
    )
