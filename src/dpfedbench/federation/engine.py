"""The one training loop. A method gives it parts (`composition`); it gives back files.

The loop keeps the budget, the checkpoints, the validation, the history and the results. What a round does depends on
who takes the private sum: the server over its clients (`server_sum`), or each client over its records
(`client_sums`).

What is computed from private data leaves the loop only as the private sum's release. Training loss and raw norms
are therefore written for runs that claim no privacy, and for no others.

A run that was killed goes on from its last checkpoint and ends with the same bits as one that was not: every random
number comes from a stream named by its round, and everything else is in the checkpoint.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import math
import platform
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from dpfedbench.compiled import processor
from dpfedbench.config import RunConfig
from dpfedbench.errors import BenchError
from dpfedbench.federation.checkpoint import Checkpoint, run_lock
from dpfedbench.federation.client_sums import ClientSums
from dpfedbench.federation.composition import Composition
from dpfedbench.federation.progress import Progress
from dpfedbench.federation.rounds import Rounds
from dpfedbench.federation.server_sum import ServerSum
from dpfedbench.files import atomic_path, read_json, write_json
from dpfedbench.methods import METHODS
from dpfedbench.models.members import save_members
from dpfedbench.privacy.ledger import Ledger
from dpfedbench.results_format import FORMAT, version

HISTORY = (
    "round", "clients", "loss", "threshold", "released_norm", "noise_multiplier", "epsilon_claimed", "epsilon_holds",
    "validation_accuracy", "seconds",
)  # fmt: skip


@dataclasses.dataclass
class _State:
    """What changes from round to round, besides what the rounds and the budget keep."""

    round: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # {"accuracy", "round", "theta"}
    seconds: float = 0.0
    clients: int = 0
    resumed: int = 0
    non_finite: int = 0
    measuring: float = 0.0  # of the seconds, those of validation and tests


def train(
    config: RunConfig,
    *,
    data_dir: Path,
    clients_dir: Path,
    run_dir: Path,
    threads: int = 1,
    checkpoint_seconds: float = 60.0,
    gpus: int = 0,
    reference: Path | None = None,
) -> None:
    """Train one run and write model.safetensors, history.csv, ledger.jsonl and training.json to `run_dir`.

    Args:
        config: the run.
        data_dir: a prepared data set.
        clients_dir: a client partition of it.
        run_dir: the run's folder. `checkpoint/` below it is used while training and removed at the end.
        threads: CPU threads; changes no bit of the result.
        checkpoint_seconds: least time between two checkpoints; 0 for one after every round.
        gpus: how many were asked for. One that is there is used even if none was.
        reference: the history.csv in which the run's threshold is found (`RunConfig.reference`).

    Raises:
        BenchError: bad data, a foreign or damaged checkpoint, no permission, a budget too small for one round, a GPU
            asked for and not there.
    """
    if gpus and not torch.cuda.is_available():
        raise BenchError(
            f"machine.gpu is {gpus}, but torch finds no GPU on {platform.node()}: use a machine or a node that has "
            "one, or set machine.gpu to 0"
        )
    run_dir = Path(run_dir)
    folder = run_dir / "checkpoint"
    with run_lock(folder) as waited:
        if waited and _finished(run_dir, config):
            print(f"{config.folder} was finished by the process waited for", file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            return
        threshold = None if config.reference is None else median_norm(reference, config)
        _Training(
            config, Path(data_dir), Path(clients_dir), run_dir, folder, threads, checkpoint_seconds, threshold
        ).run()
        shutil.rmtree(folder, ignore_errors=True)


def median_norm(history: Path | None, config: RunConfig) -> float:
    """The median over rounds of the cohorts' median gradient norms, from the history of a run without privacy.

    Cohorts are equally large there, so that it is near the median over all clients, which no file has.

    Raises:
        BenchError: the history is missing, damaged, or has no norms.
    """
    needed = f"{config.folder} finds its threshold in the history of {config.reference and config.reference.folder}"
    if history is None:
        raise BenchError(f"{needed}: give it as the reference")
    try:
        with open(history, encoding="utf-8", newline="") as file:
            norms = [float(row["norm_q50"]) for row in csv.DictReader(file) if row["norm_q50"]]
        found = statistics.median(norms) if norms else math.nan
    except (OSError, ValueError, KeyError) as error:
        raise BenchError(f"{needed}, which cannot be read ({error}): train that run again") from error
    if not 0 < found < math.inf:
        raise BenchError(f"{needed}, which has no gradient norms: train that run again")
    return found


def _cell(value: Any) -> Any:
    """What a CSV has for a value: nothing for one that is not a number."""
    return "" if value is None or value != value else value


def _finished(run_dir: Path, config: RunConfig) -> bool:
    """Whether the folder holds this run's results, all of them, by this version of the method.

    Snakemake takes the files away before it has a run trained, so they are of the process that was waited for.
    """
    if not all((run_dir / name).exists() for name in ("model.safetensors", "history.csv", "ledger.jsonl")):
        return False
    try:
        found = read_json(run_dir / "training.json")  # written last
    except BenchError:
        return False
    return bool(found.get("method_version") == METHODS[config.method].VERSION)


class _Training:
    """One run: its parts, its state and the loop over its rounds."""

    def __init__(
        self,
        config: RunConfig,
        data_dir: Path,
        clients_dir: Path,
        run_dir: Path,
        folder: Path,
        threads: int,
        checkpoint_seconds: float,
        threshold: float | None = None,
    ) -> None:
        self.config, self.run_dir, self.folder, self.threads = config, run_dir, folder, threads
        method = METHODS[config.method]
        self.parts: Composition = method.compose(config)
        if threshold is not None:
            self.parts = self.parts.starting_at(threshold)
        self.device = "cuda" if torch.cuda.is_available() and config.takes_gpu else "cpu"
        self.ledger = Ledger(folder / "ledger.jsonl")
        place = ClientSums if config.by_record else ServerSum
        self.rounds: Rounds = place(
            config,
            self.parts,
            data_dir=data_dir,
            clients_dir=clients_dir,
            ledger=self.ledger,
            threads=threads,
            device=self.device,
        )
        self.budget = self.rounds.budget
        self.checkpoint = Checkpoint(
            folder,
            identity={
                "run": config.key,
                "seed": config.seed,
                "version": method.VERSION,
                "device": self.device,
                "checkpoint format": 2,
            }
            | ({} if threshold is None else {"threshold": threshold}),
            seconds=checkpoint_seconds,
        )
        self.state = _State()

    # The loop

    def run(self) -> None:
        """All rounds that the plan and the budget allow."""
        self._restore()
        planned = self.parts.rounds
        if planned and not self._allowed(0):
            raise BenchError(
                f"the budget of epsilon {self.config.budget.epsilon} is spent by the first round: "  # type: ignore[union-attr]
                "raise budget.epsilon or noise.multiplier"
            )
        for notice in self.config.notices:
            print(f"notice: {notice}", file=sys.stderr, flush=True)
        progress = Progress(
            f"train {self.config.folder}", self._expected(planned), unit=self.rounds.served, done=self.state.round
        )
        while self.state.round < planned and self._allowed(self.state.round):
            started = time.monotonic()
            served = self._round(self.state.round)
            self.state.seconds += time.monotonic() - started
            self.state.history[-1]["seconds"] = round(time.monotonic() - started, 4)
            self.state.clients += served
            self.state.round += 1
            progress.step(self.state.round, served, self._note)
            if self.checkpoint.due() and self.state.round < planned:
                self._save()
        # Checkpointed once more, so that being killed while the results are written costs nothing.
        self._save()
        self._write(planned, "rounds" if self.state.round == planned else "budget")

    def _allowed(self, index: int) -> bool:
        """Whether the budget has room for round `index`, all of it: training stops before, not after."""
        return self.budget is None or self.budget.allows((index + 1) * self.rounds.lots)

    def _expected(self, planned: int) -> int:
        """Rounds to come, for the time left on screen; with noise that decays there will be fewer."""
        return planned if self.budget is None else min(planned, self.budget.lots_allowed // self.rounds.lots)

    def _round(self, index: int) -> int:
        """One round; returns how much it served (for the rate on screen)."""
        found, served = self.rounds.round(index)
        row: dict[str, Any] = {"round": index + 1} | found
        if self.budget is not None:
            row["epsilon_claimed"], row["epsilon_holds"] = self.budget.spent((index + 1) * self.rounds.lots)
        self.state.history.append(row)
        if self.rounds.non_finite:
            self.state.non_finite += self.rounds.non_finite
            print(
                f"warning: round {index + 1}: {self.rounds.non_finite} contributions were not finite and counted as "
                "zero (seen by the simulation only: this count is not a release)",
                file=sys.stderr,
                flush=True,
            )
        started = time.monotonic()
        self._validate(index + 1)
        self.state.measuring += time.monotonic() - started
        return served

    def _validate(self, done: int) -> None:
        """Every so many rounds: public validation, which may drive the noise; and how the test part fares."""
        validation, row = self.config.validation, self.state.history[-1]
        if validation.every and (done % validation.every == 0 or done == self.parts.rounds):
            row |= self.rounds.validate()
            if "validation_loss" in row and self.budget is not None:
                self.budget.observe(row["validation_loss"])
            if "validation_accuracy" in row:
                self._keep_best(row["validation_accuracy"], done)
        every = self.config.evaluation.every
        if every and done % every == 0:
            row |= self.rounds.test()

    def _keep_best(self, accuracy: float, done: int) -> None:
        self.state.best.append(
            {"accuracy": accuracy / 100, "round": done, "theta": torch.from_numpy(self.rounds.theta.copy())}
        )
        self.state.best.sort(key=lambda kept: (-kept["accuracy"], kept["round"]))
        del self.state.best[max(1, self.config.validation.ensemble) :]

    def _note(self) -> str:
        row = self.state.history[-1]
        said = []
        if "epsilon_claimed" in row:
            said.append(f"epsilon claimed {row['epsilon_claimed']:.3g}")
            if not math.isnan(row["epsilon_holds"]):
                said.append(f"holds {row['epsilon_holds']:.3g}")
            if self.config.by_record:
                said.append(f"z {row['noise_multiplier']:.3g}")
        if "loss" in row:
            said.append(f"loss {row['loss']:.3f}")
        return ", ".join(said)

    # Going on after a restart

    def _save(self) -> None:
        # The ledger first: a checkpoint must not know of a release that the ledger could lose.
        self.ledger.sync()
        self.checkpoint.save(self._saved())

    def _saved(self) -> dict[str, Any]:
        state = {field.name: getattr(self.state, field.name) for field in dataclasses.fields(self.state)}
        state["rounds"] = self.rounds.state()
        state["budget"] = None if self.budget is None else self.budget.state()
        return state

    def _restore(self) -> None:
        saved = self.checkpoint.load()
        if saved is not None:
            self.rounds.restore(saved.pop("rounds"))
            budget = saved.pop("budget")
            if self.budget is not None:
                self.budget.restore(budget)
            self.state = _State(**saved)
            self.state.resumed += 1
            print(
                f"going on after round {self.state.round} of {self.config.folder}",
                file=sys.stderr,
                flush=True,
            )
        # Rounds after the checkpoint are run again with the same noise, so they are the same releases.
        self.ledger.truncate_to(self.state.round * self.rounds.lots)

    # Results

    def _write(self, planned: int, stopped_by: str) -> None:
        state, config = self.state, self.config
        members = [kept["theta"].numpy() for kept in state.best] or [self.rounds.theta]
        save_members(self.run_dir / "model.safetensors", self.rounds.net, members)
        columns = [*HISTORY, *self.rounds.columns]
        with (
            atomic_path(self.run_dir / "history.csv") as temporary,
            open(temporary, "w", encoding="utf-8", newline="") as file,
        ):
            rows = csv.DictWriter(file, columns, restval="", extrasaction="ignore", lineterminator="\n")
            rows.writeheader()
            rows.writerows({name: _cell(value) for name, value in row.items()} for row in state.history)
        with atomic_path(self.run_dir / "ledger.jsonl") as temporary:
            shutil.copyfile(self.ledger.path, temporary)
        versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "numba")}
        write_json(
            self.run_dir / "training.json",
            {
                "format": FORMAT,
                "written_by": version(),
                "rounds_planned": planned,
                "rounds_run": state.round,
                "stopped_by": stopped_by,
                f"{self.rounds.served}_per_second": round(state.clients / state.seconds, 2) if state.seconds else None,
                f"milliseconds_per_{self.rounds.served.removesuffix('s')}": (
                    round(1000 * (state.seconds - state.measuring) / state.clients, 4) if state.clients else None
                ),
                "seconds": round(state.seconds, 2),
                "resumed": state.resumed,
                "threads": self.threads,
                "device": self.device,
                "machine": processor(),
                "parameters": self.rounds.net.dimension,
                "noise_multiplier": None if self.budget is None else self.budget.noise_multiplier,
                "members": [{"round": kept["round"], "accuracy": kept["accuracy"]} for kept in state.best],
                "method_version": METHODS[config.method].VERSION,
                "versions": versions | {"python": platform.python_version()},
                "notices": list(config.notices),
            },
        )
