"""The factorisation of the least total error for the planned rounds (Denisov et al.
2022, Theorem 3.2).
"""

from __future__ import annotations

from typing import Literal

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.parts.factorisations.factorisation import Factorisation
from dpfedbench.parts.participation.participation import Participation
from dpfedbench.parts.server.server_step import ServerStep, Step
from dpfedbench.settings.part import setting
from dpfedbench.settings.run import Run
from dpsum import factorisations
from dpsum.factorisations import MOST


class Optimised(Factorisation):
    """The encoder C of least total squared error of all models, |A C^-1|_F^2 at columns
    of norm 1.

    `prefix`: A is all ones. `server`: A is what the server's own step makes of a unit
    in each round's mean, momentum and schedule included; its step has to be linear.
    """

    kind: Literal["optimised"] = "optimised"
    workload: Literal["prefix", "server"] = setting(
        "prefix", doc="what A is: prefix sums, or the server's steps"
    )

    def check(self, run: Run) -> None:
        rounds = run.part(Participation).rounds
        if rounds > MOST:
            raise BenchError(
                f"participation.rounds is {rounds}, but the factorisation {self.kind}"
                f" is found for at most {MOST}: take noise.factorisation.kind"
                " square-root"
            )
        if self.workload == "server" and not run.part(ServerStep).linear:
            optimizer = run.part(Step).optimizer
            raise BenchError(
                "noise.factorisation.workload is server, but server.optimizer"
                f" {optimizer.kind} takes steps that are not linear in the sums: take"
                " sgd, or workload prefix"
            )

    def weights(self, rounds: int, step: ServerStep) -> np.ndarray:
        return factorisations.optimised(self.moved(rounds, step))

    def moved(self, rounds: int, step: ServerStep) -> np.ndarray:
        """A, float64 [T, T]."""
        return (
            np.tril(np.ones((rounds, rounds)))
            if self.workload == "prefix"
            else response(step, rounds)
        )


def response(step: ServerStep, rounds: int) -> np.ndarray:
    """Return how far the model has moved after each round for a unit in the mean of
    each, float64 [after, of].
    """

    model = torch.zeros(rounds, dtype=torch.float64)
    state, moved = step.begin(model), np.zeros((rounds, rounds))
    for index in range(rounds):
        unit = torch.zeros(rounds, dtype=torch.float64)
        unit[index] = 1.0
        step.step(model, unit, state, index=index, rounds=rounds)
        moved[index] = -model.numpy()
    return moved
