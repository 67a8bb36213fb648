"""Reptile, and the two private methods that Li et al. make of it (Differentially
Private Meta-Learning, 2020).
"""

from dpfedbench.method import Method
from dpfedbench.parts.budget import OwnUpdate, WithinTask
from dpfedbench.parts.client_updates.noised import OWN_UPDATE, Noised
from dpfedbench.parts.client_updates.reptile import TASK, Reptile
from dpfedbench.parts.participation.cohorts import (
    BallsAndBins,
    OnePass,
    Passes,
    Poisson,
)
from dpfedbench.parts.server.server_step import Step
from dpsum.accounting.claims import REPTILE_STEPS
from dpsum.sums import Sum


class NonPrivateReptile(Method):
    """Reptile in batches (Nichol et al. 2018): phi <- phi + eps (mean of what clients'
    training makes of phi - phi).
    """

    name = "reptile"
    title = "Non-private Reptile"
    paper = "dp-meta-learning-gbml"
    defaults = {
        "model": {"normalisation": "record"},
        "client_update": {
            "kind": "reptile",
            "inner_steps": 5,
            "inner_rate": 0.001,
            "optimizer": "adam",
        },
        "server": {"optimizer": "sgd", "rate": 1.0},
    }

    participation: OnePass | BallsAndBins | Poisson | Passes = OnePass()
    client_update: Reptile = Reptile()
    server: Step = Step()

    def server_sum(self) -> Sum:
        return Sum(name=self.client_update.sends, unit="client", observer="everyone")


class DpReptile(NonPrivateReptile):
    """Task-global DP Reptile, "GBML" in DP-FedMeta's Table 2: private sums within each
    task.

    Each client of the cohort trains from the meta-model on its own examples by DP-Adam:
    each step's gradients are clipped one by one and noised (Section 4). It sends the
    weights it ends with, which protects each of its examples against the server and
    everyone after it. The server moves the meta-model towards their mean, as Reptile
    does; it adds no noise of its own.
    """

    name = "dp-reptile"
    title = "Task-global DP Reptile (GBML)"
    claims = {"own-records": REPTILE_STEPS, "own-records-poisson": REPTILE_STEPS}
    defaults = NonPrivateReptile.defaults | {
        "within_task": {
            "threshold": 0.2,
            "multiplier": None,
            "epsilon": 9.5,
            "delta": 1.0e-3,
            "profile": "as_claimed",
        },
    }

    within_task: WithinTask = WithinTask()

    def own_sums(self) -> tuple[Sum, ...]:
        return (self.within_task.sum(TASK, observer="server"),)


class LocalReptile(NonPrivateReptile):
    """Local DP Reptile (Section 4): a private sum of each client over its update alone.

    Each client of the cohort, once in all, trains from the meta-model on its own
    examples without noise, and clips and noises the difference of the weights itself:
    the server, too, learns next to nothing of all that it holds. The server moves the
    meta-model by the mean of what it gets.
    """

    name = "local-reptile"
    title = "Local DP Reptile"
    claims = {"own-update": REPTILE_STEPS}
    defaults = NonPrivateReptile.defaults | {
        "own_update": {
            "threshold": 0.01,
            "multiplier": 0.51,
            "epsilon": None,
            "delta": 1.0e-3,
            "profile": "as_claimed",
        },
    }

    own_update: OwnUpdate = OwnUpdate()

    @property
    def client(self) -> Noised:
        return Noised(update=self.client_update)  # type: ignore[call-arg]  # it has no kind

    def own_sums(self) -> tuple[Sum, ...]:
        return (self.own_update.sum(OWN_UPDATE, observer="server"),)
