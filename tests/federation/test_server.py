"""The server's step: its schedule."""

import math

import numpy as np
import pytest
import torch

from dpfedbench.federation.server import Server

COSINE = {"optimizer": "adam", "rate": 0.01, "final_rate": 0.001, "rounds": 8}


def test_the_rate_follows_half_a_cosine_to_its_end():
    server = Server(np.zeros(3, np.float32), **COSINE)
    rates = []
    for _ in range(8):
        rates.append(server.rate)
        server.step(torch.ones(3))
    expected = [0.001 + 0.009 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(8)]
    assert rates == pytest.approx(expected, rel=1e-9)
    assert server.rate == pytest.approx(0.001)


def test_a_constant_rate_and_no_rounds_stay_as_they_are():
    for given in ({"final_rate": None, "rounds": 8}, {"final_rate": 0.001, "rounds": 0}):
        server = Server(np.zeros(3, np.float32), optimizer="sgd", rate=0.5, **given)
        server.step(torch.ones(3))
        assert server.rate == 0.5


def test_a_restart_goes_on_at_the_rate_it_stopped_at():
    whole, first = Server(np.zeros(3, np.float32), **COSINE), Server(np.zeros(3, np.float32), **COSINE)
    for server, steps in ((whole, 8), (first, 3)):
        for _ in range(steps):
            server.step(torch.ones(3))
    second = Server(np.ones(3, np.float32), **COSINE)
    second.restore(first.state())
    assert second.rate == first.rate != 0.01
    for _ in range(5):
        second.step(torch.ones(3))
    assert np.array_equal(second.theta, whole.theta) and second.rate == whole.rate
