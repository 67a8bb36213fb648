"""Base class of participations: the settings, and the plan that they make for so many
clients.

What a plan draws, and how it describes itself for the ledger, is in
`dpsum.participation`.
"""

from typing import ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.settings.part import Part, setting
from dpfedbench.settings.run import Run
from dpsum import participation


class Participation(Part):
    """Base of the ways of participation.

    `once`: a client takes part at most once, which the accounts of sums within a client
    take for granted. `known`: an observer may know who takes part when. `correlated`:
    noise that is correlated over rounds has an analysis for it. `independent`: each
    client draws each of its rounds apart from all others and all other rounds.
    `blocks`: cohorts are
    blocks of all clients, so that their size has to divide the number of clients.
    """

    package: ClassVar[str] = "dpfedbench.parts.participation"
    once: ClassVar[bool] = False
    known: ClassVar[bool] = False
    independent: ClassVar[bool] = False
    correlated: ClassVar[bool] = False
    blocks: ClassVar[bool] = False

    cohort: int = setting(
        100,
        ge=1,
        le=10_000_000,
        doc="clients of a round, L; the expected number where it is random",
        paper="1600",
    )
    rounds: int = setting(20, ge=0, le=1_000_000, doc="rounds, T", paper="250")

    @property
    def allows_client_state(self) -> bool:
        """Whether its account holds where a client's contribution also follows from the
        rounds that it was in before (docs/privacy.md, "Clients that remember").
        """
        return self.once or self.known or self.independent

    planned: ClassVar[type[participation.Participation]]
    """The class of its plan."""

    def plan(self, *, clients: int, seed: int) -> participation.Participation:
        """The plan for so many clients."""
        return self.planned(
            kind=self.kind,
            units=clients,
            cohort=self.cohort,
            rounds=self.rounds,
            seed=seed,
        )

    def at_once(self, clients: int) -> int:
        """Clients of a round, of so many in all; their expected number where that is
        random.
        """
        return self.cohort

    def apart(self, clients: int) -> tuple[int, int]:
        """Return the least number of rounds between two rounds of one client, and the
        most rounds that it is in.
        """
        return (max(self.rounds, 1), 1) if self.once else (1, max(self.rounds, 1))

    def check(self, run: Run) -> None:
        count = run.clients.count
        cohort = self.cohort
        if cohort > count:
            raise BenchError(
                f"participation.cohort is {cohort}, more than clients.count ({count}):"
                " lower it or raise that"
            )
        if self.blocks and count % cohort:
            raise BenchError(
                f"participation.cohort ({cohort}) does not divide clients.count"
                f" ({count}), as {self.kind} needs: try"
                f" {max(size for size in range(1, cohort + 1) if count % size == 0)}"
            )
        if self.blocks and self.once and cohort * self.rounds > count:
            raise BenchError(
                f"participation.rounds is {self.rounds}, but {count} clients in cohorts"
                f" of {cohort} last for {count // cohort} rounds of {self.kind}: lower"
                " rounds or raise clients.count"
            )
