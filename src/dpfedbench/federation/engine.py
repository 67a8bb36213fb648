"""The one training loop. A method gives it parts (`composition`); it gives back files.

    for each round:  cohort -> contributions, chunk by chunk -> private sum -> ledger -> threshold rule -> server step

What is computed from private data leaves the loop only as the private sum's release. Training loss and raw norms
are therefore written for runs that claim no privacy, and for no others.

A run that was killed goes on from its last checkpoint and ends with the same bits as one that was not: every random
number comes from a stream named by its round, and everything else is in the checkpoint.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from dpfedbench.config import RunConfig
from dpfedbench.data.images import ImageDataset, load_dataset
from dpfedbench.data.partition import gather, load_partition
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.meta_test import save_members, task_accuracies
from dpfedbench.federation.budget import BudgetPlan
from dpfedbench.federation.checkpoint import Checkpoint, run_lock
from dpfedbench.federation.composition import Composition
from dpfedbench.federation.contributions import Contributions, Gather
from dpfedbench.federation.progress import Progress
from dpfedbench.federation.server import Server
from dpfedbench.files import atomic_path, write_json
from dpfedbench.methods import METHODS
from dpfedbench.models.conv4 import Conv4
from dpfedbench.privacy.ledger import Ledger, Release
from dpfedbench.privacy.private_sum import PlainSum, PrivateSum
from dpfedbench.randomness import stream

HISTORY = (
    "round", "clients", "loss", "threshold", "released_norm", "noise_multiplier", "epsilon_claimed", "epsilon_holds",
    "validation_accuracy", "seconds",
)  # fmt: skip
NORMS = ("norm_q10", "norm_q50", "norm_q90")


@dataclasses.dataclass
class _State:
    """What changes from round to round, besides the server and the threshold rule."""

    round: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # {"accuracy", "round", "theta"}
    seconds: float = 0.0
    clients: int = 0
    resumed: int = 0
    non_finite: int = 0


def train(
    config: RunConfig,
    *,
    data_dir: Path,
    clients_dir: Path,
    run_dir: Path,
    threads: int = 1,
    checkpoint_seconds: float = 60.0,
) -> None:
    """Train one run and write model.safetensors, history.csv, ledger.jsonl and training.json to `run_dir`.

    Args:
        config: the run.
        data_dir: a prepared data set.
        clients_dir: a client partition of it.
        run_dir: the run's folder. `checkpoint/` below it is used while training and removed at the end.
        threads: CPU threads; changes no bit of the result.
        checkpoint_seconds: least time between two checkpoints; 0 for one after every round.

    Raises:
        BenchError: bad data, a foreign or damaged checkpoint, no permission, a budget too small for one round.
    """
    run_dir = Path(run_dir)
    folder = run_dir / "checkpoint"
    with run_lock(folder):
        _Training(config, Path(data_dir), Path(clients_dir), run_dir, folder, threads, checkpoint_seconds).run()
        shutil.rmtree(folder, ignore_errors=True)


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
    ) -> None:
        self.config, self.run_dir, self.folder, self.threads = config, run_dir, folder, threads
        method = METHODS[config.method]
        self.parts: Composition = method.compose(config)
        self.dataset: ImageDataset = load_dataset(data_dir)
        partition = load_partition(clients_dir)
        clients = config.clients
        sizes = {"support_per_class": clients.support_per_class, "query_per_class": clients.query_per_class}
        self.gather: Gather = lambda ids: gather(self.dataset, partition, ids, **sizes)
        self.net = Conv4(image_shape=self.dataset.image_shape, filters=config.model.filters, ways=config.task.ways)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.contributions = Contributions(
            self.net, self.parts.update,
            support=clients.support_per_class * config.task.ways, query=clients.query_per_class * config.task.ways,
            threads=threads, device=self.device,
        )  # fmt: skip
        self.server = Server(
            self.net.initial(stream(config.seed, "initial-weights")),
            optimizer=config.server.optimizer,
            rate=config.server.rate,
        )
        rule = self.parts.clipping
        self.budget = (
            None if rule is None else BudgetPlan.of(config, self.parts.participation.describe(), counted=rule.private)
        )
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.checkpoint = Checkpoint(
            folder,
            identity={
                "run": config.key,
                "seed": config.seed,
                "version": method.VERSION,
                "device": self.device,
            },
            seconds=checkpoint_seconds,
        )
        self.state = _State()

    # The loop

    def run(self) -> None:
        """All rounds that the plan and the budget allow."""
        self._restore()
        planned = self.parts.rounds
        last = planned if self.budget is None else min(planned, self.budget.rounds_allowed)
        if planned and last == 0:
            raise BenchError(
                f"the budget of epsilon {self.config.budget.epsilon} is spent by the first round: "  # type: ignore[union-attr]
                "raise budget.epsilon or noise.multiplier"
            )
        for notice in self.config.notices:
            print(f"notice: {notice}", file=sys.stderr, flush=True)
        progress = Progress(f"train {self.config.folder}", last, unit="clients", done=self.state.round)
        while self.state.round < last:
            started = time.monotonic()
            clients = self._round(self.state.round)
            self.state.seconds += time.monotonic() - started
            self.state.history[-1]["seconds"] = round(time.monotonic() - started, 4)
            self.state.clients += clients
            self.state.round += 1
            progress.step(self.state.round, clients, self._note())
            if self.checkpoint.due() and self.state.round < last:
                self.checkpoint.save(self._saved())
        # Checkpointed once more, so that being killed while the results are written costs nothing.
        self.checkpoint.save(self._saved())
        self._write(planned, "rounds" if last == planned else "budget")

    def _round(self, index: int) -> int:
        """One round; returns how many clients took part (for the rate on screen, not written for private runs)."""
        participation = self.parts.participation
        cohort = participation.cohort(index)
        rule, budget = self.parts.clipping, self.budget
        if rule is None or budget is None:
            total: PrivateSum | PlainSum = PlainSum(dimension=self.net.dimension)
        else:
            total = PrivateSum(
                dimension=self.net.dimension,
                threshold=rule.threshold,
                noise_multiplier=budget.noise_multiplier,
            )
        losses = []
        for gradients, chunk_losses, _ in self.contributions.stream(self.server.theta, cohort, self.gather):
            total.add(gradients)
            losses.append(chunk_losses)
            if rule is not None and rule.reads_raw_norms:
                rule.observe_raw(torch.linalg.vector_norm(gradients, dim=1).tolist())
        released = total.release(stream(self.config.seed, "noise", index))
        row: dict[str, Any] = {"round": index + 1}
        if isinstance(total, PlainSum):
            quantiles = np.quantile(total.norms, [0.1, 0.5, 0.9]) if len(total.norms) else [np.nan] * 3
            row |= {
                "clients": len(cohort),
                "loss": float(np.mean(np.concatenate(losses))) if losses else np.nan,
            }
            row |= dict(zip(NORMS, map(float, quantiles), strict=True))
            row["released_norm"] = float(released.norm())
        else:
            assert rule is not None and budget is not None
            self.ledger.append(self._release(index, total))
            claimed, holds = budget.spent(index + 1)
            row |= {
                # The expectation: the number that came is private unless the plan fixes it.
                "clients": participation.denominator, "threshold": rule.threshold,
                "released_norm": float(released.norm()), "noise_multiplier": budget.noise_multiplier,
                "epsilon_claimed": claimed, "epsilon_holds": holds,
            }  # fmt: skip
            rule.observe(released, participation.denominator)
        if total.non_finite:
            self.state.non_finite += total.non_finite
            print(
                f"warning: round {index + 1}: {total.non_finite} contributions were not finite and counted as zero "
                "(seen by the simulation only: this count is not a release)",
                file=sys.stderr,
                flush=True,
            )
        self.server.step(released / participation.denominator)
        self.state.history.append(row)
        self._validate(index + 1)
        # What a private run reports of itself is the expected number: the realised one is private.
        return len(cohort) if budget is None else int(participation.denominator)

    def _release(self, index: int, total: PrivateSum) -> Release:
        """What the ledger says of a round: read off the mechanism that ran."""
        rule, participation = self.parts.clipping, self.parts.participation
        assert rule is not None
        return Release(
            round=index,
            name=self.parts.release,
            unit=self.parts.unit,
            adjacency="zero-out",
            observer=self.parts.observer,
            noise_multiplier=total.noise_multiplier,
            threshold=total.threshold,
            sensitivity=total.sensitivity,
            noise_std=total.noise_std,
            dimension=total.dimension,
            sampler=participation.describe(),
            denominator=participation.denominator,
            noise_stream=f"{self.config.seed}/noise/{index}",
            data_dependent_threshold=not rule.private,
            reason="" if rule.private else f"{type(rule).__name__} sets the threshold from raw norms",
        )

    def _validate(self, done: int) -> None:
        """Every so many rounds: accuracy on public validation tasks; keeps the best few models."""
        validation = self.config.validation
        if not validation.every or (done % validation.every and done != self.parts.rounds):
            return
        accuracy = float(
            task_accuracies(
                self.net, [self.server.theta], self.dataset, self.config, split="validation", tasks=validation.tasks,
                purpose="validation", threads=self.threads,
            ).mean()
        )  # fmt: skip
        self.state.history[-1]["validation_accuracy"] = 100 * accuracy
        self.state.best.append(
            {"accuracy": accuracy, "round": done, "theta": torch.from_numpy(self.server.theta.copy())}
        )
        self.state.best.sort(key=lambda kept: (-kept["accuracy"], kept["round"]))
        del self.state.best[max(1, validation.ensemble) :]

    def _note(self) -> str:
        row = self.state.history[-1]
        if "epsilon_holds" in row:
            return f"epsilon claimed {row['epsilon_claimed']:.3g}, holds {row['epsilon_holds']:.3g}"
        return f"loss {row['loss']:.3f}"

    # Going on after a restart

    def _saved(self) -> dict[str, Any]:
        state = dataclasses.asdict(self.state)
        state["server"] = self.server.state()
        state["clipping"] = None if self.parts.clipping is None else self.parts.clipping.state_dict()
        return state

    def _restore(self) -> None:
        saved = self.checkpoint.load()
        if saved is not None:
            self.server.restore(saved.pop("server"))
            clipping = saved.pop("clipping")
            if self.parts.clipping is not None:
                self.parts.clipping.load_state_dict(clipping)
            self.state = _State(**saved)
            self.state.resumed += 1
            print(
                f"going on after round {self.state.round} of {self.config.folder}",
                file=sys.stderr,
                flush=True,
            )
        # Rounds after the checkpoint are run again with the same noise, so they are the same releases.
        self.ledger.truncate_to(self.state.round)

    # Results

    def _write(self, planned: int, stopped_by: str) -> None:
        state, config = self.state, self.config
        members = [kept["theta"].numpy() for kept in state.best] or [self.server.theta]
        save_members(self.run_dir / "model.safetensors", self.net, members)
        columns = list(HISTORY) + ([] if config.private else list(NORMS))
        with atomic_path(self.run_dir / "history.csv") as temporary:
            pd.DataFrame(state.history, columns=columns).to_csv(temporary, index=False)
        with atomic_path(self.run_dir / "ledger.jsonl") as temporary:
            shutil.copyfile(self.ledger.path, temporary)
        versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "numba")}
        write_json(
            self.run_dir / "training.json",
            {
                "rounds_planned": planned,
                "rounds_run": state.round,
                "stopped_by": stopped_by,
                "clients_per_second": round(state.clients / state.seconds, 2) if state.seconds else None,
                "seconds": round(state.seconds, 2),
                "resumed": state.resumed,
                "threads": self.threads,
                "device": self.device,
                "machine": platform.machine(),
                "parameters": self.net.dimension,
                "noise_multiplier": None if self.budget is None else self.budget.noise_multiplier,
                "members": [{"round": kept["round"], "accuracy": kept["accuracy"]} for kept in state.best],
                "method_version": METHODS[config.method].VERSION,
                "versions": versions | {"python": platform.python_version()},
                "notices": list(config.notices),
            },
        )
