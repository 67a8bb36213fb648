"""A client's own update, clipped and noised by itself (local privacy): what it tells of all that the client holds.

The client takes part once, and what it sends is one Gaussian release. It is always there, so neighbours differ in what
it holds: the update becomes any other of norm C, which moves it by up to 2C. What the server makes of it follows.
"""

from __future__ import annotations

from typing import Any

from dpfedbench.accounting.analyses.base import Reading
from dpfedbench.accounting.analyses.one_pass import OnePass
from dpfedbench.accounting.claims import Claim
from dpfedbench.accounting.schedule import Sampler, ends

KIND = "own-update"
"""The sampler of these releases: every client that takes part, over its own update."""


def describe(*, clients: int, cohort: int, rounds: int) -> dict[str, Any]:
    """The sampler, for the ledger.

    Args:
        clients: N, who take part at most once.
        cohort: of a round.
        rounds: planned.
    """
    return {"kind": KIND, "clients": clients, "cohort": cohort, "rounds": rounds, "rate": 1.0, "steps": 1}


class OwnUpdate(OnePass):
    """One Gaussian of sensitivity 2C for each client, exactly."""

    sampler = KIND
    adjacency = "replace-one"
    explanation = "a client takes part once and noises its own update, of sensitivity 2C: one Gaussian; exact"

    def check_rate(self, sampler: Sampler) -> None:
        """A client is in its own update for certain, takes one, and takes part once."""
        if sampler["rate"] != 1 or sampler.get("steps") != 1:
            raise self.contradiction(sampler, "a client's own update is one release, at rate 1")
        if sampler["cohort"] * sampler["rounds"] > sampler["clients"]:
            raise self.contradiction(sampler, "the clients do not last for so many rounds of one participation")

    def claimed(self, claim: Claim, reading: Reading, delta: float) -> tuple[float, str, str]:
        epsilon = claim.epsilon(((ends(reading.claimed)[0], 1),), reading.sampler, delta)
        return epsilon, *claim.statement(reading.sampler)
