"""What every way of participation is: settings, and the plan that they make for a number of clients.

A plan describes itself for the ledger, so that the sampler that ran and the one that is accounted for are the same
object's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part, setting

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.settings.run import Run


class Plan:
    """Which of so many clients take part in which round, and by what number the sum may be divided.

    Args:
        kind: the sampler's, in the ledger.
        clients: N.
        cohort: L, or its expectation.
        rounds: T.
        seed: the run's.
    """

    def __init__(self, *, kind: str, clients: int, cohort: int, rounds: int, seed: int) -> None:
        if not 1 <= cohort <= clients:
            raise BenchError(
                f"participation.cohort is {cohort} of {clients} clients: it must be from 1 to clients.count"
            )
        if rounds < 0:
            raise BenchError(f"participation.rounds is {rounds}: it must be at least 0")
        self.kind, self.clients, self.size, self.rounds, self.seed = kind, clients, cohort, rounds, seed

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


class Participation(Part):
    """Base of the ways of participation.

    `once`: a client takes part at most once, which the accounts of sums within a client take for granted. `known`: an
    observer may know who takes part when.
    """

    place: ClassVar[str] = "dpfedbench.parts.participation"
    once: ClassVar[bool] = False
    known: ClassVar[bool] = False

    cohort: int = setting(
        100, ge=1, le=10_000_000, doc="clients of a round, L; the expected number where it is random", paper="1600"
    )
    rounds: int = setting(20, ge=0, le=1_000_000, doc="rounds, T", paper="250")

    planned: ClassVar[type[Plan]]
    """What a plan of it is."""

    def plan(self, *, clients: int, seed: int) -> Plan:
        """The plan for so many clients."""
        return self.planned(kind=self.kind, clients=clients, cohort=self.cohort, rounds=self.rounds, seed=seed)

    def at_once(self, clients: int) -> int:
        """Clients of a round, of so many in all; their expected number where that is random."""
        return self.cohort

    def check(self, run: Any) -> None:
        if self.cohort > run.clients.count:
            raise BenchError(
                f"participation.cohort is {self.cohort}, more than clients.count ({run.clients.count}): lower it or "
                "raise that"
            )

    def check_divides(self, run: Run) -> None:
        """Refuse a cohort that does not divide the clients, and more rounds than they last for."""
        count = run.clients.count
        if count % self.cohort:
            raise BenchError(
                f"participation.cohort ({self.cohort}) does not divide clients.count ({count}), as {self.kind} needs: "
                f"try {max(size for size in range(1, self.cohort + 1) if count % size == 0)}"
            )
        if self.cohort * self.rounds > count:
            raise BenchError(
                f"participation.rounds is {self.rounds}, but {count} clients in cohorts of {self.cohort} last for "
                f"{count // self.cohort} rounds of {self.kind}: lower rounds or raise clients.count"
            )
