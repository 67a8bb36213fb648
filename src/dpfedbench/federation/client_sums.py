"""Rounds in which each client takes private sums over its own records (Adap DP-FL, local DP-FedAvg; pre-training).

    for each client, for each local step:  lot -> per-record gradients -> private sum -> ledger -> threshold rule
    -> step of the client's optimiser;   then the server averages the clients' models

The server sees every client's release; no record is at two clients, so a record's privacy is that of its client's
releases alone (parallel composition). One client that holds all records is DP-SGD (Abadi et al. 2016), with which the
few-shot papers pre-train; its average of one model changes nothing.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from dpfedbench.accounting.budgets import BudgetPlan, DecayingBudget
from dpfedbench.config import RunConfig
from dpfedbench.data.clients_folder import check_made_for
from dpfedbench.data.fragments import load_fragments
from dpfedbench.data.records import load_any_records
from dpfedbench.evaluation.meta_test import pretraining_network
from dpfedbench.evaluation.record_test import evaluate_in_pieces, held_out, network
from dpfedbench.federation.composition import Composition, LocalSteps, claims_of_today
from dpfedbench.federation.optimizers import OPTIMIZERS, Optimizer
from dpfedbench.federation.participation import PoissonLots
from dpfedbench.federation.releases import as_release
from dpfedbench.federation.rounds import Observer, Row
from dpfedbench.kernels import choose
from dpfedbench.models.gradients import Found, Gradients
from dpfedbench.models.net import Weights
from dpfedbench.privacy.clipping import ClippingRule, NoisedMeanNorm, make_rule
from dpfedbench.privacy.ledger import Ledger, Release
from dpfedbench.privacy.private_sum import PlainSum, PrivateSum
from dpfedbench.randomness import stream
from dpfedbench.threads import Threads

NORM_RELEASE = "clipped-norm-sum"


class Source(Protocol):
    """What the clients hold and how the gradients of it are taken; or what an audit puts in the place of both."""

    @property
    def net(self) -> Weights: ...

    @property
    def images(self) -> Sequence[np.ndarray]:
        """Each client's records [n, ...]."""
        ...

    @property
    def labels(self) -> Sequence[np.ndarray]: ...

    def worker(self) -> Any:
        """A new object with the method `add_each` of `Gradients`, for the use of one thread."""
        ...


class OwnRecords:
    """Records of images at the clients, and gradients of the network."""

    def __init__(self, config: RunConfig, *, data_dir: Path, clients_dir: Path) -> None:
        dataset, partition = load_any_records(data_dir), load_fragments(clients_dir)
        check_made_for(dataset.name, dataset.summary, partition.summary)
        self.images = [np.asarray(dataset.images[np.sort(own)]) for own in partition.records]
        self.labels = [np.asarray(dataset.labels[np.sort(own)]) for own in partition.records]
        if config.pretrains:
            # Nothing is held out: the classes of the meta-test are others.
            self.net = pretraining_network(config, image_shape=dataset.image_shape, classes=len(dataset.class_names))
        else:
            self.held_out = held_out(config, dataset)
            self.net = network(config, dataset)

    def worker(self) -> Gradients:
        """The network's gradients."""
        return choose(self.net).make()


class _Step:
    """One client's local step: its mechanisms, what they released, and for the history what may be said of it."""

    def __init__(self) -> None:
        self.mean = torch.empty(0)  # the release over the denominator, float64 [d]
        self.sums: list[PrivateSum] = []
        self.norms: float | None = None
        self.released_norm, self.mean_norm, self.loss, self.non_finite = np.nan, np.nan, np.nan, 0


