"""Poisson lots of each client's own records (Adap DP-FL, line 7; DP-SGD, Abadi et al.
2016).
"""

from collections.abc import Sequence
from typing import Literal

from dpfedbench.parts.participation.participation import Participation
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run
from dpsum import participation


class PoissonLots(Participation):
    """Every client takes part in every round, each time with a Poisson lot of its own
    records.

    In each step each record is in its client's lot with probability L/n, apart from all
    others; n is the mean over clients where they hold different numbers of records.
    """

    kind: Literal["poisson-lots"] = "poisson-lots"
    cohort: int = setting(
        100,
        ge=1,
        le=10_000_000,
        doc="expected records of a client's lot, L",
        paper="78 (Adap DP-FL)",
    )

    def at_once(self, clients: int) -> int:
        return clients

    def check(self, run: Run) -> None:
        """A lot is compared with the records of a client when these are known."""

    def plan(self, *, clients: int, seed: int) -> participation.Participation:
        return participation.Everyone(
            kind=self.kind, units=clients, cohort=clients, rounds=self.rounds, seed=seed
        )

    def lots(
        self,
        *,
        clients: int,
        seed: int,
        steps: int,
        records: int | Sequence[int],
        purpose: str = "lot",
        whose: str = "a client",
    ) -> participation.PoissonLots:
        """The lots of clients that hold so many records, each or one by one, and take
        so many steps a round.
        """
        return participation.PoissonLots(
            kind=self.kind,
            clients=clients,
            lot=self.cohort,
            rounds=self.rounds,
            steps=steps,
            seed=seed,
            records=records,
            purpose=purpose,
            whose=whose,
        )
