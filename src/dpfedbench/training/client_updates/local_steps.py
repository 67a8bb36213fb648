"""Local steps along sums over lots of a client's own records (Adap DP-FL; local
DP-FedAvg; DP-SGD where one client holds all records).

    for each local step:  lot -> per-record gradients -> (private) sum -> step of the client's optimiser

The server sees every client's releases. No record is at two clients, so that a record's
privacy follows from the releases of its own client alone (parallel composition).
"""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.config.part import setting
from dpfedbench.lazy import np, torch
from dpfedbench.parts.optimizers.optimizer import Adam, Optimizer
from dpfedbench.parts.schedules.schedule import ConstantRate, Schedule
from dpfedbench.training.client_updates.client_update import ClientUpdate
from dpfedbench.training.clients import Clients, Setup, each_holder
from dpfedbench.training.distributed import Stream
from dpfedbench.training.history import Row
from dpsum import participation
from dpsum.private_sum import PlainSum
from dpsum.randomness import stream
from dpsum.sampling import Sampler

if TYPE_CHECKING:
    from dpfedbench.run import Run


class LocalSteps(ClientUpdate):
    """Local steps of the client's optimiser in each round, each along the sum of a new
    lot.
    """

    kind: Literal["local-steps"] = "local-steps"
    client_data = "records"
    sends = "gradient-sum"
    by_record = True
    any_size = True
    keeps_state = False  # optimisers follow releases
    columns_are_released = True

    inner_steps: int = setting(
        1, ge=1, le=100_000, doc="local steps a round", paper="1"
    )
    inner_rate: float = setting(
        0.01,
        gt=0,
        le=1e6,
        doc="learning rate of the local steps",
        paper="0.002 (MNIST), 0.001 (Fashion-MNIST)",
    )
    optimizer: Optimizer = setting(
        Adam(), doc="optimiser of the local steps", paper="adam"
    )
    schedule: Schedule = setting(
        ConstantRate(), doc="schedule of the rate over the planned rounds"
    )
    keep_state: bool = setting(
        True, doc="a client's optimiser keeps its state between rounds"
    )

    def columns(self, run: Run) -> tuple[str, ...]:
        if run.private:
            return ("threshold_low", "threshold_high")
        return tuple(f"norm_client{client}" for client in range(run.clients.count))

    def lots(
        self, run: Run, *, clients: int, records: int | Sequence[int]
    ) -> participation.RecordLots:
        """Return the lots of the clients.

        Args:
            run: the run.
            clients: number of clients.
            records: number of records of a client; a sequence with one number for each
                client where the numbers differ.
        """
        return run.participation.lots(
            clients=clients,
            seed=run.stream_seed,
            steps=self.inner_steps,
            records=records,
        )

    def samplers(self, run: Run, records: Any) -> dict[str, Sampler]:
        lots = self.lots(run, clients=run.clients.count, records=records)
        return {self.sends: lots.describe()}

    def clients(self, setup: Setup) -> Clients:
        return SiloClients(self, setup)


