"""Participation: which clients take part in which round, and by what number the sum may be divided.

A participation plan describes itself for the ledger, so that the sampler that ran and the one that is accounted for
are the same object's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfedbench.errors import BenchError
from dpfedbench.randomness import stream


class Participation:
    """Base of the plans.

    Args:
        clients: N.
        cohort: L, or its expectation.
        rounds: T.
        seed: the run's.
    """

    kind: str

    def __init__(self, *, clients: int, cohort: int, rounds: int, seed: int) -> None:
        if not 1 <= cohort <= clients:
            raise BenchError(
                f"participation.cohort is {cohort} of {clients} clients: it must be from 1 to clients.count"
            )
        if rounds < 0:
            raise BenchError(f"participation.rounds is {rounds}: it must be at least 0")
        self.clients, self.size, self.rounds, self.seed = clients, cohort, rounds, seed

    def cohort(self, index: int) -> np.ndarray:
        """Ids of the clients of round `index` (from 0), the same whenever it is asked."""
        raise NotImplementedError

    @property
    def denominator(self) -> float:
        """What a round's sum is divided by: the expected cohort, never the realised one, which is private."""
        return float(self.size)

    def describe(self) -> dict[str, Any]:
        """The sampler, for the ledger; `rate` is a client's chance of being in a given round."""
        return {
            "kind": self.kind,
            "clients": self.clients,
            "cohort": self.size,
            "rounds": self.rounds,
            "rate": self.size / self.clients,
        }


class OnePass(Participation):
    """Disjoint blocks of a shuffled list: no client takes part twice (DP-FedMeta's one-pass training).

    An observer may know the blocks: shuffling is not counted upon. Then each client is in one Gaussian release.
    """

    kind = "one-pass"

    def __init__(self, *, clients: int, cohort: int, rounds: int, seed: int) -> None:
        super().__init__(clients=clients, cohort=cohort, rounds=rounds, seed=seed)
        if clients % cohort or rounds > clients // cohort:
            raise BenchError(
                f"one-pass participation needs a cohort that divides the clients and at most clients/cohort rounds, "
                f"not {rounds} rounds of {cohort} of {clients}"
            )
        self._order = stream(seed, "participation").permutation(clients)

    def cohort(self, index: int) -> np.ndarray:
        return self._order[index * self.size : (index + 1) * self.size]


class BallsAndBins(Participation):
    """Each client draws one secret round out of T (Chua et al., Balls-and-Bins Sampling for DP-SGD).

    Still one pass; the cohort's size varies and is private, and the denominator is N/T.
    """

    kind = "balls-and-bins"

    def __init__(self, *, clients: int, cohort: int, rounds: int, seed: int) -> None:
        super().__init__(clients=clients, cohort=cohort, rounds=rounds, seed=seed)
        if cohort * rounds != clients:
            raise BenchError(
                f"balls-and-bins participation needs cohort x rounds = clients, not {cohort} x {rounds} and {clients}"
            )
        self._drawn = stream(seed, "participation").integers(rounds, size=clients)

    def cohort(self, index: int) -> np.ndarray:
        return np.flatnonzero(self._drawn == index)

    @property
    def denominator(self) -> float:
        return self.clients / self.rounds


class Poisson(Participation):
    """In each round each client takes part with probability L/N, apart from all others."""

    kind = "poisson"

    def cohort(self, index: int) -> np.ndarray:
        drawn = stream(self.seed, "participation", index).random(self.clients)
        return np.flatnonzero(drawn < self.size / self.clients)


class PoissonLots:
    """Every client takes part in every round, each time with a Poisson lot of its own records (Adap DP-FL).

    In each step each record is in its client's lot with probability L/n, apart from all others.

    Args:
        clients: K.
        lot: L, the expected records of a lot.
        rounds: T.
        steps: lots a client takes in a round.
        seed: the run's.
        records: n, those that one client holds.
    """

    kind = "poisson-lots"

    def __init__(self, *, clients: int, lot: int, rounds: int, steps: int, seed: int, records: int) -> None:
        if not 1 <= lot <= records:
            raise BenchError(
                f"participation.cohort is {lot}, but a client holds {records} records: a lot must be from 1 to that"
            )
        self.clients, self.lot_size, self.rounds, self.steps = clients, lot, rounds, steps
        self.seed, self.records = seed, records

    def lot(self, index: int, step: int, client: int) -> np.ndarray:
        """Places of the records of a lot among the client's, ascending, the same whenever it is asked."""
        drawn = stream(self.seed, "lot", index, step, client).random(self.records)
        return np.flatnonzero(drawn < self.lot_size / self.records)

    @property
    def denominator(self) -> float:
        """What a lot's sum is divided by: the expected lot, never the realised one, which is private."""
        return float(self.lot_size)

    def describe(self) -> dict[str, Any]:
        """The sampler, for the ledger; `rate` is a record's chance of being in a given lot, `rounds` counts lots."""
        return {
            "kind": self.kind,
            "clients": self.clients,
            "records": self.records,
            "cohort": self.lot_size,
            "rounds": self.rounds * self.steps,
            "rate": self.lot_size / self.records,
        }


_PLANS: dict[str, type[Participation]] = {plan.kind: plan for plan in (OnePass, BallsAndBins, Poisson)}


def make_participation(kind: str, *, clients: int, cohort: int, rounds: int, seed: int) -> Participation:
    """The plan of a kind: "one-pass", "balls-and-bins" or "poisson".

    Raises:
        BenchError: an unknown kind, or numbers that do not go together.
    """
    if kind not in _PLANS:
        raise BenchError(f"participation.kind is {kind!r}: choose one of {', '.join(_PLANS)}")
    return _PLANS[kind](clients=clients, cohort=cohort, rounds=rounds, seed=seed)
