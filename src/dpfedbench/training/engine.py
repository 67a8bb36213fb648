"""The training loop of all methods. A method supplies its parts; the loop writes files.

The loop keeps the rounds, the checkpoints, the validation, the history and the results.
Mechanisms (`dpsum`) keep sums, noise and budgets. A value computed from private data
leaves only as a release of a mechanism. Training loss, raw norms and the number of
contributions that were not finite are therefore recorded only in runs that claim no
privacy. The duration of rounds is not recorded in a run whose account assumes secret
cohorts or lots.

A killed run continues from its last checkpoint and ends with the same bits as an
uninterrupted one: every random number comes from a stream named by its round, and the
checkpoint holds everything else.
"""

import collections
import dataclasses
import math
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.breaches import notices_of
from dpfedbench.errors import BenchError
from dpfedbench.models.choose import device_of
from dpfedbench.parts.compatibility import check_processes
from dpfedbench.run import Run
from dpfedbench.training.checkpoint import Checkpoint, finished, run_lock
from dpfedbench.training.distributed import Processes
from dpfedbench.training.federation import (
    Federation,
    has_owners,
    read_first_threshold,
)
from dpfedbench.training.history import Row
from dpfedbench.training.rounds import Rounds
from dpfedbench.training.run_files import UNTRAINED, write_results
from dpsum.ledger import Ledger
from dpsum.progress import Progress


def train(
    run: Run,
    *,
    data_dir: Path,
    clients_dir: Path,
    run_dir: Path,
    threads: int = 1,
    checkpoint_seconds: float = 60.0,
    device: str = "auto",
    kernels: bool = True,
    references: Mapping[str, Path] | None = None,
    processes: Processes | None = None,
) -> None:
    """Train one run and write its results to `run_dir`.

    The results are model.safetensors, history.csv, ledger.jsonl and training.json.

    Args:
        run: the run to train.
        data_dir: a prepared data set.
        clients_dir: a client partition of it.
        run_dir: the run's folder. `checkpoint/` below it is used while training and
            removed at the end.
        threads: CPU threads of each process; changes no bit of the result.
        checkpoint_seconds: least time between two checkpoints; 0 for one after every
            round.
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
        kernels: whether compiled passes are used where they exist; else torch's own.
        references: files of other runs that this one needs, by name
            (`Run.references`).
        processes: the processes that train the run together, each of which calls this
            function; changes no bit of the result on a CPU.

    Raises:
        BenchError: bad data, a foreign or damaged checkpoint, no permission, a budget
            too small for one round, a requested GPU that is missing, more processes
            than clients of a round, or processes that do not agree.
    """
    device = device_of(device)
    run_dir = Path(run_dir)
    references = references or {}
    processes = processes or Processes()
    if processes.count > 1:
        check_processes(run, processes.count)
        paths = [data_dir, clients_dir, *references.values()]
        processes.check_agree(run, device, paths)
    first_threshold = read_first_threshold(run, references)

    def load() -> Federation:
        return Federation.load(
            run,
            data_dir=Path(data_dir),
            clients_dir=Path(clients_dir),
            device=device,
            kernels=kernels,
            threads=threads,
            references=references,
        )

    def create_rounds(federation: Federation, ledger: Any) -> Rounds:
        return Rounds(
            run,
            federation,
            ledger=ledger,
            threads=threads,
            first_threshold=first_threshold,
            processes=processes,
        )

    if not processes.is_main:
        followed = None
        if run.trained:
            # The main process writes each release.
            followed = create_rounds(load(), collections.deque(maxlen=0))
        processes.follow(followed)
        return
    folder = run_dir / "checkpoint"
    with run_lock(folder) as waited:
        if waited and finished(run_dir, run):
            print(
                f"{run.folder} was finished by another process",
                file=sys.stderr,
                flush=True,
            )
        else:
            federation = load()
            ledger = Ledger(folder / "ledger.jsonl")
            if run.trained:
                rounds = create_rounds(federation, ledger)
                training = _Training(
                    run, rounds, ledger, checkpoint_seconds, first_threshold
                )
                training.run()
                training.write(run_dir, federation)
            else:
                assert federation.weights is not None
                write_results(
                    run_dir,
                    run,
                    federation,
                    ledger,
                    models=[federation.weights],
                    summary={**UNTRAINED, "processes": processes.count},
                )
        processes.end()
        shutil.rmtree(folder, ignore_errors=True)


