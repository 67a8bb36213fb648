"""The loop that every method is: who takes part, what each client computes, who takes which sum, what comes of it."""

from __future__ import annotations

import dataclasses

from dpfedbench.parts.client_updates.client_update import ClientUpdate
from dpfedbench.parts.participation.participation import Participation
from dpfedbench.parts.server.server_step import ServerStep
from dpsum.sums import Sum


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """A method's parts, put together.

    Attributes:
        participation: which clients take part in which round.
        client: what each of them computes.
        own: the sums that a client takes over its own records; none for most methods.
        server: the sum that the server takes over what the clients send.
        step: what the server makes of it.
    """

    participation: Participation
    client: ClientUpdate
    own: tuple[Sum, ...] = ()
    server: Sum
    step: ServerStep

    @property
    def sums(self) -> tuple[Sum, ...]:
        """All sums of a round; what is private, its notices, its budget and its audit follow from these."""
        return (*self.own, self.server)
