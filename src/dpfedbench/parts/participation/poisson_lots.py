"""Poisson lots of each client's own records (Adap DP-FL, line 7; DP-SGD, Abadi et al. 2016)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.errors import BenchError
from dpfedbench.parts.participation.participation import Participation, Plan
from dpfedbench.settings.part import setting

if TYPE_CHECKING:
    import numpy as np


class PoissonLots(Participation):
    """Every client takes part in every round, each time with a Poisson lot of its own records.

    In each step each record is in its client's lot with probability L/n, apart from all others.
    """

    kind: Literal["poisson-lots"] = "poisson-lots"
    cohort: int = setting(
        100, ge=1, le=10_000_000, doc="expected records of a client's lot, L", paper="78 (Adap DP-FL)"
    )

    def at_once(self, clients: int) -> int:
        return clients

    def check(self, run: Any) -> None:
        """A lot is compared with the records of a client when these are known."""

    def plan(self, *, clients: int, seed: int) -> Plan:
        return _Everyone(kind=self.kind, clients=clients, cohort=clients, rounds=self.rounds, seed=seed)

    def lots(
        self, *, clients: int, seed: int, steps: int, records: int, purpose: str = "lot", whose: str = "a client"
    ) -> Lots:  # fmt: skip
        """The lots of clients that hold so many records and take so many steps a round; see `Lots`."""
        return Lots(
            kind=self.kind, clients=clients, lot=self.cohort, rounds=self.rounds, steps=steps, seed=seed,
            records=records, purpose=purpose, whose=whose,
        )  # fmt: skip


class _Everyone(Plan):
    def cohort(self, index: int) -> np.ndarray:
        import numpy as np

        return np.arange(self.clients)


class Lots:
    """The lots of records.

    Args:
        kind: the sampler's, in the ledger: that of the part, so that a part of one's own has no other's analysis.
        clients: K.
        lot: L, the expected records of a lot.
        rounds: T.
        steps: lots a client takes in a round.
        seed: the run's.
        records: n, those that one client holds.
        purpose: of the random stream that draws them.
        whose: the n records are, for messages.
    """

    def __init__(
        self, *, kind: str, clients: int, lot: int, rounds: int, steps: int, seed: int, records: int,
        purpose: str = "lot", whose: str = "a client",
    ) -> None:  # fmt: skip
        if not 1 <= lot <= records:
            raise BenchError(
                f"participation.cohort is {lot}, but {whose} holds {records} records: a lot must be from 1 to that"
            )
        self.kind, self.clients, self.size, self.rounds, self.steps = kind, clients, lot, rounds, steps
        self.seed, self.records, self.purpose = seed, records, purpose

    def lot(self, index: int, step: int, client: int) -> np.ndarray:
        """Places of the records of a lot among the client's, ascending, the same whenever it is asked."""
        import numpy as np

        from dpsum.randomness import stream

        drawn = stream(self.seed, self.purpose, index, step, client).random(self.records)
        return np.flatnonzero(drawn < self.size / self.records)

    @property
    def denominator(self) -> float:
        """What a lot's sum is divided by: the expected lot, never the realised one, which is private."""
        return float(self.size)

    def describe(self) -> dict[str, Any]:
        """The sampler, for the ledger; `rate` is a record's chance of being in a given lot, `rounds` counts lots."""
        return {
            "kind": self.kind,
            "clients": self.clients,
            "records": self.records,
            "cohort": self.size,
            "rounds": self.rounds * self.steps,
            "rate": self.size / self.records,
        }
