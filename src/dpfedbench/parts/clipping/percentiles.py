"""Thresholds by a percentile of norms over a window of rounds: of released norms, or of
raw ones.
"""

from typing import Literal

from dpfedbench.parts.clipping.rule import CohortRule
from dpfedbench.settings.part import setting
from dpsum import clipping


class Percentile(CohortRule):
    """Settings of rules whose C is a percentile over a sliding window of rounds
    (DP-FedMeta, eq. 2).
    """

    percentile: float = setting(
        90.0, ge=0, le=100, doc="k: which percentile", paper="90"
    )
    window: int = setting(
        3, ge=1, le=1_000_000, doc="W: rounds that are looked back upon"
    )
    never_rising: bool = setting(
        True,
        doc=(
            "take a new C only if it is not above the old one (Section 3.1's smoothing)"
        ),
    )


class PercentileOfReleases(Percentile, clipping.PercentileOfReleases):
    """The percentile of the norms of what was released: DP-FedMeta's rule as printed.

    See `dpsum.clipping.PercentileOfReleases`.
    """

    kind: Literal["percentile-of-releases"] = "percentile-of-releases"
    form: Literal["mean", "sum"] = setting(
        "sum", doc="whether a release's norm is that of the mean or of the sum"
    )


class PercentileOfRawNorms(Percentile, clipping.PercentileOfRawNorms):
    """The percentile of the clients' own norms, before clipping: the next release shows
    it, unprotected by noise.

    The rule of DP-FedMeta's released code and of DP-MAML (Section 5.2.1). Not private;
    see `dpsum.clipping.PercentileOfRawNorms`.
    """

    kind: Literal["percentile-of-raw-norms"] = "percentile-of-raw-norms"
    notice = "the clipping threshold reads raw norms: not private"
