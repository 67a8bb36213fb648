"""Scores of canaries: likelihood ratios from a sum's releases at the ledger's noise.

A score is the likelihood ratio of a canary's presence, up to a constant that all
canaries share. If noise is drawn anew in each round, scoring is round by round
(`RoundByRound`). If noise is correlated over rounds, all releases are scored together,
after encoding them by C, which follows from the ledger's weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from dpfedbench.audit.units import Coordinates
from dpsum.audit.ideal import Tally, gaussian
from dpsum.ledger import Release
from dpsum.mechanism import Outcome

_CLEARLY_LESS = 0.65
"""Ratio of measured to stated noise deviation below which the ledger is wrong.

P(chi-square of 200 degrees <= 0.65^2 x 200) is below 10^-12.
"""


def shown_over_groups(
    own: slice, released: np.ndarray, groups: Mapping[str, Any]
) -> np.ndarray:
    """Return what a canary shows in all groups of coordinates together.

    Each group has the weight (C_g / sigma_g)^2, so that the noise has the deviation of
    the line's noise multiplier. The observer also measures the noise of each group in
    coordinates without contributions. If a group has clearly less noise than the ledger
    states (for correct code: once in 10^12 groups), the measured noise determines its
    weight.

    Args:
        own: the canaries' coordinates, from the start of each group
            (`Coordinates.own`).
        released: the released sum [d].
        groups: `thresholds` and `noise_stds` of the groups, as in the ledger.

    Returns:
        float64 [reserved], in units of a canary's contribution.
    """
    by_group = np.split(released, len(groups["thresholds"]))
    shown = np.zeros(own.stop - own.start)
    weights = 0.0
    for values, threshold, std in zip(
        by_group, groups["thresholds"], groups["noise_stds"], strict=True
    ):
        empty = values[own.stop :]
        if len(empty):
            measured = float(np.sqrt(np.mean(empty**2)))
            if measured < _CLEARLY_LESS * std:
                std = max(measured, 1e-6 * std)
        weight = (threshold / std) ** 2
        shown += weight * values[own] / threshold
        weights += weight
    return shown / weights


class CanaryScores:
    """Observer of a mechanism, called with each ledger line and its released values.

    Args:
        net: the coordinates, some of them reserved for canaries.
        name: name of the sum.
        holders: 1 if clients are canaries, else the number of clients with canaries
            among their records.

    Attributes:
        all_lines: all lines of the ledger; `lines` are those of the sum.
        scores: float64 [holders, reserved], after the last round.
    """

    def __init__(self, net: Coordinates, name: str, holders: int = 1) -> None:
        self._own = net.own
        self._name = name
        self.all_lines = list[Release]()
        self.lines = list[Release]()
        self.scores: np.ndarray = np.zeros((holders, net.reserved))

    def __call__(self, line: Release, outcomes: Sequence[Outcome]) -> None:
        self.all_lines.append(line)
        if line.name == self._name:
            self.lines.append(line)
            self._take(line, outcomes)

    def _take(self, line: Release, outcomes: Sequence[Outcome]) -> None:
        raise NotImplementedError

    def ideal(self, coins: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Draw scores [holders, reserved] from the mechanism that the ledger states."""
        raise NotImplementedError


