"""Clipping rules: how the threshold C moves from round to round.

A rule whose `private` is true reads only what was released, so its threshold is post-processing and costs nothing.
`PercentileOfRawNorms`, the rule of DP-FedMeta's released code and of DP-MAML, reads the raw norms: whoever sees the
next release learns something of them that no noise protects, and no finite epsilon holds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedbench.errors import BenchError

if TYPE_CHECKING:
    import torch

    from dpfedbench.config import ClippingConfig

SMALLEST_THRESHOLD = 1e-20
"""The mean form shrinks without end; below this the products z C would leave the range of single precision."""

LARGEST_THRESHOLD = 1e20


class ClippingRule:
    """A threshold that never changes, and the base of those that do.

    Args:
        threshold: the first threshold C > 0.
    """

    private = True
    reason = ""
    reads_raw_norms = False
    reads_norm_release = False
    reads_count_release = False
    counted_by_paper = True
    """Whether the paper counts the further release that the rule reads, where it reads one."""

    def __init__(self, *, threshold: float) -> None:
        if not 0 < threshold < math.inf:
            raise BenchError(f"clipping.threshold is {threshold}: it must be finite and above 0")
        self.threshold = float(threshold)

    def observe(self, released: torch.Tensor, denominator: float) -> None:
        """Take note of a round's released sum [d] and of the public denominator."""

    def observe_raw(self, norms: list[float]) -> None:
        """Take note of raw norms; only a rule that says `reads_raw_norms` may be given them."""
        raise RuntimeError(f"{type(self).__name__} does not read raw norms")

    def state_dict(self) -> dict[str, Any]:
        """Everything a restart needs, as plain values."""
        return {"threshold": self.threshold}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.threshold = state["threshold"]


class Constant(ClippingRule):
    """C stays as it is."""


class MedianOfRun(Constant):
    """C stays at the median norm of a run without privacy (DP-FedMeta, Section 6.1; DP-MAML, Section 5.2.1).

    That run saw the same clients, so whoever sees the releases learns something of them that no noise protects.
    """

    private = False
    reason = "the threshold is the median of gradient norms that no release protects, those of a run without privacy"