class ClientSums:
    """The rounds of a method whose unit is the record.

    Args:
        config: the run.
        parts: what the method is made of.
        data_dir, clients_dir: prepared records and a partition of them into fragments.
        ledger: where releases are written down.
        threads: CPU threads, one client each at a time; changes no bit of the result.
        device: "cpu": there is no other here, the model is small.
        source: what the clients hold, in place of their data; the folders are then not read.
        observer: shown each release of a private run.
    """

    served = "records"
    non_finite = 0

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
        assert isinstance(parts.update, LocalSteps)
        self.config, self.parts, self.update, self.ledger = config, parts, parts.update, ledger
        if source is None:
            assert data_dir is not None and clients_dir is not None
            source = OwnRecords(config, data_dir=data_dir, clients_dir=clients_dir)
        self.source, self.net, self._observer = source, source.net, observer
        self.images, self.labels = source.images, source.labels
        self.clients = len(self.images)
        self.lots_plan = PoissonLots(
            clients=self.clients,
            lot=config.participation.cohort,
            rounds=config.participation.rounds,
            steps=self.update.steps,
            seed=config.seed,
            records=len(self.images[0]),
        )
        self.lots = self.update.steps
        self._theta = self.net.initial(stream(config.seed, "initial-weights"))
        self._models = torch.empty((self.clients, self.net.dimension))
        self._optimizers = self._new_optimizers()
        self._threads: Threads[Any] = Threads(threads, source.worker)
        self.rules = None if parts.clipping is None else self._make_rules()
        self.budget = None if self.rules is None else self._make_budget(self.rules[0])
        shown = ("test_accuracy", "test_loss", "validation_loss")
        self.columns: tuple[str, ...] = (
            (*shown, "threshold_low", "threshold_high")
            if config.private
            else (*shown, *(f"norm_client{client}" for client in range(self.clients)))
        )

    def _new_optimizers(self) -> list[Optimizer]:
        return [OPTIMIZERS[self.update.optimizer](model, rate=self.update.rate) for model in self._models]

    def _make_rules(self) -> list[ClippingRule]:
        values = self.parts.clipping
        assert values is not None
        first = self._random_norm() if values.threshold is None else None
        return [make_rule(values, first=first) for _ in range(self.clients)]

    def _random_norm(self) -> float:
        """The mean gradient norm of the initial model on random images and labels: public (Section IV-A's C_0)."""
        rng = stream(self.config.seed, "first-threshold")
        count = self.lots_plan.lot_size
        images = rng.integers(0, 256, size=(count, *self.images[0].shape[1:]), dtype=np.uint8)
        labels = rng.integers(0, self.config.task.ways, size=count)
        total = PlainSum(dimension=self.net.dimension)
        return float(self.source.worker().add_each(self._theta, images, labels, total)[1].mean())

    def _make_budget(self, rule: ClippingRule) -> BudgetPlan:
        noise, budget, extra = self.config.noise, self.config.budget, rule.reads_norm_release
        assert noise is not None and budget is not None
        given: dict[str, Any] = {
            "sampler": self.lots_plan.describe(), "claims": claims_of_today(self.config),
            "mechanism": PrivateSum.mechanism, "counted": rule.private,
        }  # fmt: skip
        if noise.decay < 1 or extra:
            assert noise.multiplier is not None
            return DecayingBudget(
                budget, multiplier=noise.multiplier, decay=noise.decay, falls=noise.falls, extra=int(extra), **given
            )
        return BudgetPlan(budget, multiplier=noise.multiplier, every_round=False, **given)

    @property
    def theta(self) -> np.ndarray:
        """The averaged model's weights [d], as of now."""
        return self._theta

    # A round

    def round(self, index: int) -> tuple[Row, int]:
        """One round: its row of the history, and how many records it is expected to serve."""
        with self._threads.running() as pool:
            if not self.update.keep_state:
                self._optimizers = self._new_optimizers()
            self._models.copy_(torch.from_numpy(self._theta).expand(self.clients, -1))
            self.non_finite = 0
            row: Row = {}
            for step in range(self.update.steps):
                row = self._local_step(pool, index, step)
            # Every client holds as many records, so their weights p_k are equal.
            self._theta = self._models.mean(dim=0).numpy()
            return row, self.clients * self.update.steps * self.lots_plan.lot_size

    def _local_step(self, pool: concurrent.futures.Executor, index: int, step: int) -> Row:
        found = list(pool.map(lambda client: self._client(index, step, client), range(self.clients)))
        row: Row = {"clients": self.clients}
        self.non_finite += sum(each.non_finite for each in found)
        if self.budget is None:
            row["loss"] = float(np.nanmean([each.loss for each in found]))
            row |= {f"norm_client{client}": each.mean_norm for client, each in enumerate(found)}
        else:
            written = self._write_down(index * self.update.steps + step, found)
            if self._observer is not None:
                means = torch.stack([each.mean for each in found])
                norms = torch.tensor([each.norms for each in found if each.norms is not None], dtype=torch.float64)
                self._observer(written, [means, norms / self.lots_plan.denominator][: len(written)])
            self.budget.took(1)
            thresholds = [each.sums[0].threshold for each in found]
            row |= {
                "threshold": float(np.mean(thresholds)),
                "threshold_low": min(thresholds),
                "threshold_high": max(thresholds),
                "noise_multiplier": self.budget.noise_multiplier,
            }
        row["released_norm"] = float(np.mean([each.released_norm for each in found]))
        return row

    def _client(self, index: int, step: int, client: int) -> _Step:
        """One client's lot, gradients, releases, next threshold and step of its model."""
        lot = self.lots_plan.lot(index, step, client)
        images, labels, model = self.images[client][lot], self.labels[client][lot], self._models[client]
        rule = None if self.rules is None else self.rules[client]
        found = _Step()
        if rule is None or self.budget is None:
            total: PlainSum | PrivateSum = PlainSum(dimension=self.net.dimension)
        else:
            z = self.budget.noise_multiplier
            total = PrivateSum(dimension=self.net.dimension, threshold=rule.threshold, noise_multiplier=z)
            found.sums.append(total)
        with self._threads.worker() as worker:
            (losses, _, _), norms = worker.add_each(model.numpy(), images, labels, total)
        if isinstance(total, PlainSum) and len(lot):
            found.loss, found.mean_norm = float(np.mean(losses)), float(np.mean(total.norms))
        found.non_finite = total.non_finite
        released = total.release(stream(self.config.seed, "noise", index, step, client))
        found.released_norm = float(released.norm())
        found.mean = released / self.lots_plan.denominator
        if rule is not None:
            if rule.reads_raw_norms:
                rule.observe_raw(norms.tolist())
            if isinstance(rule, NoisedMeanNorm):
                count = PrivateSum(dimension=1, threshold=rule.threshold, noise_multiplier=z)
                count.add(torch.from_numpy(norms.astype(np.float32)[:, None]))
                found.sums.append(count)
                found.norms = float(count.release(stream(self.config.seed, "norm-noise", index, step, client))[0])
                rule.observe_norms(found.norms, self.lots_plan.denominator)
            rule.observe(released, self.lots_plan.denominator)
        self._optimizers[client].step(found.mean.float())
        return found

    def _write_down(self, number: int, found: list[_Step]) -> list[Release]:
        """One line for each kind of release: what all clients' mechanisms did, read off them."""
        rule = self.rules[0] if self.rules else None
        assert rule is not None
        written = []
        for place, (name, noise) in enumerate([(self.parts.release, "noise"), (NORM_RELEASE, "norm-noise")]):
            if place == len(found[0].sums):
                break
            written.append(
                as_release(
                    [each.sums[place] for each in found],
                    number=number,
                    name=name,
                    parts=self.parts,
                    rule=rule,
                    sampler=self.lots_plan.describe(),
                    denominator=self.lots_plan.denominator,
                    noise_stream=f"{self.config.seed}/{noise}/{number // self.lots}/{number % self.lots}/client",
                    counted_by_paper=place == 0 or rule.counted_by_paper,
                )
            )
            self.ledger.append(written[-1])
        return written

    # Public data

    def validate(self) -> dict[str, float]:
        """The loss on the public validation split, which may drive the noise."""
        assert isinstance(self.source, OwnRecords)
        loss, _ = self._measure(*self.source.held_out.validation)
        return {"validation_loss": loss}

    def test(self) -> dict[str, float]:
        """Loss and accuracy in percent on the test part, less the validation split."""
        assert isinstance(self.source, OwnRecords)
        loss, accuracy = self._measure(*self.source.held_out.test)
        return {"test_loss": loss, "test_accuracy": accuracy}

    def _measure(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Mean loss, and accuracy in percent."""
        theta = self._theta

        def piece(images: np.ndarray, labels: np.ndarray) -> Found:
            with self._threads.worker() as worker:
                return worker.evaluate(theta, images, labels)

        with self._threads.running() as pool:
            losses, correct, _ = evaluate_in_pieces(piece, images, labels, over=pool.map)
        return float(losses.mean()), 100 * float(correct.mean())

    # Going on after a restart

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        return {
            "theta": torch.from_numpy(self._theta.copy()),
            "optimizers": [optimizer.state() for optimizer in self._optimizers],
            "clipping": None if self.rules is None else [rule.state_dict() for rule in self.rules],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._theta = state["theta"].numpy().copy()
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.restore(saved)
        if self.rules is not None:
            for rule, saved in zip(self.rules, state["clipping"], strict=True):
                rule.load_state_dict(saved)
