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
import csv
import dataclasses
import math
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.files import atomic_path, write_json
from dpfedbench.method import Method
from dpfedbench.models.choose import device_of
from dpfedbench.models.kernels import processor, versions_of
from dpfedbench.models.members import save_members
from dpfedbench.parts.compatibility import check_processes
from dpfedbench.results_format import FORMAT, HISTORY, VERSION
from dpfedbench.training.checkpoint import Checkpoint, finished, run_lock
from dpfedbench.training.client_updates.client_update import Row
from dpfedbench.training.processes import Processes
from dpfedbench.training.rounds import Rounds, Untrained, first_threshold
from dpfedbench.training.together import check_agree
from dpsum.ledger import Ledger
from dpsum.progress import Progress


def train(
    run: Method,
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
            (`Method.references`).
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
    check_processes(run, processes.count)
    check_agree(processes, run, device, [data_dir, clients_dir, *references.values()])

    first = first_threshold(run, references)

    def rounds_of(ledger: Any) -> Rounds | Untrained:
        return Rounds.from_run(
            run,
            data_dir=Path(data_dir),
            clients_dir=Path(clients_dir),
            ledger=ledger,
            threads=threads,
            device=device,
            kernels=kernels,
            first=first,
            references=references,
            processes=processes,
        )

    if not processes.first:
        # The first process writes each release.
        rounds: Any = rounds_of(collections.deque(maxlen=0))
        while (command := processes.broadcast()) is not None:
            rounds.help(*command)
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
            ledger = Ledger(folder / "ledger.jsonl")
            rounds = rounds_of(ledger)
            _Training(run, rounds, run_dir, ledger, checkpoint_seconds, first).run()
        processes.broadcast()
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
        run: Method,
        rounds: Rounds | Untrained,
        run_dir: Path,
        ledger: Ledger,
        checkpoint_seconds: float,
        first: float | None,
    ) -> None:
        self.config = run
        self.rounds = rounds
        self.run_dir = run_dir
        self.ledger = ledger
        self.composition = rounds.composition
        self.device = rounds.gradients.device
        self.checkpoint = Checkpoint(
            ledger.path.parent,
            identity={
                "run": run.key,
                "seed": run.seed,
                "version": run.made_by,
                "device": self.device,
                "checkpoint format": 7,
            }
            | ({} if first is None else {"threshold": first}),
            seconds=checkpoint_seconds,
        )
        self.state = _State()

    def run(self) -> None:
        """Run all rounds that the plan and the budget allow."""
        self._restore()
        planned = self.rounds.planned
        if planned and not self.composition.allows(1):
            limit, *_ = (
                sum_.budget.epsilon
                for sum_ in self.config.sums()
                if sum_.budget is not None
            )
            raise BenchError(
                f"the budget of epsilon {limit} is spent by the first round: raise"
                " budget.epsilon or noise.multiplier"
            )
        for notice in self.config.notices:
            print(f"notice: {notice}", file=sys.stderr, flush=True)
        progress = Progress(
            f"train {self.config.folder}",
            self.composition.expected_rounds(planned),
            unit=self.rounds.clients.served,
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
        self._write(planned, "rounds" if self.state.round == planned else "budget")

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
        self.state.best.sort(key=lambda kept: (-kept["accuracy"], kept["round"]))
        del self.state.best[max(1, self.config.validation.ensemble) :]

    def _note(self) -> str:
        row = self.state.history[-1]
        words = []
        if not math.isnan(row.get("epsilon_claimed", math.nan)):
            words.append(f"epsilon claimed {row['epsilon_claimed']:.3g}")
        if not math.isnan(row.get("epsilon_proven", math.nan)):
            words.append(f"proven {row['epsilon_proven']:.3g}")
        if "noise_multiplier" in row and self.rounds.clients.served == "records":
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

    def _write(self, planned: int, stopped_by: str) -> None:
        state = self.state
        config = self.config
        rounds = self.rounds
        members = [member["theta"].numpy() for member in state.best] or [
            rounds.theta.numpy()
        ]
        save_members(self.run_dir / "model.safetensors", rounds.net, members)
        columns = [*HISTORY, *rounds.columns]
        with (
            atomic_path(self.run_dir / "history.csv") as temporary,
            open(temporary, "w", encoding="utf-8", newline="") as file,
        ):
            rows = csv.DictWriter(
                file, columns, restval="", extrasaction="ignore", lineterminator="\n"
            )
            rows.writeheader()
            for row in state.history:  # NaN and None are left empty
                rows.writerow(
                    {
                        name: value
                        for name, value in row.items()
                        if value is not None and value == value
                    }
                )
        with atomic_path(self.run_dir / "ledger.jsonl") as temporary:
            shutil.copyfile(self.ledger.path, temporary)
        served = rounds.clients.served
        timed = self.composition.duration_is_public
        write_json(
            self.run_dir / "training.json",
            {
                "format": FORMAT,
                "written_by": VERSION,
                "rounds_planned": planned,
                "rounds_run": state.round,
                "ledger": self.ledger.chain,
                "stopped_by": stopped_by,
                f"{served}_per_second": (
                    round(state.clients / state.seconds, 2) if state.seconds else None
                ),
                f"milliseconds_per_{served.removesuffix('s')}": (
                    round(1000 * (state.seconds - state.measuring) / state.clients, 4)
                    if timed and state.clients
                    else None
                ),
                "seconds": round(state.seconds, 2) if timed else None,
                "resumed": state.resumed,
                "threads": rounds.threads,
                "processes": rounds.processes.count,
                "device": self.device,
                "gradients": rounds.gradients.name,
                "machine": processor(),
                "parameters": rounds.net.dimension,
                "shared_parameters": (
                    None if rounds.shared is None else rounds.shared.count
                ),
                "noise_multiplier": next(
                    (sum_.noise_multiplier for sum_ in self.composition.budgeted), None
                ),
                **rounds.personal_test(),
                "members": [
                    {"round": member["round"], "accuracy": member["accuracy"]}
                    for member in state.best
                ],
                "method_version": config.made_by,
                "versions": versions_of("torch", "numpy", "numba"),
                "notices": list(config.notices),
            },
        )
