"""Breaches: steps of a run that no account covers."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Breach:
    """Step of a run that discloses private data outside every private sum.

    A run with a breach is refused. A run that repeats a paper's released code
    (`reading: as-released`) may have it. Its ledger then states the reason at each
    release of the unit, so that the proven epsilon is infinite and the claim void.

    Attributes:
        unit: the unit whose guarantee the breach voids: "client" or "record".
        refusal: the message for a run that is refused, with the remedy.
        reason: why no finite epsilon is proven, for the ledger.
    """

    unit: Literal["client", "record"]
    refusal: str
    reason: str
