"""Scores of canaries under noise that is correlated over rounds: all releases are read, not the canary's own alone.

The encoder C is found from the ledger's weights. A canary that is in round r moves the encoded releases y = C x by
column r of C (one that comes again by the sum of its columns c), and their noise has the covariance S over rounds, so
that the likelihood ratio of its presence is that of c^T S^-1 y. S is not taken from the ledger alone: canaries'
coordinates have nothing in common but it, so it is measured over them, the ledger's own counting as much as so many
coordinates as there are rounds. Where the ledger is right both are the same; where draws were used twice, or not taken
back as it says, the measured one shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from dpsum.audit.ideal import gaussian
from dpsum.ledger import Release
from dpsum.total import Released


class Decorrelated:
    """As `canaries.Scores`, of one sum of clients whose rounds are known.

    Args:
        net: which coordinates are reserved.
        name: of the sum.
        members: the canaries that are in each round.

    Attributes:
        absent: of each round, the places in its cohort of those who sent nothing.
    """

    def __init__(self, net: Any, *, name: str, members: Sequence[np.ndarray]) -> None:
        self._own, self._name, self._members = net.own, name, members
        self._rows: list[np.ndarray] = []
        self._signs: list[np.ndarray] = []
        self.absent: list[Sequence[int]] = []
        self.seen: list[Release] = []
        self.scores, self._squares = np.zeros((1, net.reserved)), np.zeros((1, net.reserved))

    def __call__(self, line: Release, made: Sequence[tuple[Released, np.ndarray]]) -> None:
        """Take note of a line of the ledger and of what left; after the last of the rounds the scores are there."""
        self.seen.append(line)
        if line.name != self._name:
            return
        (one, mean), = made  # fmt: skip
        turned = mean * one.total.signs
        self._rows.append(turned[self._own] * line.denominator / line.threshold)
        self._signs.append(np.broadcast_to(one.total.signs, turned.shape)[self._own])
        self.absent.append(one.total.absent)
        if len(self._rows) == len(self._members):
            self._score()

    def _score(self) -> None:
        lines = [line for line in self.seen if line.name == self._name]
        rounds = len(lines)
        z = lines[0].noise_multiplier * float(np.divide(lines[0].sensitivity, lines[0].threshold))
        encoder = _encoder(lines)
        rows = np.concatenate([np.full(len(here), index) for index, here in enumerate(self._members)]).astype(int)
        all_own = np.concatenate(self._members).astype(int)
        # The first round of each canary, and the others of those that come again.
        first = np.sort(np.unique(all_own, return_index=True)[1])
        again = np.setdiff1d(np.arange(len(all_own)), first)
        at, own = rows[first], all_own[first]
        places = np.zeros(self.scores.shape[1], dtype=int)
        places[own] = np.arange(len(own))
        places, later = places[all_own[again]], rows[again]

        def of_all_rounds(columns: np.ndarray) -> np.ndarray:
            scores = columns[:, at]
            np.add.at(scores.T, places, columns.T[later])
            return scores

        encoded = encoder @ np.stack(self._rows)
        encoded[:, own] *= np.stack(self._signs)[at, own]  # so that its presence is above nothing
        columns, several = of_all_rounds(encoder), np.unique(places)
        covariance = (_noise_squares(encoded[:, own], columns) + rounds * z**2 * np.eye(rounds)) / (len(own) + rounds)
        directions = np.linalg.solve(covariance, encoder)
        moved, towards = np.einsum("rt,rt->t", directions, encoder)[at], of_all_rounds(directions)
        moved[several] = np.einsum("rc,rc->c", towards[:, several], columns[:, several])
        self.scores[0, own] = np.einsum("rc,rc->c", towards, encoded[:, own]) - moved / 2
        variances = np.array([_variance(line, absent) for line, absent in zip(lines, self.absent, strict=True)])
        squares = (encoder**2 / variances[:, None]).sum(axis=0)[at]
        squares[several] = (columns[:, several] ** 2 / variances[:, None]).sum(axis=0)
        self._squares[0, own] = squares

    def ideal(self, coins: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Scores [1, reserved] of draws of what the lines of the ledger state."""
        return gaussian(coins, self._squares, generator)


