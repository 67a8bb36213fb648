"""Small federations, noise that is zero, and clients whose losses are quadratics."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.training.processes import Processes
from tests.dpfedbench.training.conftest import make_config


class Quadratic:
    """Stand-in for gradients of F_k(w) = a_k/2 ||w - b_k||^2 of each record of client
    k.

    The labels are the client's number.
    """

    device = "cpu"

    def __init__(self, curvatures, optima):
        self.curvatures = curvatures
        self.optima = optima

    def evaluate(self, theta, images, labels):
        return SimpleNamespace(loss=0.0, accuracy=0.0)

    def summed_record_gradients(self, theta, images, labels, room):
        client = labels[0]
        gradient = self.curvatures[client] * (theta - self.optima[client])
        return len(labels) * np.float64(gradient)


def quadratic_setup(curvatures, optima, records, run, processes=None):
    """Return a `Setup` of clients with `records` records each and quadratic losses."""

    def workers(make):
        return SimpleNamespace(
            count=1,
            running=lambda: ThreadPoolExecutor(1),
            worker=lambda: contextlib.nullcontext(make(Quadratic(curvatures, optima))),
        )

    count = len(curvatures)
    held = SimpleNamespace(
        images=[np.zeros((records, 1))] * count,
        labels=[np.full(records, client) for client in range(count)],
    )
    return SimpleNamespace(
        held=held,
        net=SimpleNamespace(dimension=len(optima[0])),
        shared=None,
        workers=workers,
        run=run,
        processes=processes or Processes(),
    )


def check_refused(message, *overlays, **options):
    """Check that a configuration is refused in one line, which begins with `message`."""
    with pytest.raises(BenchError) as caught:
        make_config(*overlays, **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
