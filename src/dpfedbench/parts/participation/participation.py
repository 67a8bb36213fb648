"""What every way of participation of a configuration is: settings, and the plan that they make for so many clients.

What a plan draws, and how it describes itself for the ledger, is in `dpsum.participation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part, setting
from dpsum import participation

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run


class Participation(Part):
    """Base of the ways of participation.

    `once`: a client takes part at most once, which the accounts of sums within a client take for granted. `known`: an
    observer may know who takes part when. `correlated`: an analysis of noise that is correlated over rounds is of it.
    """

    place: ClassVar[str] = "dpfedbench.parts.participation"
    once: ClassVar[bool] = False
    known: ClassVar[bool] = False
    correlated: ClassVar[bool] = False

    cohort: int = setting(
        100, ge=1, le=10_000_000, doc="clients of a round, L; the expected number where it is random", paper="1600"
    )
    rounds: int = setting(20, ge=0, le=1_000_000, doc="rounds, T", paper="250")

    planned: ClassVar[type[participation.Participation]]
    """What a plan of it is."""

    def plan(self, *, clients: int, seed: int) -> participation.Participation:
        """The plan for so many clients."""
        return self.planned(kind=self.kind, units=clients, cohort=self.cohort, rounds=self.rounds, seed=seed)

    def at_once(self, clients: int) -> int:
        """Clients of a round, of so many in all; their expected number where that is random."""
        return self.cohort

    def apart(self, clients: int) -> tuple[int, int]:
        """How many rounds a client's lie apart at least, and in how many of them it is at most."""
        return (max(self.rounds, 1), 1) if self.once else (1, max(self.rounds, 1))

    def check(self, run: Run) -> None:
        if self.cohort > run.clients.count:
            raise BenchError(
                f"participation.cohort is {self.cohort}, more than clients.count ({run.clients.count}): lower it or "
                "raise that"
            )

    def check_blocks(self, run: Run) -> None:
        """Refuse a cohort that does not divide the clients, where passes go on."""
        if run.clients.count % self.cohort:
            raise BenchError(
                f"participation.cohort ({self.cohort}) does not divide clients.count ({run.clients.count}), as "
                f"{self.kind} need: change one of them"
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
