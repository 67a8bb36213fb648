"""FedProx: steps by hand, against the closed form of a quadratic, and beside plain
local steps.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedbench.papers.federated_averaging import Proximal
from dpfedbench.parts.client_updates.model_difference import ModelDifference

START, OPTIMUM = np.array([1.0, -2.0], np.float32), np.array([3.0, 4.0], np.float32)
CURVATURE = 0.5


class Quadratic:
    """Gradients of F(w) = a/2 ||w - b||^2 for each of a client's records, in place of a
    network's.
    """

    device = "cpu"

    def evaluate(self, theta, images, labels):
        return SimpleNamespace(loss=0.0, accuracy=0.0)

    def added(self, theta, images, labels, room):
        return len(labels) * np.float64(CURVATURE * (theta - OPTIMUM))


def difference(update):
    """What a client of eleven records, two pieces, sends."""

    def workers(make):
        return SimpleNamespace(
            count=1,
            running=lambda: ThreadPoolExecutor(1),
            worker=lambda: contextlib.nullcontext(make(Quadratic())),
        )

    held = SimpleNamespace(images=[np.zeros((11, 1))], labels=[np.zeros(11, int)])
    setup = SimpleNamespace(
        held=held, net=SimpleNamespace(dimension=2), workers=workers
    )
    ((found, _, _),) = update.clients(setup).contributions(START, np.array([0]), 0)
    return found[0].numpy().copy()


def test_two_steps_by_hand():
    """F' at the start is 0.5 (1 - 3, -2 - 4) = (-1, -3). The first step, of 0.5, is
    along that alone: w = (1.5, -0.5).

    There F' = (-0.75, -2.25) and 2 (w - w_0) = (1, 3), so the second ends at (1.5,
    -0.5) - 0.5 (0.25, 0.75).
    """
    one, two = (
        difference(Proximal(mu=2.0, inner_steps=steps, inner_rate=0.5))
        for steps in (1, 2)
    )
    assert one.tolist() == [-0.5, -1.5]
    assert two.tolist() == [1 - 1.375, -2 + 0.875]


@pytest.mark.parametrize(("mu", "steps"), [(0.1, 7), (3.0, 7), (1.0, 200)])
def test_steps_on_a_quadratic_have_the_closed_form(mu, steps):
    """h has its optimum at (a b + mu w_0) / (a + mu), and each step leaves 1 - r (a +
    mu) of the distance to it.
    """
    rate = 0.2
    centre = (CURVATURE * OPTIMUM + mu * START) / (CURVATURE + mu)
    end = centre + (1 - rate * (CURVATURE + mu)) ** steps * (START - centre)
    found = difference(Proximal(mu=mu, inner_steps=steps, inner_rate=rate))
    assert np.allclose(START - found, end, rtol=0, atol=2e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_the_term_it_is_the_model_difference_to_the_bit(optimizer):
    values = {"inner_steps": 9, "inner_rate": 0.07, "optimizer": {"kind": optimizer}}
    plain = difference(ModelDifference.read(values))
    assert difference(Proximal.read({"mu": 0.0, **values})).tobytes() == plain.tobytes()
    assert difference(Proximal.read({"mu": 0.5, **values})).tobytes() != plain.tobytes()