class _Percentile(ClippingRule):
    """C is a percentile of the values in a sliding window of rounds (DP-FedMeta, eq. 2), constant until it is full.

    Args:
        threshold: C for the first `window` rounds.
        percentile: k, from 0 to 100.
        window: W, rounds looked back upon, >= 1. The window moves by one round (the paper's step Delta W = 1).
        never_rising: take a new C only if it is not above the old one (Section 3.1's smoothing).
    """

    def __init__(self, *, threshold: float, percentile: float, window: int, never_rising: bool) -> None:
        super().__init__(threshold=threshold)
        if not 0 <= percentile <= 100:
            raise BenchError(f"clipping.percentile is {percentile}: it must be from 0 to 100")
        if window < 1:
            raise BenchError(f"clipping.window is {window}: it must be at least 1")
        self.percentile, self.window, self.never_rising = float(percentile), int(window), never_rising
        self._rounds: list[list[float]] = []

    def _move(self, values: list[float]) -> None:
        self._rounds = [*self._rounds, values][-self.window :]
        if len(self._rounds) < self.window:
            return
        seen = [value for kept in self._rounds for value in kept if math.isfinite(value)]
        if not seen:
            return
        new = max(float(np.percentile(seen, self.percentile)), SMALLEST_THRESHOLD)
        if new <= self.threshold or not self.never_rising:
            self.threshold = new

    def state_dict(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "rounds": [list(values) for values in self._rounds]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.threshold, self._rounds = state["threshold"], [list(values) for values in state["rounds"]]


class PercentileOfReleases(_Percentile):
    """The percentile of the norms of what was released.

    `form` "mean": of the released mean (Algorithm 2, line 8, divides by L). With z C noise on each of d coordinates
    that norm is at least about z C sqrt(d) / L, so C follows its own noise down, whatever the gradients are.
    `form` "sum": of the released sum (eq. 7). That norm is far above any single contribution's, so with
    `never_rising` C never moves.
    """

    def __init__(self, *, form: str, **values: Any) -> None:
        super().__init__(**values)
        if form not in ("mean", "sum"):
            raise BenchError(f"clipping.form is {form!r}: choose mean or sum")
        self.form = form

    def observe(self, released: torch.Tensor, denominator: float) -> None:
        """Post-processing of the release: reads nothing else."""
        norm = float(released.double().norm())
        self._move([norm / denominator if self.form == "mean" else norm])


class PercentileOfRawNorms(_Percentile):
    """The percentile of the clients' own norms, before clipping. Not private."""

    private = False
    reads_raw_norms = True

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._round: list[float] = []

    def observe_raw(self, norms: list[float]) -> None:
        """Collect norms of this round's contributions."""
        self._round += norms

    def observe(self, released: torch.Tensor, denominator: float) -> None:
        """End the round."""
        self._move(self._round)
        self._round = []


class NormOfRelease(ClippingRule):
    """C is `factor` times the norm of the last released mean (Adap DP-FL, eq. 6 read as a vector's norm).

    Post-processing. With z C noise on each of d coordinates the norm is at least about z C sqrt(d) / L, so C grows or
    shrinks from round to round by at least factor z sqrt(d) / L, whatever the gradients are.
    """

    def __init__(self, *, threshold: float, factor: float) -> None:
        super().__init__(threshold=threshold)
        self.factor = factor

    def observe(self, released: torch.Tensor, denominator: float) -> None:
        """Post-processing of the release: reads nothing else."""
        self._set(self.factor * float(released.double().norm()) / denominator)

    def _set(self, threshold: float) -> None:
        # Noise can make it negative or huge; what follows must stay a threshold that a sum can be clipped to.
        self.threshold = min(max(threshold, SMALLEST_THRESHOLD), LARGEST_THRESHOLD)


class NoisedMeanNorm(NormOfRelease):
    """C is `factor` times the noised mean of the clipped norms (Adap DP-FL, eq. 6 to 8 read as a scalar query).

    That mean is a release of its own over the same lot: each norm clipped to C, noise of standard deviation z C on
    their sum. `federation.client_sums` makes it, as a private sum of one coordinate, and the ledger has it.
    """

    reads_norm_release = True
    counted_by_paper = False

    def observe(self, released: torch.Tensor, denominator: float) -> None:
        """The gradients' release says nothing here."""

    def observe_norms(self, released: float, denominator: float) -> None:
        """Take note of the released sum of clipped norms.

        Eq. 6 takes the absolute value (a norm of one coordinate).
        """
        self._set(self.factor * abs(released) / denominator)


class PrivateQuantile(ClippingRule):
    """C goes to the `percentile` of the norms by geometric steps (Andrew et al. 2019, Algorithm 1; AQC in DP-FedMeta).

    C <- C exp(-rate (b - gamma)), where b is the noised share of the cohort whose norm is at most C. The server makes
    that count a release of its own over the same cohort, and the ledger has it (`federation.server_sum`): a private
    sum of `centred_indicators`, so that C is post-processing of what was released.

    Args:
        threshold: C of the first round.
        percentile: 100 gamma, from 0 to 100.
        rate: of the steps, eta_C > 0.
        never_rising: take a new C only if it is not above the old one.
    """

    reads_count_release = True

    def __init__(self, *, threshold: float, percentile: float, rate: float, never_rising: bool) -> None:
        super().__init__(threshold=threshold)
        if not 0 <= percentile <= 100:
            raise BenchError(f"clipping.percentile is {percentile}: it must be from 0 to 100")
        if not 0 < rate < math.inf:
            raise BenchError(f"clipping.quantile_rate is {rate}: it must be finite and above 0")
        self.gamma, self.rate, self.never_rising = percentile / 100, float(rate), never_rising

    def observe_count(self, released: float, denominator: float) -> None:
        """Take note of the released sum of centred indicators; with noise b may lie outside 0 to 1."""
        share = 0.5 + released / denominator
        exponent = -self.rate * (share - self.gamma)
        if exponent > 0 and self.never_rising:
            return
        moved = self.threshold * math.exp(min(max(exponent, -100.0), 100.0))
        self.threshold = min(max(moved, SMALLEST_THRESHOLD), LARGEST_THRESHOLD)


INDICATOR = 0.5
"""A centred indicator's size, and so the sensitivity of their sum (zero-out)."""


def centred_indicators(norms: np.ndarray, threshold: float) -> np.ndarray:
    """What each contribution puts into the count, float32 [n, 1]: 1/2 if its norm is at most C, else -1/2.

    A contribution that is zero puts in zero, so that zero-out of the one is zero-out of the other; one that is not
    finite stays so, and the private sum counts it as zero.
    """
    signs = np.where(norms <= threshold, INDICATOR, -INDICATOR)
    signs[norms == 0] = 0.0
    signs[~np.isfinite(norms)] = np.nan
    return signs.astype(np.float32)[:, None]


class MeanOfRawNorms(NormOfRelease):
    """C is `factor` times the mean of the last lot's own norms, neither clipped nor noised. Not private.

    No reading of Adap DP-FL's eq. 6, but the one with which its published factors give a threshold that lasts.
    """

    private = False
    reads_raw_norms = True

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._lot: list[float] = []

    def observe_raw(self, norms: list[float]) -> None:
        """Collect norms of this lot."""
        self._lot += norms

    def observe(self, released: torch.Tensor, denominator: float) -> None:
        """End the lot; an empty one leaves C as it is."""
        finite = [norm for norm in self._lot if math.isfinite(norm)]
        self._lot = []
        if finite:
            self._set(self.factor * math.fsum(finite) / len(finite))


_BY_FACTOR = {
    "norm-of-release": NormOfRelease,
    "noised-mean-norm": NoisedMeanNorm,
    "mean-of-raw-norms": MeanOfRawNorms,
}


def make_rule(values: ClippingConfig, *, first: float | None = None) -> ClippingRule:
    """The rule that a configuration's `clipping` section names.

    Args:
        values: the section.
        first: the first threshold where the section has none.

    Raises:
        BenchError: an unknown rule or a value out of bounds.
    """
    threshold = first if values.threshold is None else values.threshold
    if threshold is None:
        raise BenchError("clipping.threshold is null: give a first threshold")
    if values.rule in _BY_FACTOR:
        return _BY_FACTOR[values.rule](threshold=threshold, factor=values.factor)
    moving: dict[str, Any] = {
        "threshold": threshold,
        "percentile": values.percentile,
        "window": values.window,
        "never_rising": values.never_rising,
    }
    if values.rule == "constant":
        return Constant(threshold=threshold)
    if values.rule == "median-of-run":
        return MedianOfRun(threshold=threshold)
    if values.rule == "percentile-of-releases":
        return PercentileOfReleases(form=values.form, **moving)
    if values.rule == "percentile-of-raw-norms":
        return PercentileOfRawNorms(**moving)
    if values.rule == "private-quantile":
        del moving["window"]
        return PrivateQuantile(rate=values.quantile_rate, **moving)
    raise BenchError(
        f"clipping.rule is {values.rule!r}: choose constant, percentile-of-releases, percentile-of-raw-norms, "
        "private-quantile, median-of-run, noised-mean-norm, norm-of-release or mean-of-raw-norms"
    )