@dataclasses.dataclass
class _State:
    """State that changes from round to round, besides the state of the rounds."""

    round: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: list[dict[str, Any]] = dataclasses.field(
        default_factory=list
    )  # {"accuracy", "round", "theta"}
    seconds: float = 0.0
    clients: int = 0
    resumed: int = 0
    measuring: float = 0.0  # the part of `seconds` that validation and tests took


class _Training:
    """Training of one run: its rounds, its state and the loop over the rounds."""

    def __init__(
        self,
        run: Run,
        rounds: Rounds,
        ledger: Ledger,
        checkpoint_seconds: float,
        first_threshold: float | None,
    ) -> None:
        self.config = run
        self.rounds = rounds
        self.ledger = ledger
        self.composition = rounds.composition
        identity = {
            "run": run.key,
            "seed": run.seed,
            "version": run.made_by,
            "device": rounds.gradients.device,
            "checkpoint format": 7,
        }
        if first_threshold is not None:
            identity["threshold"] = first_threshold
        self.checkpoint = Checkpoint(
            ledger.path.parent, identity=identity, seconds=checkpoint_seconds
        )
        self.state = _State()

    def run(self) -> None:
        """Run all rounds that the plan and the budget allow."""
        self._restore()
        planned = self.rounds.planned
        if not self.composition.allows(1):
            limit, *_ = (
                sum_.budget.epsilon
                for sum_ in self.config.all_sums
                if sum_.budget is not None
            )
            raise BenchError(
                f"the budget of epsilon {limit} is spent by the first round: raise"
                " budget.epsilon or noise.multiplier"
            )
        known_owners = has_owners(self.rounds.held)
        for notice in notices_of(self.config, has_owners=known_owners):
            print(f"notice: {notice}", file=sys.stderr, flush=True)
        progress = Progress(
            f"train {self.config.folder}",
            self.composition.expected_rounds(planned),
            unit=self.rounds.clients.unit,
            done=self.state.round,
            timed=self.composition.duration_is_public,
        )
        # Training stops before a budget is exceeded, not after.
        while self.state.round < planned and self.composition.allows(
            self.state.round + 1
        ):
            started = time.monotonic()
            served = self._round(self.state.round)
            if self.composition.duration_is_public:
                self.state.seconds += time.monotonic() - started
                self.state.history[-1]["seconds"] = round(time.monotonic() - started, 4)
            self.state.clients += served
            self.state.round += 1
            progress.step(self.state.round, served, self._note)
            if self.checkpoint.due() and self.state.round < planned:
                self._save()
        # A last checkpoint, so that a process killed while it writes the results loses
        # no round.
        self._save()

    def _round(self, index: int) -> int:
        """Run one round; return its clients or records, for the progress display."""
        measured, served = self.rounds.round(index)
        row: Row = {"round": index + 1} | measured
        # The epsilon of these rounds alone would be below that of all that the model
        # discloses, where the run rests on an earlier private one.
        if "ledger.jsonl" not in self.config.references:
            row |= self.composition.epsilon_spent(index + 1)
        self.state.history.append(row)
        if self.rounds.non_finite:
            self._warn_of(self.rounds.non_finite, index + 1)
        started = time.monotonic()
        self._validate(index + 1)
        if self.composition.duration_is_public:
            self.state.measuring += time.monotonic() - started
        return served

    def _warn_of(self, non_finite: int, done: int) -> None:
        """Print the number of contributions of a round that counted as zero.

        The number is not a release, and a log is a file beside the results. Of a
        private run it is therefore printed only on a terminal, which keeps nothing.
        """
        out = sys.stderr
        text = (
            f"warning: round {done}: {non_finite} contributions were not finite and"
            " counted as zero"
        )
        if self.config.private:
            text += (
                " (seen by the simulation only: this count is not a release, and no log"
                " has it)"
            )
            out = sys.__stderr__
            if out is None or not out.isatty():
                return
        print(text, file=out, flush=True)

    def _validate(self, done: int) -> None:
        """Validate and test the model in the rounds that the settings name.

        Validation uses public records, and its loss may drive the noise.
        """
        validation = self.config.validation
        row = self.state.history[-1]
        theta = self.rounds.theta.numpy()
        measures = self.rounds.measures
        if validation.every and (
            done % validation.every == 0 or done == self.rounds.planned
        ):
            row |= measures.validate(theta)
            if "validation_loss" in row:
                self.composition.observe(row["validation_loss"])
            if "validation_accuracy" in row:
                self._keep_best(row["validation_accuracy"], done)
        every = self.config.evaluation.every
        if every and done % every == 0:
            row |= measures.test(theta)

    def _keep_best(self, accuracy: float, done: int) -> None:
        self.state.best.append(
            {
                "accuracy": accuracy / 100,
                "round": done,
                "theta": self.rounds.theta.clone(),
            }
        )
        self.state.best.sort(key=lambda member: (-member["accuracy"], member["round"]))
        del self.state.best[max(1, self.config.validation.ensemble) :]

    def _note(self) -> str:
        row = self.state.history[-1]
        words = []
        if not math.isnan(row.get("epsilon_claimed", math.nan)):
            words.append(f"epsilon claimed {row['epsilon_claimed']:.3g}")
        if not math.isnan(row.get("epsilon_proven", math.nan)):
            words.append(f"proven {row['epsilon_proven']:.3g}")
        if "noise_multiplier" in row and self.rounds.clients.unit == "records":
            words.append(f"z {row['noise_multiplier']:.3g}")
        if "loss" in row:
            words.append(f"loss {row['loss']:.3f}")
        return ", ".join(words)

    # Restart

    def _save(self) -> None:
        # The ledger is written first: a checkpoint must not count a release that the
        # ledger could lose.
        self.ledger.sync()
        self.checkpoint.save(
            vars(self.state)
            | {"rounds": self.rounds.state(), "ledger": self.ledger.chain}
        )

    def _restore(self) -> None:
        saved = self.checkpoint.load()
        # Rounds after the checkpoint are run again with the same noise, so that they
        # make the same releases.
        self.ledger.go_on_after(
            self.ledger.chain if saved is None else saved.pop("ledger")
        )
        if saved is not None:
            self.rounds.restore(saved.pop("rounds"))
            self.state = _State(**saved)
            self.state.resumed += 1
            # The number of the round would reveal how long rounds took.
            at = (
                f"round {self.state.round}"
                if self.composition.duration_is_public
                else "the last checkpoint"
            )
            print(
                f"continuing after {at} of {self.config.folder}",
                file=sys.stderr,
                flush=True,
            )

    # Results

    def write(self, run_dir: Path, federation: Federation) -> None:
        """Write the files of the run."""
        state = self.state
        rounds = self.rounds
        unit = rounds.clients.unit
        timed = self.composition.duration_is_public
        throughput = None
        milliseconds = None
        if state.seconds:
            throughput = round(state.clients / state.seconds, 2)
        if timed and state.clients:
            spent = state.seconds - state.measuring
            milliseconds = round(1000 * spent / state.clients, 4)
        multipliers = [
            self.composition.noise_multiplier(spec.name)
            for spec in self.composition.budgeted
        ]
        summary = {
            "rounds_planned": rounds.planned,
            "rounds_run": state.round,
            "stopped_by": "rounds" if state.round == rounds.planned else "budget",
            f"{unit}_per_second": throughput,
            f"milliseconds_per_{unit.removesuffix('s')}": milliseconds,
            "seconds": round(state.seconds, 2) if timed else None,
            "resumed": state.resumed,
            "threads": rounds.threads,
            "processes": rounds.processes.count,
            "shared_parameters": rounds.shared.count,
            "noise_multiplier": multipliers[0] if multipliers else None,
            **rounds.personal_test(),
            "members": [
                {"round": member["round"], "accuracy": member["accuracy"]}
                for member in state.best
            ],
        }
        models = [member["theta"].numpy() for member in state.best]
        write_results(
            run_dir,
            self.config,
            federation,
            self.ledger,
            models=models or [rounds.theta.numpy()],
            summary=summary,
            columns=rounds.columns,
            rows=state.history,
        )
