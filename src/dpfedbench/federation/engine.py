"""The one training loop. A method gives it its parts (`loop`); it gives back files.

The loop keeps the rounds, the checkpoints, the validation, the history and the results; mechanisms (`dpsum`) keep
sums, noise and budgets. What is computed from private data leaves only as a release of a mechanism. Training loss, raw
norms and how many contributions were not finite are therefore kept of runs that claim no privacy, and of no others; and
how long rounds took is told of no run whose account takes its cohorts or lots to be secret.

A run that was killed goes on from its last checkpoint and ends with the same bits as one that was not: every random
number comes from a stream named by its round, and everything else is in the checkpoint.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib.metadata
import math
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedbench.compiled import processor
from dpfedbench.data.holdings import Records, Tasks
from dpfedbench.data.text_tasks import TextTasks
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.few_shot import FewShotMeasures
from dpfedbench.evaluation.held_out import HeldOutMeasures, NoMeasures, check_classes
from dpfedbench.evaluation.next_word import TextMeasures
from dpfedbench.federation.checkpoint import Checkpoint, finished, run_lock
from dpfedbench.federation.finite import check_finite
from dpfedbench.federation.loop import Loop
from dpfedbench.federation.together import Elsewhere, add_together, check_agree, help_first
from dpfedbench.federation.untrained import Untrained
from dpfedbench.files import atomic_path, write_json
from dpfedbench.kernels import choose
from dpfedbench.kernels.adding import TORCH
from dpfedbench.models.gradients import Choice, chunk_of, device_of
from dpfedbench.models.members import save_members
from dpfedbench.parts.client_updates.client_update import Clients, Row, Setup, Stream
from dpfedbench.processes import Processes
from dpfedbench.results_format import FORMAT, HISTORY, NORMS, VERSION
from dpsum.budget import Budget
from dpsum.ledger import Ledger
from dpsum.mechanism import Mechanism
from dpsum.progress import Progress
from dpsum.randomness import stream
from dpsum.total import Observer


def train(
    run: Any,
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
    """Train one run and write model.safetensors, history.csv, ledger.jsonl and training.json to `run_dir`.

    Args:
        run: the run (a method).
        data_dir: a prepared data set.
        clients_dir: a client partition of it.
        run_dir: the run's folder. `checkpoint/` below it is used while training and removed at the end.
        threads: CPU threads, of each process; changes no bit of the result.
        checkpoint_seconds: least time between two checkpoints; 0 for one after every round.
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
        kernels: whether hand-written passes are used where they fit; else torch's own.
        references: files of other runs that this one needs, by name (`Method.references`).
        processes: those that call this at once, to take the run together; changes no bit of the result on a CPU.

    Raises:
        BenchError: bad data, a foreign or damaged checkpoint, no permission, a budget too small for one round, a GPU
            asked for and not there; more processes than clients of a round, or such that do not agree.
    """
    device = device_of(device)
    run_dir, references, processes = Path(run_dir), references or {}, processes or Processes()
    run.check_processes(processes.count)
    check_agree(processes, run, device, [data_dir, clients_dir, *references.values()])

    def rounds_of(ledger: Any, first: float | None) -> Rounds | Untrained:
        return Rounds.of(
            run, data_dir=Path(data_dir), clients_dir=Path(clients_dir), ledger=ledger, threads=threads, device=device,
            kernels=kernels, first=first, references=references, processes=processes,
        )  # fmt: skip

    if not processes.first:
        help_first(processes, rounds_of(Elsewhere(), _first_threshold(run, references)))
        return
    folder = run_dir / "checkpoint"
    with run_lock(folder) as waited:
        if waited and finished(run_dir, run):
            print(f"{run.folder} was finished by the process waited for", file=sys.stderr, flush=True)
        else:
            first, ledger = _first_threshold(run, references), Ledger(folder / "ledger.jsonl")
            _Training(run, rounds_of(ledger, first), run_dir, ledger, checkpoint_seconds, first).run()
        processes.tell()
        shutil.rmtree(folder, ignore_errors=True)


def _first_threshold(run: Any, references: Mapping[str, Path]) -> float | None:
    """The threshold of a rule that finds it in another run; None where there is none."""
    for rule in (sum_.clipping for sum_ in run.sums):
        if rule is not None and rule.reference:
            name = rule.reference_file
            if name not in references:
                raise BenchError(f"{run.folder} needs {name} of {run.references[name].folder}: give it as a reference")
            return float(rule.first_threshold(references[name], run))
    return None


def _cell(value: Any) -> Any:
    """What a CSV has for a value: nothing for one that is not a number."""
    return "" if value is None or value != value else value


class Rounds:
    """The rounds of one run: the loop's parts at work on a model.

    Args:
        run: the run (a method).
        loop: its parts.
        net: the model.
        held: what clients hold.
        gradients: how gradients of the model are taken.
        measures: what the model is measured on while it trains.
        ledger: where releases are written down.
        threads: CPU threads; changes no bit of the result.
        observer: shown each release of a private sum.
        clients: in place of those that the client update makes; an audit's.
        first: the first threshold, where it was found and not configured.
        processes: those that take the run together.
        weights: that training starts from, float32 [d]; None: the network's own random ones.
    """

    def __init__(
        self, run: Any, loop: Loop, *, net: Any, held: Any, gradients: Choice, measures: Any, ledger: Ledger,
        threads: int = 1, observer: Observer | None = None, clients: Clients | None = None,
        first: float | None = None, plan: Any = None, processes: Processes | None = None,
        weights: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        if weights is None:  # an audit's: its releases say nothing of where training starts
            weights = net.initial(stream(run.seed, "initial-weights"))
        self.run, self.loop, self.net, self.gradients, self.measures = run, loop, net, gradients, measures
        self.planned, self.threads, self.processes = loop.participation.rounds, threads, processes or Processes()
        self.plan = plan or loop.participation.plan(clients=run.clients.count, seed=run.stream_seed)
        self.ledger = ledger
        self.budget = Budget(
            claims=run.claims, sums=loop.sums,
            unaccounted=tuple(dict.fromkeys((*run.unaccounted, *getattr(held, "unaccounted", ())))),
        )  # fmt: skip
        self._enter = functools.partial(
            Mechanism.of, budget=self.budget, ledger=ledger, seed=run.stream_seed, observer=observer, arithmetic=TORCH
        )
        setup = Setup(
            run=run, net=net, held=held, gradients=gradients, own=loop.own, enter=self._enter, plan=self.plan,
            threads=threads, first=first, processes=self.processes, weights=weights,
        )  # fmt: skip
        self.clients = clients or loop.client.clients(setup)
        self.server = self._enter_server(first)
        self.budget.settle()
        self._elsewhere = 0
        self.theta = torch.from_numpy(weights.copy())
        self._state = loop.step.begin(self.theta)
        norms = () if run.private or self.clients.served == "records" else NORMS
        told = () if loop.server.noise is None else loop.server.noise.columns
        self.columns = (*measures.columns, *loop.client.columns(run), *told, *norms)

    @classmethod
    def of(
        cls, run: Any, *, data_dir: Path, clients_dir: Path, ledger: Ledger, threads: int = 1, device: str = "cpu",
        kernels: bool = True, first: float | None = None, observer: Observer | None = None,
        references: Mapping[str, Path] | None = None, processes: Processes | None = None,
    ) -> Rounds | Untrained:  # fmt: skip
        """The rounds of a run on its own data.

        Raises:
            BenchError: data missing or damaged, or a model that does not fit them.
        """
        loop = run.loop()
        held = _held(run, data_dir, clients_dir)
        net = run.net(held.dataset.image_shape, _classes(run, held.dataset), references)
        net.check()
        weights = run.initial.weights(run, net, references or {})
        gradients = choose(net, device=device, enabled=kernels)
        by_record = any(sum_.private and sum_.unit == "record" for sum_ in run.sums) or run.within_records
        # A kernel's network is known, and the settings have said which one; to load Opacus takes a second.
        if by_record and gradients.name.startswith("torch"):
            net.refuse_record_level()
        if loop is None:
            return Untrained(net, gradients, run, processes, weights=weights)
        if run.pretrains:
            # Nothing is held out: the classes of the meta-test are others.
            measures: Any = NoMeasures()
        elif run.holds == "records":
            check_classes(run, held.dataset)
            measures = HeldOutMeasures(run, held.dataset, gradients, threads=threads)
        elif run.task.text is not None:
            measures = TextMeasures(run, held.dataset, gradients, threads=threads)
        else:
            measures = FewShotMeasures(run, held.dataset, gradients, net=net, threads=threads)
        return cls(
            run, loop, net=net, held=held, gradients=gradients, measures=measures, ledger=ledger, threads=threads,
            observer=observer, first=first, processes=processes, weights=weights,
        )  # fmt: skip

    def _enter_server(self, first: float | None) -> Mechanism:
        denominator = self.plan.denominator * self.clients.each
        return self._enter(
            self.loop.server, sampler=self.plan.describe(), denominator=denominator, dimension=self.net.dimension,
            cohort=self.plan.denominator, plain=self.loop.step.plain_sum,
            first=None if first is None else lambda: first,
        )  # fmt: skip

    def round(self, index: int) -> tuple[Row, int]:
        """One round: its row of the history, and how much it served.

        Of a private run the latter is the expectation: the number that came is private unless the plan fixes it.
        """
        self.processes.tell(("round", index, self.theta.numpy(), self._states()))
        cohort, total, losses = self._contributed(index)
        released = torch.from_numpy(self.server.release(total))
        row = self.clients.row()
        if row is None:
            row = self._row(total, released, cohort, losses)
        self.loop.step.told(self._state, total.deviation / self.server.denominator)
        mean = self.loop.step.mean(released, self.server.denominator)
        self.loop.step.step(self.theta, mean, self._state, index=index, rounds=self.planned)
        check_finite(self.run, self.theta, row, index=index, count=getattr(total.sum, "count", 0), bad=self.non_finite)
        served = self.clients.work(cohort)
        if served is None:
            served = int(self.plan.denominator) if self.loop.server.private else len(cohort)
        return row, served

    @property
    def non_finite(self) -> int:
        """Contributions of the round, of all processes, that were not finite and counted as zero."""
        return self._elsewhere + sum(mechanism.non_finite for mechanism in self.budget.mechanisms)

    def help(self, what: str, *told: Any) -> None:
        """Take this process's part in what the first one does: a round, a checkpoint or the way back to one."""
        if what == "round":
            self.theta.copy_(torch.from_numpy(told[1]))
            self._take_states(told[2])
            self._contributed(told[0])
        elif what == "state":
            self.clients.state()
        else:
            self.clients.restore(*told)

    def _contributed(self, index: int) -> tuple[np.ndarray, Any, list[np.ndarray]]:
        """The cohort of a round, the server's sum of what it sends, and losses; all of it in the first process."""
        for mechanism in self.budget.mechanisms:
            mechanism.non_finite = 0
        cohort, total, losses = self.plan.cohort(index), self.server.open(index), list[np.ndarray]()

        def stream_of(some: np.ndarray) -> Stream:
            return self.clients.contributions(self.theta.numpy(), some, index)

        if self.processes.count > 1 and not self.clients.divides:
            size = chunk_of(self.gradients, self.threads)
            blocks = self.processes.blocks(len(cohort), size, fixed=self.gradients.device != "cpu")
            losses = add_together(self.processes, total, stream_of, cohort, blocks, each=self.clients.each)
        else:
            for contributions, chunk_losses, _ in stream_of(cohort):
                if self.processes.first:
                    total.add(contributions)
                    losses.append(chunk_losses)
        counted = sum(mechanism.non_finite for mechanism in self.budget.mechanisms)
        self._elsewhere = sum(self.processes.collected(counted)) - counted
        return cohort, total, losses

    def _row(self, total: Any, released: torch.Tensor, cohort: np.ndarray, losses: list[np.ndarray]) -> Row:
        norm = float(released.norm())
        if self.loop.server.private:
            return {
                "clients": self.plan.denominator, "threshold": total.sum.threshold, "released_norm": norm,
                "noise_multiplier": total.sum.noise_multiplier, **total.sum.told,
            }  # fmt: skip
        if self.run.private:
            # Each contribution is a client's own release, so that the sum is free to be told; losses are not.
            return {"clients": self.plan.denominator, "released_norm": norm}
        quantiles = np.quantile(total.norms, [0.1, 0.5, 0.9]) if len(total.norms) else [np.nan] * 3
        loss = float(np.mean(np.concatenate(losses))) if losses else np.nan
        return {"clients": len(cohort), "loss": loss, **dict(zip(NORMS, map(float, quantiles), strict=True))} | {
            "released_norm": norm
        }

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        self.processes.tell(("state",))
        return {
            "theta": self.theta.clone(), "step": self._state, "clients": self.clients.state(),
            "mechanisms": self._states(),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.theta.copy_(state["theta"])
        self._state = state["step"]
        self.processes.tell(("restore", state["clients"]))
        self.clients.restore(state["clients"])
        self._take_states(state["mechanisms"])

    def _states(self) -> list[dict[str, Any]]:
        return [mechanism.state() for mechanism in self.budget.mechanisms]

    def _take_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        for mechanism, state in zip(self.budget.mechanisms, states, strict=True):
            mechanism.restore(state)


def _held(run: Any, data_dir: Path, clients_dir: Path) -> Any:
    if run.holds == "records":
        held = Records(data_dir, clients_dir)
        held.images = [run.model.prepared(images) for images in held.images]
        return held
    support, query = run.clients.support_per_class, run.clients.query_per_class
    if run.task.text is not None:
        return TextTasks(data_dir, clients_dir, run.task.text, support=support, query=query)
    return Tasks(data_dir, clients_dir, support_per_class=support, query_per_class=query)


def _classes(run: Any, dataset: Any) -> int:
    return len(dataset.class_names) if run.holds == "records" else run.task.ways


@dataclasses.dataclass
class _State:
    """What changes from round to round, besides what the rounds keep."""

    round: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # {"accuracy", "round", "theta"}
    seconds: float = 0.0
    clients: int = 0
    resumed: int = 0
    measuring: float = 0.0  # of the seconds, those of validation and tests


class _Training:
    """One run: its rounds, its state and the loop over them."""

    def __init__(
        self, run: Any, rounds: Rounds | Untrained, run_dir: Path, ledger: Ledger, checkpoint_seconds: float,
        first: float | None,
    ) -> None:  # fmt: skip
        self.config, self.rounds, self.run_dir = run, rounds, run_dir
        self.ledger, self.budget = ledger, rounds.budget
        self.device = rounds.gradients.device
        self.checkpoint = Checkpoint(
            ledger.path.parent,
            identity={
                "run": run.key,
                "seed": run.seed,
                "version": run.made_by,
                "device": self.device,
                "checkpoint format": 6,
            }
            | ({} if first is None else {"threshold": first}),
            seconds=checkpoint_seconds,
        )
        self.state = _State()

    def run(self) -> None:
        """All rounds that the plan and the budget allow."""
        self._restore()
        planned = self.rounds.planned
        if planned and not self.budget.allows(1):
            raise BenchError(
                f"the budget of epsilon {self.config.budget.epsilon} is spent by the first round: "
                "raise budget.epsilon or noise.multiplier"
            )
        for notice in self.config.notices:
            print(f"notice: {notice}", file=sys.stderr, flush=True)
        progress = Progress(
            f"train {self.config.folder}", self.budget.expected(planned), unit=self.rounds.clients.served,
            done=self.state.round, timed=self.budget.timed,
        )  # fmt: skip
        # Training stops before a budget is exceeded, not after.
        while self.state.round < planned and self.budget.allows(self.state.round + 1):
            started = time.monotonic()
            served = self._round(self.state.round)
            if self.budget.timed:
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

    def _round(self, index: int) -> int:
        """One round; returns how much it served (for the rate on screen)."""
        found, served = self.rounds.round(index)
        row: Row = {"round": index + 1} | found
        row |= self.budget.spent(index + 1)
        self.state.history.append(row)
        if self.rounds.non_finite:
            self._warn_of(self.rounds.non_finite, index + 1)
        started = time.monotonic()
        self._validate(index + 1)
        if self.budget.timed:
            self.state.measuring += time.monotonic() - started
        return served

    def _warn_of(self, non_finite: int, done: int) -> None:
        """Say how many contributions of a round counted as zero: of a private run on a terminal, which keeps nothing.

        The count is no release, and a log is a file beside the results.
        """
        out, text = sys.stderr, f"warning: round {done}: {non_finite} contributions were not finite and counted as zero"
        if self.config.private:
            text += " (seen by the simulation only: this count is not a release, and no log has it)"
            out = sys.__stderr__
            if out is None or not out.isatty():
                return
        print(text, file=out, flush=True)

    def _validate(self, done: int) -> None:
        """Every so many rounds: public validation, which may drive the noise; and how the test part fares."""
        validation, row = self.config.validation, self.state.history[-1]
        theta, measures = self.rounds.theta.numpy(), self.rounds.measures
        if validation.every and (done % validation.every == 0 or done == self.rounds.planned):
            row |= measures.validate(theta)
            if "validation_loss" in row:
                self.budget.observe(row["validation_loss"])
            if "validation_accuracy" in row:
                self._keep_best(row["validation_accuracy"], done)
        every = self.config.evaluation.every
        if every and done % every == 0:
            row |= measures.test(theta)

    def _keep_best(self, accuracy: float, done: int) -> None:
        self.state.best.append({"accuracy": accuracy / 100, "round": done, "theta": self.rounds.theta.clone()})
        self.state.best.sort(key=lambda kept: (-kept["accuracy"], kept["round"]))
        del self.state.best[max(1, self.config.validation.ensemble) :]

    def _note(self) -> str:
        row = self.state.history[-1]
        said = []
        if not math.isnan(row.get("epsilon_claimed", math.nan)):
            said.append(f"epsilon claimed {row['epsilon_claimed']:.3g}")
        if not math.isnan(row.get("epsilon_holds", math.nan)):
            said.append(f"holds {row['epsilon_holds']:.3g}")
        if "noise_multiplier" in row and self.rounds.clients.served == "records":
            said.append(f"z {row['noise_multiplier']:.3g}")
        if "loss" in row:
            said.append(f"loss {row['loss']:.3f}")
        return ", ".join(said)

    # Going on after a restart

    def _save(self) -> None:
        # The ledger first: a checkpoint must not know of a release that the ledger could lose.
        self.ledger.sync()
        state = {field.name: getattr(self.state, field.name) for field in dataclasses.fields(self.state)}
        self.checkpoint.save(state | {"rounds": self.rounds.state(), "ledger": self.ledger.chain})

    def _restore(self) -> None:
        saved = self.checkpoint.load()
        # Rounds after the checkpoint are run again with the same noise, so they are the same releases.
        self.ledger.go_on_after(self.ledger.chain if saved is None else saved.pop("ledger"))
        if saved is not None:
            self.rounds.restore(saved.pop("rounds"))
            self.state = _State(**saved)
            self.state.resumed += 1
            # Which round that is follows from how long rounds took.
            at = f"round {self.state.round}" if self.budget.timed else "the last checkpoint"
            print(f"going on after {at} of {self.config.folder}", file=sys.stderr, flush=True)

    # Results

    def _write(self, planned: int, stopped_by: str) -> None:
        state, config, rounds = self.state, self.config, self.rounds
        members = [kept["theta"].numpy() for kept in state.best] or [rounds.theta.numpy()]
        save_members(self.run_dir / "model.safetensors", rounds.net, members)
        columns = [*HISTORY, *rounds.columns]
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
        served = rounds.clients.served
        spent, timed = [entry.noise_multiplier for entry in self.budget.budgeted], self.budget.timed
        write_json(
            self.run_dir / "training.json",
            {
                "format": FORMAT,
                "written_by": VERSION,
                "rounds_planned": planned,
                "rounds_run": state.round,
                "ledger": self.ledger.chain,
                "stopped_by": stopped_by,
                f"{served}_per_second": round(state.clients / state.seconds, 2) if state.seconds else None,
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
                "noise_multiplier": spent[0] if spent else None,
                "members": [{"round": kept["round"], "accuracy": kept["accuracy"]} for kept in state.best],
                "method_version": config.made_by,
                "versions": versions | {"python": platform.python_version()},
                "notices": list(config.notices),
            },
        )
