"""Rounds in which the server takes the private sum, over clients (DP-AGR, MAML).

cohort -> contributions, chunk by chunk -> private sum -> ledger -> threshold rule -> server step
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedbench.config import RunConfig
from dpfedbench.data.images import ImageDataset, load_dataset
from dpfedbench.data.partition import gather, load_partition
from dpfedbench.evaluation.meta_test import task_accuracies
from dpfedbench.federation.budget import BudgetPlan
from dpfedbench.federation.composition import Composition, Maml
from dpfedbench.federation.contributions import Contributions, Gather, Source
from dpfedbench.federation.rounds import Observer, Row
from dpfedbench.federation.server import Server
from dpfedbench.models.conv4 import Conv4
from dpfedbench.privacy.clipping import make_rule
from dpfedbench.privacy.ledger import Ledger, Release
from dpfedbench.privacy.private_sum import PlainSum, PrivateSum, row_norms
from dpfedbench.randomness import stream

NORMS = ("norm_q10", "norm_q50", "norm_q90")


class OwnTasks:
    """The contributions of clients that hold tasks of images."""

    def __init__(
        self, config: RunConfig, update: Maml, *, data_dir: Path, clients_dir: Path, threads: int, device: str
    ) -> None:
        self.dataset: ImageDataset = load_dataset(data_dir)
        partition = load_partition(clients_dir)
        clients = config.clients
        sizes = {"support_per_class": clients.support_per_class, "query_per_class": clients.query_per_class}
        self._gather: Gather = lambda ids: gather(self.dataset, partition, ids, **sizes)
        self.net = Conv4(image_shape=self.dataset.image_shape, filters=config.model.filters, ways=config.task.ways)
        self._contributions = Contributions(
            self.net, update,
            support=clients.support_per_class * config.task.ways, query=clients.query_per_class * config.task.ways,
            threads=threads, device=device,
        )  # fmt: skip

    def stream(self, theta: np.ndarray, cohort: np.ndarray) -> Iterator[tuple[torch.Tensor, np.ndarray, np.ndarray]]:
        """As `Contributions.stream`, of these clients."""
        return self._contributions.stream(theta, cohort, self._gather)


class ServerSum:
    """The rounds of a method whose unit is the client.

    Args:
        config: the run.
        parts: what the method is made of.
        data_dir, clients_dir: a prepared data set and a client partition of it.
        ledger: where releases are written down.
        threads: CPU threads; changes no bit of the result.
        device: "cpu" or a CUDA device.
        source: where contributions come from, in place of the clients' data; the folders are then not read.
        observer: shown each release of a private run.
    """

    served = "clients"

    def __init__(
        self,
        config: RunConfig,
        parts: Composition,
        *,
        data_dir: Path | None = None,
        clients_dir: Path | None = None,
        ledger: Ledger,
        threads: int = 1,
        device: str = "cpu",
        source: Source | None = None,
        observer: Observer | None = None,
    ) -> None:
        assert parts.participation is not None and isinstance(parts.update, Maml)
        self.config, self.parts, self.ledger, self.threads = config, parts, ledger, threads
        self.participation = parts.participation
        if source is None:
            assert data_dir is not None and clients_dir is not None
            source = OwnTasks(
                config, parts.update, data_dir=data_dir, clients_dir=clients_dir, threads=threads, device=device
            )
        self.source, self.net, self._observer = source, source.net, observer
        self.server = Server(
            self.net.initial(stream(config.seed, "initial-weights")),
            optimizer=config.server.optimizer,
            rate=config.server.rate,
        )
        self.rule = None if parts.clipping is None else make_rule(parts.clipping)
        self.budget = (
            None if self.rule is None else BudgetPlan(config, self.participation.describe(), counted=self.rule.private)
        )
        self.lots = 1
        self.non_finite = 0
        self.columns: tuple[str, ...] = () if config.private else NORMS

    @property
    def theta(self) -> np.ndarray:
        """The model's weights [d], as of now."""
        return self.server.theta

    def round(self, index: int) -> tuple[Row, int]:
        """One round: its row of the history, and how many clients it served.

        Of a private run the latter is the expectation: the number that came is private unless the plan fixes it.
        """
        participation, rule, budget = self.participation, self.rule, self.budget
        cohort = participation.cohort(index)
        if rule is None or budget is None:
            total: PrivateSum | PlainSum = PlainSum(dimension=self.net.dimension)
        else:
            total = PrivateSum(
                dimension=self.net.dimension,
                threshold=rule.threshold,
                noise_multiplier=budget.noise_multiplier,
            )
        losses = []
        for gradients, chunk_losses, _ in self.source.stream(self.server.theta, cohort):
            total.add(gradients)
            losses.append(chunk_losses)
            if rule is not None and rule.reads_raw_norms:
                rule.observe_raw(row_norms(gradients).tolist())
        released = total.release(stream(self.config.seed, "noise", index))
        mean = released / participation.denominator
        row: Row = {}
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
            written = self._release(index, total)
            self.ledger.append(written)
            if self._observer is not None:
                self._observer([written], [mean])
            budget.took(1)
            row |= {
                "clients": participation.denominator, "threshold": rule.threshold,
                "released_norm": float(released.norm()), "noise_multiplier": budget.noise_multiplier,
            }  # fmt: skip
            rule.observe(released, participation.denominator)
        self.non_finite = total.non_finite
        self.server.step(mean)
        return row, len(cohort) if budget is None else int(participation.denominator)

    def _release(self, index: int, total: PrivateSum) -> Release:
        """What the ledger says of a round: read off the mechanism that ran."""
        rule = self.rule
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
            sampler=self.participation.describe(),
            denominator=self.participation.denominator,
            noise_stream=f"{self.config.seed}/noise/{index}",
            data_dependent_threshold=not rule.private,
            reason="" if rule.private else f"{type(rule).__name__} sets the threshold from raw norms",
        )

    def validate(self) -> dict[str, float]:
        """Accuracy in percent on public validation tasks, for the history."""
        assert isinstance(self.source, OwnTasks)
        accuracies = task_accuracies(
            self.source.net, [self.theta], self.source.dataset, self.config, split="validation",
            tasks=self.config.validation.tasks, purpose="validation", threads=self.threads,
        )  # fmt: skip
        return {"validation_accuracy": 100 * float(accuracies.mean())}

    def test(self) -> dict[str, float]:
        """Nothing: a meta-model is tested when it is finished."""
        return {}

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        return {"server": self.server.state(), "clipping": None if self.rule is None else self.rule.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.server.restore(state["server"])
        if self.rule is not None:
            self.rule.load_state_dict(state["clipping"])
