"""The percentile rule of DP-FedMeta's released code and of DP-MAML (Section 5.2.1). Not private."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpfedbench.parts.clipping.percentile_of_releases import Percentile
from dpfedbench.parts.clipping.rule import Seen, State


class PercentileOfRawNorms(Percentile):
    """The percentile of the clients' own norms, before clipping: the next release shows it, unprotected by noise."""

    kind: Literal["percentile-of-raw-norms"] = "percentile-of-raw-norms"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = "PercentileOfRawNorms sets the threshold from raw norms"
    notice: ClassVar[str] = "the clipping threshold reads raw norms: not private"

    def observe(self, state: State, seen: Seen) -> None:
        assert seen.raw_norms is not None
        self.move(state, seen.raw_norms)
