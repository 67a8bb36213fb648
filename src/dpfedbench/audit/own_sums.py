"""Canaries in private sums that clients take over their own examples or updates.

The mechanism, the client update and its sums are the run's own. Drawn gradients or
updates replace those of a model. Clients are alike, and no canary is held by two of
them. So each client needs only one round, and the audit may have more clients than the
run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dpfedbench.audit.canaries import (
    CanaryExperiment,
    draw_coins,
    gradients_of,
)
from dpfedbench.audit.scores import shown_over_groups
from dpfedbench.audit.units import LARGE, Coordinates
from dpfedbench.breaches import unaccounted_releases, unaccounted_units
from dpfedbench.data.partition import TaskBatch
from dpfedbench.models.shared_coordinates import SharedCoordinates
from dpfedbench.papers.gbml import noised_clients
from dpfedbench.run import Run
from dpfedbench.training.client_updates.within_task import Turn
from dpfedbench.training.clients import Clients, Setup
from dpfedbench.training.mechanisms import Mechanisms
from dpsum.accounting.analyses import find
from dpsum.audit.ideal import gaussian, secret
from dpsum.composition import Composition
from dpsum.ledger import Release
from dpsum.mechanism import Accumulator, Mechanism

Show = Callable[[Mechanism, Accumulator, np.ndarray], None]
"""Callback with a mechanism, one client's total, and the client's release."""


def _released(
    run: Run,
    net: Coordinates,
    make: Callable[[Setup], Clients],
    show: Show,
    *,
    clients: int,
    held: Any = None,
) -> list[Release]:
    """Let each of `clients` clients make its own releases once, and show each release.

    Returns:
        The ledger's lines.
    """
    lines = list[Release]()
    composition = Composition(
        claims=run.claims,
        unaccounted_releases=unaccounted_releases(run),
        unaccounted_units=unaccounted_units(run),
    )
    mechanisms = Mechanisms(composition, ledger=lines, seed=run.seed)
    model: Any = net
    setup = Setup(
        run=run,
        net=model,
        held=held,
        gradients=gradients_of(held),
        client_sums=run.client_sums,
        create_mechanism=mechanisms.create,
        shared=SharedCoordinates(model),
    )
    update = make(setup)
    for mechanism in mechanisms.created:
        if not mechanism.spec.private:
            continue
        mechanism.on_release = functools.partial(show, mechanism)
    for _ in update.contributions(
        np.zeros(net.dimension, np.float32), np.arange(clients), 0
    ):
        pass
    return lines


class TaskSource:
    """Few-shot clients whose examples are all canaries, for their own sums.

    An image is the number of an example.

    Attributes:
        read: numbers of the examples of the last gradients.
    """

    device = "cpu"

    def __init__(self, net: Coordinates, support: int, present: np.ndarray) -> None:
        self.net = net
        self._support = support
        self._present = present
        self.read = np.empty(0, np.int64)

    def gather(self, ids: np.ndarray) -> TaskBatch:
        """Return example numbers as images, and the client's own numbers as labels."""
        numbers = np.tile(np.arange(self._present.shape[1]), (len(ids), 1))
        labels = np.repeat(np.asarray(ids)[:, None], numbers.shape[1], axis=1)
        (support_x, query_x), (support_y, query_y) = (
            np.split(values, [self._support], axis=1) for values in (numbers, labels)
        )
        return TaskBatch(
            support_x=support_x, support_y=support_y, query_x=query_x, query_y=query_y
        )

    def record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: torch.Tensor
    ) -> np.ndarray:
        """Write the examples' gradients, whatever the model is.

        See `models.gradients.Gradients.record_gradients`.
        """
        self.read = x
        rows = np.zeros((len(x), self.net.ordinary + self.net.reserved), np.float32)
        rows[np.arange(len(x)), self.net.ordinary + x] = LARGE * self._present[y[0], x]
        out.numpy()[:] = self.net.spread(rows)
        return np.zeros(len(x))

    def add_record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, total: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add the examples' gradients to a sum.

        See `models.gradients.Gradients.add_record_gradients`.
        """
        rows = torch.empty((len(x), self.net.dimension))
        return self.record_gradients(theta, x, y, rows), total.add(rows)


def one_run_of_examples(
    run: Run,
    *,
    seed: int,
    canaries: int,
    inserted: bool = True,
    groups: int = 1,
) -> CanaryExperiment:
    """Run an experiment with the sums over clients' own examples.

    Each example is a canary, and the sums contain nothing else. The number of canaries
    is rounded down to whole clients. Unless `inserted`, no canary is ever present,
    whatever its coin (a null experiment). `groups` is the number of coordinate groups
    that the sums clip separately.
    """
    ways = run.task.ways
    shape = run.clients
    support = ways * shape.support_per_class
    examples = ways * (shape.support_per_class + shape.query_per_class)
    clients = max(1, canaries // examples)
    coins = draw_coins(seed, clients, examples)
    net = Coordinates(ordinary=1, reserved=examples, groups=groups)
    source = TaskSource(net, support, coins & inserted)
    scores = np.zeros(coins.shape)
    shown = np.zeros(coins.shape, bool)
    # Sums of z^-2 over known releases, and z of secret releases by sampling rate.
    squares = np.zeros(coins.shape)
    drawn = dict[float, list[float]]()

    def show(mechanism: Mechanism, total: Accumulator, released: np.ndarray) -> None:
        # The observer does not know which examples were sampled secretly.
        client = total.holder
        z = total.sum.noise_multiplier
        if mechanism.groups is None:
            shown_by = released[net.own] / total.sum.threshold
        else:
            stated = {
                "thresholds": total.sum.thresholds,
                "noise_stds": total.sum.noise_stds,
            }
            shown_by = shown_over_groups(net.own, released, stated)
        known = find(
            mechanism.spec.private_noise.mechanism, mechanism.sampler["kind"]
        ).known
        rate = mechanism.sampler["rate"]
        observed = source.read if known else np.arange(examples)
        ratio = (2 * shown_by[observed] - 1) / (2 * z**2)
        if known or rate == 1:
            scores[client, observed] += ratio
            squares[client, observed] += z**-2
        else:
            scores[client, observed] += np.logaddexp(
                np.log1p(-rate), np.log(rate) + ratio
            )
            drawn.setdefault(rate, []).extend([z] * (client == 0))
        shown[client, observed] = True

    lines = _released(
        run.replace(seed=seed),
        net,
        run.client_update.clients,
        show,
        clients=clients,
        held=source,
    )

    def ideal(generator: np.random.Generator) -> np.ndarray:
        scores = gaussian(coins[shown], squares[shown], generator)
        return scores + sum(
            secret(coins[shown], z, generator, rate=rate) for rate, z in drawn.items()
        )

    return CanaryExperiment(
        holders=clients,
        coins=coins[shown],
        scores=scores[shown],
        releases=lines,
        ideal=ideal,
    )


def one_run_of_updates(
    run: Run, *, seed: int, canaries: int, inserted: bool = True
) -> CanaryExperiment:
    """Run an experiment with clients that add noise to their own updates.

    Each client is a canary and always present, so the two worlds differ in its update:
    C along a coordinate, or -C, which is the largest possible difference. Unless
    `inserted`, every update is -C, whatever its coin (a null experiment).
    """
    coins = draw_coins(seed, canaries)
    net = Coordinates(ordinary=1, reserved=1)
    scores = np.zeros(canaries)
    squares = np.zeros(canaries)

    def show(mechanism: Mechanism, total: Accumulator, released: np.ndarray) -> None:
        client = total.holder
        z = total.sum.noise_multiplier
        # In units of the sensitivity: 1 for C, 0 for -C, and noise of deviation z.
        x = (float(released[0]) / total.sum.threshold + 1) / 2
        scores[client] = (2 * x - 1) / (2 * z**2)
        squares[client] = z**-2

    signs = np.where(coins & inserted, LARGE, -LARGE)

    def draw_update(turn: Turn, worker: Any, out: torch.Tensor) -> float:
        out.zero_()
        out[0, 0] = float(signs[turn.client])
        return 0.0

    lines = _released(
        run.replace(seed=seed),
        net,
        lambda setup: noised_clients(setup, draw_update),
        show,
        clients=canaries,
        held=TaskSource(net, 1, np.zeros((canaries, 2), bool)),
    )
    return CanaryExperiment(
        holders=canaries,
        coins=coins,
        scores=scores,
        releases=lines,
        ideal=lambda generator: gaussian(coins, squares, generator),
    )
