"""Canaries among clients that add noise to their own updates: each client is one, with one of two opposite updates.

A client is always present, so the two worlds differ in its update: C along a coordinate, or C against it, which is the
largest possible difference. The mechanism is the run's own, `parts.client_updates.noised`, with drawn updates in place
of trained ones.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedbench.audit.canaries import Found
from dpfedbench.audit.units import LARGE, Coordinates
from dpfedbench.kernels.adding import TORCH
from dpfedbench.method import Method
from dpfedbench.models.gradients import Choice
from dpfedbench.parts.client_updates.client_update import Clients, Setup, Stream
from dpfedbench.parts.client_updates.noised import NoisedClients
from dpsum.audit.ideal import gaussian
from dpsum.budget import Budget
from dpsum.ledger import Ledger, Release
from dpsum.mechanism import Mechanism
from dpsum.randomness import stream
from dpsum.total import Total

_CHUNK = 256


class _Updates(Clients):
    """Clients whose update is huge, along or against one coordinate."""

    def __init__(self, signs: np.ndarray) -> None:
        self._signs = signs

    def contributions(self, theta: np.ndarray, cohort: np.ndarray, index: int) -> Stream:
        for start in range(0, len(cohort), _CHUNK):
            ids = cohort[start : start + _CHUNK]
            rows = torch.zeros((len(ids), len(theta)))
            rows[:, 0] = torch.from_numpy((LARGE * self._signs[ids]).astype(np.float32))
            yield rows, np.zeros(len(ids)), np.zeros(len(ids))


def one_update_run(run: Method, *, seed: int, canaries: int, inserted: bool = True) -> Found:
    """Let clients release their updates once, every client a canary.

    Clients are alike, and there may be more of them than the run has.

    Args:
        run: the run.
        seed: the audit's.
        canaries: m.
        inserted: false: every update points against the coordinate, whatever its coin (a null).
    """
    run = run.replace(seed=seed)
    coins = stream(seed, "audit-coins").integers(2, size=canaries).astype(bool)
    net: Any = Coordinates(ordinary=1, reserved=1)
    releases, scores, squares = list[Release](), np.zeros(canaries), np.zeros(canaries)

    def show(total: Total, released: np.ndarray) -> None:
        client, made = total.holder, total.sum
        # In units of the sensitivity: 1 along the coordinate, 0 against it, and noise of deviation z.
        x = (float(released[0]) / made.threshold + 1) / 2
        scores[client] = (2 * x - 1) / (2 * made.noise_multiplier**2)
        squares[client] = made.noise_multiplier**-2

    budget = Budget(claims=run.claims, unaccounted=run.unaccounted)
    enter = functools.partial(
        Mechanism.of, budget=budget, ledger=Ledger(Path(os.devnull)), seed=seed, arithmetic=TORCH,
        observer=lambda line, _: releases.append(line),
    )  # fmt: skip
    setup = Setup(
        run=run, net=net, held=None, gradients=Choice("audit", lambda: None, "cpu"),  # type: ignore[arg-type, return-value]
        own=run.own_sums(), enter=enter, plan=run.participation.plan(clients=run.clients.count, seed=seed),
    )  # fmt: skip
    signs = np.where(coins & inserted, 1.0, -1.0)
    clients = NoisedClients(setup, _Updates(signs))
    for entry in budget.mechanisms:
        entry.on_release = show
    for _ in clients.contributions(net.initial(stream(seed, "initial-weights")), np.arange(canaries), 0):
        pass
    return Found(
        holders=canaries, coins=coins, scores=scores, releases=releases,
        ideal=lambda generator: gaussian(coins, squares, generator),
    )  # fmt: skip
