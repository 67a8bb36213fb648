"""Base classes of methods, by who takes the private sum.

| base | who takes the private sum | over what |
|---|---|---|
| `ClientLevelMethod` | the server, once a round | the messages of a cohort's clients |
| `LocalRecordMethod` | each client, every local step | a lot of its own records |
| `PartyMethod` | each party, every step of the shared model | a lot of its records |

A method declares the parts that it accepts by the types of its fields. It declares its
sums, with the taker and the protection of each, in one list: `sums`.
"""

from typing import ClassVar

from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.parts.server.server_step import Average, Step
from dpfedbench.parts.transforms.transform import AsTheyAre, Transform
from dpfedbench.training.client_updates.local_steps import LocalSteps
from dpsum.clipping import CohortRule, Constant, LotRule, PercentileOfReleases
from dpsum.noise import Decaying, Gaussian
from dpsum.participation import Cohorts, OnePass, PoissonLots
from dpsum.sums import SumSpec


class ClientLevelMethod(Method):
    """Base of the methods whose server takes one private sum in each round, over the
    messages of the cohort's clients.

    A method adds `client_update`: the computation and message of a client.
    """

    family = "client-level"

    participation: Cohorts = OnePass()
    transform: Transform = AsTheyAre()
    clipping: CohortRule = PercentileOfReleases()
    noise: Gaussian = Gaussian()
    budget: BudgetSettings = BudgetSettings()
    server: Step = Step()

    def sums(self) -> list[SumSpec]:
        """Return the one sum of a round."""
        return [
            SumSpec(
                name=self.client_update.sends,
                unit="client",
                observer="everyone",
                clipping=self.clipping,
                noise=self.noise,
                budget=self.budget,
                transform=self.transform,
            )
        ]


class LocalRecordMethod(Method):
    """Base of the methods whose clients take a private sum in every local step, over a
    lot of their own records.

    `observer` sees the sums. The server averages the clients' models.
    """

    family = "local-record"

    observer: ClassVar[str] = "server"

    participation: PoissonLots = PoissonLots()
    client_update: LocalSteps = LocalSteps()
    transform: Transform = AsTheyAre()
    clipping: LotRule = Constant()
    noise: Gaussian | Decaying = Gaussian()
    budget: BudgetSettings = BudgetSettings()
    server: Average = Average()

    def sums(self) -> list[SumSpec]:
        """Return each client's sum over a lot, then the mean of the models."""
        gradient_sum = SumSpec(
            name=self.client_update.sends,
            unit="record",
            taken_by="client",
            observer=self.observer,
            clipping=self.clipping,
            noise=self.noise,
            budget=self.budget,
            transform=self.transform,
        )
        model_mean = SumSpec(name="model-mean", unit="record", observer="everyone")
        return [gradient_sum, model_mean]


class PartyMethod(Method):
    """Base of the methods whose parties take sums over lots of their records.

    All parties step along the total of these sums, so that they share one model.
    """

    family = "party"

    defaults = {
        "clients": {"partition": "fragments"},
        "participation": {"kind": "poisson-lots"},
        "server": {"kind": "average"},
    }

    participation: PoissonLots = PoissonLots()
    server: Average = Average()

    def check(self) -> None:
        super().check()
        for name, step in self.client_update.steps.items():
            if self.private and step.cut is not None:
                raise BenchError(
                    f"client_update: cut is {step.cut:g} for {name}, which is only"
                    " for runs that claim no privacy: set it to null; the clipping"
                    " rule sets the threshold"
                )
        for party_sum in self.client_sums:
            rule = party_sum.clipping
            if rule is not None and rule.moves:
                raise BenchError(
                    f"clipping.kind is {rule.kind} for {party_sum.name}, so its"
                    " threshold would follow one party's releases, and the ledger"
                    " would show it to everyone, whose account covers only the sum"
                    " over parties: take constant"
                )

    def sums(self) -> list[SumSpec]:
        """Return the sums of each party, then the model that all parties share."""
        model = SumSpec(name="model", unit="record", observer="everyone")
        return [*self.party_sums(), model]

    def party_sums(self) -> list[SumSpec]:
        """Return the sums that each party takes over its records, in their order."""
        raise NotImplementedError