class RoundByRound(CanaryScores):
    """Scores under noise that is drawn anew for each round.

    See `dpsum.audit.ideal.Tally`, also for `members` and `once`. `added` is the number
    of clients, from the first on, whose releases are seen only as their sum; the
    canaries then belong to the first client. 0: each client's releases are seen.
    """

    def __init__(
        self,
        net: Coordinates,
        name: str,
        holders: int = 1,
        *,
        members: Sequence[np.ndarray] | None = None,
        once: bool = False,
        added: int = 0,
    ) -> None:
        super().__init__(net, name, holders)
        self._added = added
        self._tally = Tally((holders, net.reserved), members=members, once=once)

    def _take(self, line: Release, outcomes: Sequence[Outcome]) -> None:
        # In units of C: the observer knows the denominator and the thresholds.
        if line.groups is not None:
            x = np.stack(
                [
                    shown_over_groups(self._own, mean * line.denominator, line.groups)
                    for _, mean in outcomes
                ]
            )
        else:
            values = np.stack([mean[self._own] for _, mean in outcomes])
            x = np.asarray(
                values * line.denominator / np.atleast_1d(line.threshold)[:, None]
            )
        if self._added:
            x = x[: self._added].sum(axis=0, keepdims=True)
        self._tally.add(line.round, x, self._noise_of(line), line.sampler["rate"])
        self.scores = self._tally.scores

    def _noise_of(self, line: Release) -> float:
        """Return z of a line as the observer sees it."""
        return line.noise_multiplier * max(1, self._added) ** 0.5

    def ideal(self, coins: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """See `CanaryScores`."""
        rounds = [(line.round, self._noise_of(line)) for line in self.lines]
        sampler = self.lines[0].sampler
        return self._tally.ideal(
            coins,
            rounds,
            generator,
            rate=sampler["rate"],
            rounds=int(sampler["rounds"]),
        )


class _Correlated(CanaryScores):
    """Scores under correlated noise, available after the last of `rounds`.

    Attributes:
        absent: for each round, the cohort positions of clients that sent nothing.
    """

    def __init__(self, net: Coordinates, name: str, rounds: int) -> None:
        super().__init__(net, name)
        self._rounds = rounds
        self.absent: list[Sequence[int]] = []
        self._rows: list[np.ndarray] = []
        self._signs: list[np.ndarray] = []

    def _take(self, line: Release, outcomes: Sequence[Outcome]) -> None:
        ((finished, mean),) = outcomes
        turned = mean * finished.sum.signs
        self._rows.append(turned[self._own] * line.denominator / line.threshold)
        self._signs.append(np.broadcast_to(finished.sum.signs, turned.shape)[self._own])
        self.absent.append(finished.sum.absent)
        if len(self._rows) == self._rounds:
            self._score()

    def _score(self) -> None:
        raise NotImplementedError

    @property
    def _noise(self) -> float:
        """Deviation of the encoded noise, in units of C."""
        first = self.lines[0]
        return first.noise_multiplier * float(
            np.divide(first.sensitivity, first.threshold)
        )

    def _encoder(self) -> np.ndarray:
        """Return C of the rounds that were run, from the ledger's weights."""
        inverse = np.zeros((len(self.lines), len(self.lines)))
        for number, line in enumerate(self.lines):
            inverse[number, : number + 1] = line.combines or [0.0] * number + [1.0]
        return np.asarray(
            solve_triangular(inverse, np.eye(len(self.lines)), lower=True)
        )


class Decorrelated(_Correlated):
    """Scores of clients whose rounds are known.

    A canary in round r moves the encoded releases y = C x by column r of C. A canary in
    several rounds moves them by the sum of its columns, c. The noise has the covariance
    S over rounds, so the likelihood ratio of the canary's presence is that of c^T S^-1
    y. S is not taken from the ledger alone. The canaries' coordinates have nothing in
    common but the noise, so S is measured over them. The covariance that the ledger
    states has the weight of as many coordinates as there are rounds. If the ledger is
    right, both covariances agree. If draws were used twice, or were not subtracted as
    the ledger states, the measured covariance shows it. `members` are the canaries in
    each round.
    """

    def __init__(
        self, net: Coordinates, name: str, members: Sequence[np.ndarray]
    ) -> None:
        super().__init__(net, name, len(members))
        self._members = members
        self._squares = np.zeros((1, net.reserved))

    def _score(self) -> None:
        rounds = self._rounds
        first_rounds: dict[int, int] = {}
        for index, here in enumerate(self._members):
            for canary in here.tolist():
                first_rounds.setdefault(canary, index)
        canaries = np.array(list(first_rounds), int)
        encoder = self._encoder()
        columns = self._added_rounds(encoder)[:, canaries]
        encoded = (encoder @ np.stack(self._rows))[:, canaries]
        # A present canary raises the coordinate.
        encoded *= np.stack(self._signs)[list(first_rounds.values()), canaries]
        stated = rounds * self._noise**2 * np.eye(rounds)
        measured = _noise_squares(encoded, columns)
        covariance = (measured + stated) / (len(canaries) + rounds)
        towards = self._added_rounds(np.linalg.solve(covariance, encoder))[:, canaries]
        moved = np.ascontiguousarray(towards * columns).sum(axis=0)
        self.scores[0, canaries] = np.einsum("rc,rc->c", towards, encoded) - moved / 2
        variances = np.array(
            [
                _variance(line, absent)
                for line, absent in zip(self.lines, self.absent, strict=True)
            ]
        )
        self._squares[0, canaries] = (columns**2 / variances[:, None]).sum(axis=0)

    def _added_rounds(self, by_round: np.ndarray) -> np.ndarray:
        """Return for each canary the sum of the columns of its rounds.

        Args:
            by_round: one column for each round, [rounds, rounds].

        Returns:
            float64 [rounds, reserved].
        """
        added = np.zeros((len(by_round), self.scores.shape[1]))
        for index, here in enumerate(self._members):
            added[:, here] += by_round[:, [index]]
        return added

    def ideal(self, coins: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """See `CanaryScores`."""
        return gaussian(coins, self._squares, generator)


class SecretRounds(_Correlated):
    """Scores of clients that each take part in one secret round.

    The likelihood ratio by the ledger's weights and noise is the mean over rounds i of
    exp(c_i^T y / z^2 - |c_i|^2 / (2 z^2)), where y = C x are the encoded releases in
    units of C and c_i is column i of C. Planned rounds that were not run have no
    effect.
    """

    def _columns(self) -> np.ndarray:
        """Return the encoder of the planned rounds."""
        encoder = self._encoder()
        return np.pad(
            encoder, ((0, 0), (0, int(self.lines[0].sampler["rounds"]) - len(encoder)))
        )

    def _score(self) -> None:
        columns = self._columns()
        self.scores = self._ratios(
            columns, columns[:, : self._rounds] @ np.stack(self._rows) / self._noise**2
        )

    def _ratios(self, columns: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        exponents = (
            columns.T @ encoded
            - ((columns / self._noise) ** 2).sum(axis=0)[:, None] / 2
        )
        return np.asarray(logsumexp(exponents, axis=0) - np.log(columns.shape[1]))[None]

    def ideal(self, coins: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """See `CanaryScores`."""
        columns = self._columns()
        z = self._noise
        drawn = generator.integers(columns.shape[1], size=coins.shape[1])
        noise = generator.standard_normal((len(columns), coins.shape[1])) / z
        return self._ratios(columns, coins * columns[:, drawn] / z**2 + noise)


def _noise_squares(encoded: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the sum of n n^T over coordinates, where n is the encoded noise.

    Half of the canaries are present, by coins that nobody knows. Around the mean,
    columns / 2, they add c c^T / 4 to the noise. This known contribution is subtracted:
    at a small noise multiplier it would hide much of the noise.

    Args:
        encoded, columns: encoded releases and canaries' columns, [rounds, canaries].
    """
    around = encoded - columns / 2
    values, vectors = np.linalg.eigh(around @ around.T - columns @ columns.T / 4)
    return np.asarray((vectors * np.maximum(values, 0)) @ vectors.T)


def _variance(line: Release, absent: Sequence[int]) -> float:
    """Return the variance of a line's encoded noise, in units of C^2.

    If clients add noise in shares, it is that of the present clients' shares.
    """
    threshold = float(np.max(line.threshold))
    if line.secure is None:
        return (float(np.max(line.noise_std)) / threshold) ** 2
    present = line.secure["clients"] - len(absent)
    return (
        float(line.secure["share_variance"] * present)
        * (line.secure["granularity"] / threshold) ** 2
    )
