"""The percentile rule of DP-FedMeta's released code and of DP-MAML (Section 5.2.1). Not private."""

from __future__ import annotations

from typing import ClassVar, Literal

from dpfedbench.parts.clipping.rule import Percentile
from dpsum import clipping


class PercentileOfRawNorms(Percentile, clipping.PercentileOfRawNorms):
    """The percentile of the clients' own norms, before clipping: the next release shows it, unprotected by noise.

    See `dpsum.clipping.PercentileOfRawNorms`.
    """

    kind: Literal["percentile-of-raw-norms"] = "percentile-of-raw-norms"
    notice: ClassVar[str] = "the clipping threshold reads raw norms: not private"
