"""Rounds in which the server takes the private sum, over clients (DP-AGR, MAML, DP-FedAvg).

cohort -> contributions, chunk by chunk -> private sum -> ledger -> threshold rule -> server step
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedbench.accounting.budgets import BudgetPlan
from dpfedbench.accounting.gaussian import rest_multiplier
from dpfedbench.config import RunConfig
from dpfedbench.federation.composition import Composition, LocalSteps, Maml, ModelDifference, Reptile, claims_of_today
from dpfedbench.federation.record_clients import RecordClients
from dpfedbench.federation.record_tasks import OwnTasks, RecordTaskClients
from dpfedbench.federation.releases import as_release
from dpfedbench.federation.rounds import CohortClients, Observer, Row
from dpfedbench.federation.server import Server
from dpfedbench.federation.task_clients import TaskClients
from dpfedbench.privacy.clipping import INDICATOR, PrivateQuantile, centred_indicators, make_rule
from dpfedbench.privacy.ledger import Ledger, Release
from dpfedbench.privacy.private_sum import PlainSum, PrivateSum
from dpfedbench.randomness import stream

NORMS = ("norm_q10", "norm_q50", "norm_q90")
COUNT_RELEASE = "below-threshold-count"


def _own_clients(
    config: RunConfig, parts: Composition, *, data_dir: Path | None, clients_dir: Path | None, threads: int, device: str
) -> CohortClients:
    """The clients that the partition describes."""
    assert data_dir is not None and clients_dir is not None
    given: dict[str, Any] = {"data_dir": data_dir, "clients_dir": clients_dir, "threads": threads}
    update = parts.update
    if isinstance(update, ModelDifference):
        return RecordClients(config, update, **given)
    if isinstance(update, Reptile) or config.within_records:
        assert isinstance(update, Maml | Reptile)
        return RecordTaskClients(config, update, parts.local, source=OwnTasks(config, **given), threads=threads)
    assert isinstance(update, Maml)
    return TaskClients(config, update, **given, device=device)


class ServerSum:
    """The rounds of a method whose unit is the client.

    Args:
        config: the run.
        parts: what the method is made of.
        data_dir, clients_dir: a prepared data set and a client partition of it.
        ledger: where releases are written down.
        threads: CPU threads; changes no bit of the result.
        device: "cpu" or a CUDA device.
        source: in place of the clients that the partition describes; the folders are then not read.
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
        source: CohortClients | None = None,
        observer: Observer | None = None,
    ) -> None:
        assert parts.participation is not None and not isinstance(parts.update, LocalSteps)
        self.config, self.parts, self.ledger = config, parts, ledger
        self.participation = parts.participation
        self._observer = observer
        self.clients: CohortClients = source or _own_clients(
            config, parts, data_dir=data_dir, clients_dir=clients_dir, threads=threads, device=device
        )
        self.net = self.clients.net
        self.server = Server(
            self.net.initial(stream(config.seed, "initial-weights")),
            optimizer=config.server.optimizer,
            rate=config.server.rate,
            momentum=config.server.momentum,
            final_rate=config.server.final_rate,
            rounds=parts.rounds,
        )
        self.rule = None if parts.clipping is None else make_rule(parts.clipping)
        self.budget = None
        if self.rule is not None:
            assert config.budget is not None and config.noise is not None
            self.budget = BudgetPlan(
                config.budget, sampler=self.participation.describe(), multiplier=config.noise.multiplier,
                claims=claims_of_today(config), mechanism=PrivateSum.mechanism, counted=self.rule.private,
            )  # fmt: skip
        self.gradient_multiplier = 0.0 if self.budget is None else self.budget.noise_multiplier
        if self.budget is not None and self.rule is not None and self.rule.reads_count_release:
            # Both releases of a round together cost what the budget's multiplier does (Andrew et al. 2019, Theorem 1).
            self.gradient_multiplier = rest_multiplier(self.budget.noise_multiplier, self._count_multiplier())
        self.lots = 1
        self.non_finite = 0
        self.columns: tuple[str, ...] = self.clients.columns if config.private else (*self.clients.columns, *NORMS)

    def _count_multiplier(self) -> float:
        """Of the count's release: the noise's deviation over the sensitivity of a sum of centred indicators."""
        values = self.parts.clipping
        assert values is not None
        deviation = self.participation.denominator / 20 if values.count_noise is None else values.count_noise
        return deviation / INDICATOR

    @property
    def _denominator(self) -> float:
        """What a round's sum is divided by: the expected number of contributions, which is public."""
        return self.participation.denominator * self.clients.each

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
                dimension=self.net.dimension, threshold=rule.threshold, noise_multiplier=self.gradient_multiplier
            )
        count = None
        if isinstance(rule, PrivateQuantile):
            count = PrivateSum(dimension=1, threshold=INDICATOR, noise_multiplier=self._count_multiplier())
        losses = []
        for gradients, chunk_losses, _ in self.clients.stream(self.server.theta, cohort, index):
            norms = total.add(gradients)
            losses.append(chunk_losses)
            if rule is not None and rule.reads_raw_norms:
                rule.observe_raw(norms.tolist())
            if rule is not None and count is not None:
                count.add(torch.from_numpy(centred_indicators(norms, rule.threshold)))
        released = total.release(stream(self.config.seed, "noise", index))
        mean = released / self._denominator
        own = self.clients.releases(index) if isinstance(self.clients, RecordTaskClients) else []
        for line in own:
            self.ledger.append(line)
        row: Row = {}
        if isinstance(total, PlainSum) and own:
            # Each contribution is a client's own release, so that the sum is free to be told; losses are not.
            row |= {"clients": participation.denominator, "released_norm": float(released.norm())}
        elif isinstance(total, PlainSum):
            quantiles = np.quantile(total.norms, [0.1, 0.5, 0.9]) if len(total.norms) else [np.nan] * 3
            row |= {"clients": len(cohort), "loss": float(np.mean(np.concatenate(losses))) if losses else np.nan}
            row |= dict(zip(NORMS, map(float, quantiles), strict=True))
            row["released_norm"] = float(released.norm())
        else:
            assert rule is not None and budget is not None
            written, seen = [self._release(index, total)], [mean]
            if count is not None:
                counted = count.release(stream(self.config.seed, "count-noise", index))
                written.append(self._release(index, count, name=COUNT_RELEASE, noise="count-noise"))
                seen.append(counted / self._denominator)
            for entry in written:
                self.ledger.append(entry)
            if self._observer is not None:
                self._observer(written, seen)
            budget.took(1)
            row |= {
                "clients": participation.denominator, "threshold": rule.threshold,
                "released_norm": float(released.norm()), "noise_multiplier": total.noise_multiplier,
            }  # fmt: skip
            rule.observe(released, self._denominator)
            if isinstance(rule, PrivateQuantile) and count is not None:
                rule.observe_count(float(counted[0]), self._denominator)
        self.non_finite = total.non_finite + (
            self.clients.non_finite if isinstance(self.clients, RecordTaskClients) else 0
        )
        self.server.step(mean)
        return row, len(cohort) if budget is None else int(participation.denominator)

    def _release(self, index: int, total: PrivateSum, *, name: str = "", noise: str = "noise") -> Release:
        """What the ledger says of a round: read off the mechanism that ran."""
        assert self.rule is not None
        return as_release(
            total, number=index, name=name or self.parts.release, parts=self.parts, rule=self.rule,
            sampler=self.participation.describe(), denominator=self._denominator,
            noise_stream=f"{self.config.seed}/{noise}/{index}",
        )  # fmt: skip

    def validate(self) -> dict[str, float]:
        """The clients' measure on public validation data, for the history."""
        return self.clients.validate(self.theta)

    def test(self) -> dict[str, float]:
        """The clients' measure on the test part, for the history."""
        return self.clients.test(self.theta)

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        return {"server": self.server.state(), "clipping": None if self.rule is None else self.rule.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.server.restore(state["server"])
        if self.rule is not None:
            self.rule.load_state_dict(state["clipping"])
