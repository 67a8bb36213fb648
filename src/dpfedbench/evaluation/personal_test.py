"""The test of clients' own models, on examples of their own that training left out.

These numbers are the simulation's. No server sees them, no release has them, and no
account covers them: in a deployment each client would know its own accuracy alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedbench.models.gradients import Choice

if TYPE_CHECKING:
    from dpfedbench.data.holdings import Records
    from dpfedbench.parts.client_updates.client_update import Clients

COLUMNS = (
    "personal_accuracy",
    "personal_worst_tenth",
    "personal_spread",
    "personal_clients",
)
"""Columns of `runs.parquet`."""


def client_accuracies(
    clients: Clients, held: Records, gradients: Choice, theta: np.ndarray, numbers: Any
) -> dict[int, float]:
    """Return the accuracy of each client's own model, in percent, by client.

    Args:
        clients: of the run.
        held: what they hold; `test_images` and `test_labels` are tested.
        gradients: how the model is evaluated.
        theta: the server's weights, float32 [d].
        numbers: of the clients to test; those without test examples are left out.
    """
    tested = [number for number in numbers if len(held.test_labels[number])]
    evaluate = gradients.make().evaluate
    accuracies = {}
    models = clients.personal_weights(theta, np.array(tested, int))
    for number, weights in zip(tested, models, strict=True):
        examples = held.test_images[number], held.test_labels[number]
        accuracies[number] = 100 * evaluate(weights, *examples).accuracy
    return accuracies


def summarize_clients(accuracies: np.ndarray) -> dict[str, Any]:
    """Return the values of `COLUMNS`.

    The worst tenth is the mean over the tenth of the clients (at least one) with the
    lowest accuracy, as in q-FFL (Li et al. 2020, Table 1). The spread is the standard
    deviation over clients.

    Args:
        accuracies: of each client, in percent, float64 [clients].
    """
    tenth = math.ceil(len(accuracies) / 10)
    values = (
        float(accuracies.mean()),
        float(np.sort(accuracies)[:tenth].mean()),
        float(accuracies.std()),
        len(accuracies),
    )
    return dict(zip(COLUMNS, values, strict=True))
