"""A sum of a run: who is in it, who sees it, and how it is clipped and noised. One line of the table of methods."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfedbench.parts.budget import Budget, OwnSum
    from dpfedbench.parts.clipping.rule import ClippingRule
    from dpfedbench.parts.noise.noise import Noise


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sum:
    """A sum that a server or a client takes.

    Attributes:
        name: of what it releases, in the ledger.
        unit: whose contribution is protected: "client" or "record".
        observer: who sees the release: "server" or "everyone".
        clipping, noise: both None where the sum is handed out as it is, and nothing is claimed of it.
        budget: what the noise costs at most.
        within_task: where the sum is a few-shot client's own: the settings that its noise follows from.
        adjacency: what changes between neighbours: "zero-out", or "replace-one" where a unit is always there.
        stream: purpose of its noise's random stream; no two sums of a run share one.
        part: the part of a client's records that it is over, where each record is in one part alone; "": all of them.
        added: whether the clients' releases are added up, and all but the observer see no more than their own and that.
    """

    name: str
    unit: str
    observer: str
    clipping: ClippingRule | None = None
    noise: Noise | None = None
    budget: Budget | None = None
    within_task: OwnSum | None = None
    adjacency: str = "zero-out"
    stream: str = "noise"
    part: str = ""
    added: bool = False

    @property
    def private(self) -> bool:
        """Whether the sum is clipped and noised."""
        return self.noise is not None

    @property
    def delta(self) -> float | None:
        """At which its epsilon is given."""
        given = self.budget or self.within_task
        return None if given is None else given.delta