class SecretRounds:
    """As `canaries.Scores`, of one sum with correlated noise where each client is in one secret round.

    The statistic is the likelihood ratio by the ledger's weights and noise: the mean over rounds i of
    exp(c_i^T y / z^2 - |c_i|^2 / (2 z^2)), y = C x the encoded releases in units of C, c_i column i of C.

    Args:
        net: which coordinates are reserved.
        name: of the sum.
        rounds: that are run.
    """

    def __init__(self, net: Any, *, name: str, rounds: int) -> None:
        self._own, self._name, self._rounds = net.own, name, rounds
        self._rows: list[np.ndarray] = []
        self.seen: list[Release] = []
        self.scores = np.zeros((1, net.reserved))

    def __call__(self, line: Release, made: Sequence[tuple[Released, np.ndarray]]) -> None:
        """Take note of a line of the ledger and of what left; after the last of the rounds the scores are there."""
        self.seen.append(line)
        if line.name != self._name:
            return
        ((_, mean),) = made
        self._rows.append(mean[self._own] * line.denominator / line.threshold)
        if len(self._rows) == self._rounds:
            columns, z = self._columns()
            self.scores = self._score(columns, columns[:, : self._rounds] @ np.stack(self._rows) / z**2)[None]

    def _columns(self) -> tuple[np.ndarray, float]:
        """The encoder of the planned rounds, of which those that were not run move nothing, and its noise over C."""
        lines = [line for line in self.seen if line.name == self._name]
        encoder, planned = _encoder(lines), int(lines[0].sampler["rounds"])
        z = lines[0].noise_multiplier * float(np.divide(lines[0].sensitivity, lines[0].threshold))
        return np.pad(encoder, ((0, 0), (0, planned - len(encoder)))), z

    def _score(self, columns: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        _, z = self._columns()
        exponents = columns.T @ encoded - ((columns / z) ** 2).sum(axis=0)[:, None] / 2
        return np.asarray(logsumexp(exponents, axis=0) - np.log(columns.shape[1]))

    def ideal(self, coins: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Scores [1, reserved] of draws of what the lines of the ledger state."""
        columns, z = self._columns()
        drawn = generator.integers(columns.shape[1], size=coins.shape[1])
        noise = generator.standard_normal((len(columns), coins.shape[1])) / z
        return self._score(columns, coins * columns[:, drawn] / z**2 + noise)[None]


def _noise_squares(encoded: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The sum of n n^T over coordinates, of which n is the noise; encoded and columns are [rounds, canaries].

    Half of the canaries are there, by coins that nobody knows: around the mean, columns / 2, they add c c^T / 4 to what
    the noise has. That is taken off, as it is known; at a small noise multiplier it would hide much of the noise.
    """
    around = encoded - columns / 2
    values, vectors = np.linalg.eigh(around @ around.T - columns @ columns.T / 4)
    return np.asarray((vectors * np.maximum(values, 0)) @ vectors.T)


def _encoder(lines: Sequence[Release]) -> np.ndarray:
    """C of the rounds that were run, from the ledger's weights."""
    inverse = np.zeros((len(lines), len(lines)))
    for number, line in enumerate(lines):
        inverse[number, : number + 1] = line.combines or [0.0] * number + [1.0]
    return np.asarray(solve_triangular(inverse, np.eye(len(lines)), lower=True))


def _variance(line: Release, absent: Sequence[int]) -> float:
    """Of the encoded noise of a line, in units of C^2; of shares those that came, not those counted."""
    threshold = float(np.max(line.threshold))
    if line.secure is None:
        return (float(np.max(line.noise_std)) / threshold) ** 2
    came = line.secure["clients"] - len(absent)
    return float(line.secure["share_variance"] * came) * (line.secure["granularity"] / threshold) ** 2
