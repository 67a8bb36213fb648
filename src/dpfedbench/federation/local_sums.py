"""The private sums that a few-shot client takes over its own examples: noise, random streams, lines of the ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dpfedbench.accounting.analyses import own_records
from dpfedbench.config import LocalConfig, RunConfig
from dpfedbench.federation.composition import Maml, Reptile, claims_of_today
from dpfedbench.privacy.ledger import Release
from dpfedbench.privacy.private_sum import PlainSum, PrivateSum
from dpfedbench.randomness import stream

SUPPORT, QUERY, TASK = "support-gradient-sum", "client-query-gradient-sum", "task-gradient-sum"

Observer = Callable[[str, int, int, PrivateSum, torch.Tensor], None]
"""Sees what the server sees: a release's name, client, step, the mechanism as it is in the ledger, and what it gave."""


class LocalSums:
    """The sums of all clients of a run; safe for use by several threads.

    Args:
        config: the run.
        update: what its clients compute.
        values: thresholds and noise, or the epsilon to find the noise from; None: sums as they are.
        dimension: of a gradient.
        observer: shown each release.

    Attributes:
        samplers: the releases that each client makes, by name, and how they are drawn.
        non_finite: gradients of the round that were not finite and counted as zero.

    Raises:
        BenchError: an epsilon that no noise meets.
    """

    def __init__(
        self,
        config: RunConfig,
        update: Maml | Reptile,
        values: LocalConfig | None,
        *,
        dimension: int,
        observer: Observer | None = None,
    ) -> None:
        self._values, self._seed, self._dimension, self._observer = values, config.seed, dimension, observer
        self.samplers: dict[str, dict[str, Any]] = {} if values is None else self._describe(config, update, values)
        self.non_finite = 0
        self._made: dict[str, PrivateSum] = {}
        self._lock = threading.Lock()
        if values is None:
            return
        self._seen_by = "everyone" if values.query == "server" else "server"
        self._noise_multiplier = values.multiplier or own_records.calibrate(
            self.samplers, epsilon=values.epsilon or 0.0, delta=values.delta, profile=values.profile,
            claims=claims_of_today(config),
        )  # fmt: skip

    @staticmethod
    def _describe(config: RunConfig, update: Maml | Reptile, values: LocalConfig) -> dict[str, dict[str, Any]]:
        def sampler(records: int, steps: int, batches: str = "full") -> dict[str, Any]:
            plan = {"clients": config.clients.count, "rounds": config.participation.rounds}
            return own_records.describe(**plan, records=records, steps=steps, batches=batches)

        support = config.task.ways * config.clients.support_per_class
        query = config.task.ways * config.clients.query_per_class
        if isinstance(update, Reptile):
            return {TASK: sampler(support + query, update.steps, values.batches)}
        found = {SUPPORT: sampler(support, update.inner_steps)}
        if values.query == "client":
            found[QUERY] = sampler(query, 1)
        return found

    def begin(self) -> None:
        """Start a round. Where no client comes nothing is released, but the ledger says with what noise it would be."""
        self.non_finite = 0
        self._made = {name: self._private() for name in self.samplers}

    def mean(self, name: str, rows: np.ndarray, *, round_: int, client: int, step: int) -> np.ndarray:
        """A client's (private) mean float32 [d] of gradients float32 [n, d]."""
        total: PlainSum | PrivateSum = PlainSum(dimension=self._dimension) if self._values is None else self._private()
        total.add(torch.from_numpy(rows))
        released = total.release(stream(self._seed, name, round_, client, step))
        with self._lock:
            self.non_finite += total.non_finite
            if isinstance(total, PrivateSum):
                self._made[name] = total
                if self._observer is not None:
                    self._observer(name, client, step, total, released)
        return (released / len(rows)).numpy().astype(np.float32)

    def _private(self) -> PrivateSum:
        assert self._values is not None
        return PrivateSum(
            dimension=self._dimension, threshold=self._values.threshold, noise_multiplier=self._noise_multiplier
        )

    def releases(self, round_: int) -> list[Release]:
        """The ledger's lines of a round: one for all releases of a name, whose mechanisms are alike."""
        return [
            Release(
                round=round_,
                name=name,
                mechanism=made.mechanism,
                unit="record",
                adjacency="zero-out",
                observer=self._seen_by,
                noise_multiplier=made.noise_multiplier,
                threshold=made.threshold,
                sensitivity=made.sensitivity,
                noise_std=made.noise_std,
                dimension=made.dimension,
                sampler=self.samplers[name],
                denominator=float(self.samplers[name]["cohort"]),
                noise_stream=f"{self._seed}/{name}/{round_}/client/step",
                data_dependent_threshold=False,
                counted_by_paper=True,
                reason="",
            )
            for name, made in self._made.items()
        ]