class _Room:
    """Reusable memory of one thread for the records of a lot.

    Allocating new memory takes longer than filling it.
    """

    def __init__(self) -> None:
        self._room = np.empty(0)

    def take(self, records: np.ndarray, lot: np.ndarray) -> np.ndarray:
        """Return the records at a lot's positions; valid until the next call."""
        if len(self._room) < len(lot) or self._room.shape[1:] != records.shape[1:]:
            self._room = np.empty(
                (len(lot) + len(lot) // 4, *records.shape[1:]), records.dtype
            )
        return records.take(lot, axis=0, out=self._room[: len(lot)], mode="clip")


class SiloClients(Clients):
    """Clients that sum over lots of their own records."""

    unit = "records"
    divides = True

    def __init__(self, update: LocalSteps, setup: Setup) -> None:
        self._update = update
        self._setup = setup
        self._held = setup.held
        run = setup.run
        self._count = len(setup.held.images)
        self._dimension = setup.net.dimension
        self._process_clients = setup.processes.share(self._count)
        self._lots = update.lots(
            run, clients=self._count, records=[*map(len, setup.held.images)]
        )
        self._workers = setup.workers(lambda gradients: (gradients, _Room()))
        self._models = torch.empty((self._count, self._dimension))
        self._row: Row = {}
        self._states = self._begin()
        (spec,) = setup.client_sums
        if spec.private and spec.private_rule.threshold is None:
            spec = spec.with_first_threshold(self._first_threshold())
        self.mechanism = setup.create_mechanism(
            spec,
            participation=self._lots,
            dimension=self._dimension,
            holders=self._count,
        )

    def _begin(self) -> list[Any]:
        return [self._update.optimizer.begin(model) for model in self._models]

    def _first_threshold(self) -> float:
        """Return the initial model's mean gradient norm on random images and labels.

        It is public (C_0 of Section IV-A).
        """
        if self._setup.first_threshold is not None:
            return self._setup.first_threshold

        from dpfedbench.training.mechanisms import make_accumulator

        run = self._setup.run
        rng = stream(run.seed, "first-threshold")
        images = rng.integers(
            0,
            256,
            size=(self._lots.size, *self._held.images[0].shape[1:]),
            dtype=np.uint8,
        )
        labels = rng.integers(0, run.task.ways, size=self._lots.size)
        theta = self._setup.weights
        assert theta is not None
        with self._workers.running(), self._workers.worker() as (gradients, _):
            total = make_accumulator(PlainSum(dimension=self._dimension))
            _, norms = gradients.add_record_gradients(theta, images, labels, total)
        return float(norms.mean())

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Yield the clients' models.

        The row of the history has the losses of a run without privacy.
        """
        with self._workers.running() as pool:
            if not self._update.keep_state:
                self._states = self._begin()
            self._models.copy_(torch.from_numpy(theta).expand(self._count, -1))
            for step in range(self._update.inner_steps):
                self._row = self._step(pool, index, step)
        for client, model in self._gather(self._models.numpy()):
            self._models[client] = torch.from_numpy(model)
        models = self._models
        if not self._lots.alike:
            # The mean over clients is then the mean over records (McMahan et al. 2017);
            # the numbers of records are public.
            shares = [
                self._lots.expected_size(client) / self._lots.denominator
                for client in range(self._count)
            ]
            models = models * torch.tensor(shares)[:, None]
        yield models, np.zeros(0)

    def _gather(self, values: Any) -> list[tuple[int, Any]]:
        """Return (client, value) of all clients in the first process."""
        here = [(client, values[client]) for client in self._process_clients]
        return [pair for part in self._setup.processes.gather(here) for pair in part]

    def _step(self, pool: concurrent.futures.Executor, index: int, step: int) -> Row:
        mechanism = self.mechanism
        steps = each_holder(
            mechanism,
            self._setup.processes,
            pool,
            lambda client: self._client(index, step, client),
        )
        losses, norms, released_norms = zip(*steps, strict=True)
        row: Row = {"clients": self._count}
        if mechanism.spec.private:
            thresholds = [finished.sum.threshold for finished in mechanism.finished]
            mechanism.write(index, step)
            row |= {
                "threshold": float(np.mean(thresholds)),
                "threshold_low": min(thresholds),
                "threshold_high": max(thresholds),
                "noise_multiplier": mechanism.noise_multiplier,
            }
        else:
            row["loss"] = float(np.nanmean(losses))
            row |= {f"norm_client{client}": norm for client, norm in enumerate(norms)}
        return row | {"released_norm": float(np.mean(released_norms))}

    def _client(self, index: int, step: int, client: int) -> tuple[float, float, float]:
        """Make one local step of one client: lot, gradients, release and step.

        Returns:
            The mean loss and the mean norm of the gradients, nan in a private run, and
            the norm of the release.
        """
        lot = self._lots.lot(index, step, client)
        model = self._models[client]
        labels = self._held.labels[client][lot]
        total = self.mechanism.begin_round(index, step=step, holder=client)
        with self._workers.worker() as (gradients, room):
            images = room.take(self._held.images[client], lot)
            losses, _ = gradients.add_record_gradients(
                model.numpy(), images, labels, total
            )
        loss = math.nan
        norm = math.nan
        if not self.mechanism.spec.private and len(lot):
            loss = float(np.mean(losses))
            norm = float(np.mean(total.norms))
        released = torch.from_numpy(self.mechanism.finish(total))
        expected = self._lots.expected_size(client)
        mean = (released / expected).float()
        update = self._update
        rounds = self._setup.run.participation.rounds
        rate = update.schedule.rate(update.inner_rate, index, rounds)
        update.optimizer.set_noise_deviation(
            self._states[client], total.deviation / expected
        )
        update.optimizer.step(model, mean, self._states[client], rate)
        return loss, norm, float(released.norm())

    def row(self) -> Row:
        return self._row

    def work(self, cohort: np.ndarray) -> int:
        return self._count * self._update.inner_steps * self._lots.size

    def state(self) -> Any:
        for client, state in self._gather(self._states):
            self._states[client] = state
        return self._states

    def restore(self, state: Any) -> None:
        self._states = state
