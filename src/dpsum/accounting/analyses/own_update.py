"""A client's own update, clipped and noised by itself (local privacy): what it tells of all that the client holds.

The client takes part once, and what it sends is one Gaussian release. It is always there, so neighbours differ in what
it holds: the update becomes any other of norm C, which moves it by up to 2C. What the server makes of it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpsum.accounting.analyses.base import Reading
from dpsum.accounting.analyses.one_pass import OnePass
from dpsum.accounting.claims import Claim
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.schedule import Bracket, Sampler, ends

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

    images = (
        "every client that uses the image sends another update, each with noise of its own: one Gaussian for the worst "
        "image of this partition; exact where it is known who took part"
    )

    def image_bracket(self, use: ImageUse, multipliers: Sequence[float], sampler: Sampler, delta: float) -> Bracket:
        if use.rounds is not None:
            square = use.worst_square(multipliers, apart=True)
            exact = gaussian_epsilon(square**-0.5, delta) if square else 0.0
            return exact, exact
        # Rounds are secret, and the same once all are over: everyone has taken part.
        uses, all_came = int(use.counts().max()), len(multipliers) * sampler["cohort"] == sampler["clients"]
        high = gaussian_epsilon(min(multipliers) / uses**0.5, delta)
        return (gaussian_epsilon(max(multipliers) / uses**0.5, delta) if all_came else 0.0), high

    def check_rate(self, sampler: Sampler) -> None:
        """A client is in its own update for certain, takes one, and takes part once."""
        if sampler["rate"] != 1 or sampler.get("steps") != 1:
            raise self.contradiction(sampler, "a client's own update is one release, at rate 1")
        if sampler["cohort"] * sampler["rounds"] > sampler["clients"]:
            raise self.contradiction(sampler, "the clients do not last for so many rounds of one participation")

    def claimed(self, claim: Claim, reading: Reading, delta: float) -> tuple[float, str, str]:
        epsilon = claim.epsilon(((ends(reading.claimed)[0], 1),), reading.sampler, delta)
        return epsilon, *claim.statement(reading.sampler)
