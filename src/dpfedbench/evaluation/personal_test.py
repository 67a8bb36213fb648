"""Test of clients' own models, on examples of each client that training leaves out.

Clients that hold records use the model that their update gives them
(`Clients.personal_weights`), which may be the server's. Few-shot clients do the same if
their update gives them a model. Otherwise they adapt the server's model to their
support set, as in the meta-test.

These numbers exist only in the simulation. No server sees them, no release contains
them, and no account covers them. In a deployment each client would know its own
accuracy alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dpfedbench.data.holdings import Records, Tasks
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.few_shot import adapted_scores
from dpfedbench.models.choose import Choice
from dpfedbench.run import Run

Examples = tuple[np.ndarray, np.ndarray]
"""Model inputs [n, ...] and labels int64 [n]."""

COLUMNS = (
    "personal_accuracy",
    "personal_worst_tenth",
    "personal_spread",
    "personal_clients",
)
"""Columns of `runs.parquet` that this test fills."""


class TestedClients(Protocol):
    """Clients whose models are tested, such as `training.clients.Clients`."""

    has_personal_models: bool

    def personal_weights(
        self, theta: np.ndarray, numbers: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield the weights [d] that each of the given clients uses, in their order."""


def client_accuracies(
    run: Run,
    clients: TestedClients,
    held: Records | Tasks,
    gradients: Choice,
    theta: np.ndarray,
    numbers: Sequence[int],
    *,
    threads: int = 1,
) -> dict[int, float]:
    """Return the accuracy of each client's own model, in percent, by client.

    Args:
        run: the run.
        clients: its clients.
        held: the clients' data.
        gradients: implementation of the model's gradients and evaluation.
        theta: the server's weights, float32 [d].
        numbers: numbers of the clients to test. Clients without test examples are left
            out.
        threads: CPU threads; results do not depend on it.
    """
    if isinstance(held, Records):
        tested = [number for number in numbers if len(held.test_labels[number])]
        return _own_models(
            clients,
            gradients,
            theta,
            tested,
            lambda number: (held.test_images[number], held.test_labels[number]),
        )
    per_class = run.clients.left_out_per_class
    if clients.has_personal_models:

        def left_out(number: int) -> Examples:
            batch = held.gather_left_out(np.array([number]), per_class)
            return batch.query_x[0], batch.query_y[0]

        return _own_models(clients, gradients, theta, numbers, left_out)
    scores = adapted_scores(
        gradients,
        [theta],
        run,
        lambda ids: held.gather_left_out(ids, per_class),
        np.array(numbers, int),
        purpose="personal-test",
        threads=threads,
    )
    return dict(zip(numbers, (100 * scores.accuracies).tolist(), strict=True))


def _own_models(
    clients: TestedClients,
    gradients: Choice,
    theta: np.ndarray,
    numbers: Sequence[int],
    examples_of: Callable[[int], Examples],
) -> dict[int, float]:
    """Return the accuracies of the models that clients keep themselves."""
    evaluate = gradients.make().evaluate
    models = clients.personal_weights(theta, np.array(numbers, int))
    return {
        number: 100 * evaluate(weights, *examples_of(number)).accuracy
        for number, weights in zip(numbers, models, strict=True)
    }


def merge_accuracies(parts: Sequence[Mapping[int, float]]) -> dict[str, Any]:
    """Return the values of `COLUMNS` from the accuracies that processes measured.

    Raises:
        BenchError: no client has a test example.
    """
    accuracies = {client: value for part in parts for client, value in part.items()}
    if not accuracies:
        raise BenchError(
            "clients.held_out_share leaves no test examples, since no client has two"
            " records: set it to 0"
        )
    return summarize_clients(np.array([accuracies[n] for n in sorted(accuracies)]))


def summarize_clients(accuracies: np.ndarray) -> dict[str, Any]:
    """Return the values of `COLUMNS`.

    The worst tenth is the mean over the tenth of the clients (at least one) with the
    lowest accuracy, as in q-FFL (Li et al. 2020, Table 1). The spread is the standard
    deviation over clients.

    Args:
        accuracies: accuracy of each client in percent, float64 [clients].
    """
    tenth = math.ceil(len(accuracies) / 10)
    values = (
        float(accuracies.mean()),
        float(np.sort(accuracies)[:tenth].mean()),
        float(accuracies.std()),
        len(accuracies),
    )
    return dict(zip(COLUMNS, values, strict=True))
