"""DP-FedMeta's rule as printed: a percentile of the norms of what was released."""

from __future__ import annotations

from typing import Literal

from dpfedbench.parts.clipping.rule import Percentile
from dpfedbench.settings.part import setting
from dpsum import clipping


class PercentileOfReleases(Percentile, clipping.PercentileOfReleases):
    """The percentile of the norms of what was released.

    See `dpsum.clipping.PercentileOfReleases`.
    """

    kind: Literal["percentile-of-releases"] = "percentile-of-releases"
    form: Literal["mean", "sum"] = setting("sum", doc="whether a release's norm is that of the mean or of the sum")
