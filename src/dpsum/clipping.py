"""Clipping rules: how the threshold C moves from round to round, by what a rule may
see.

A rule keeps its state in a plain dictionary, which a checkpoint saves as it is;
"threshold" is C. A rule sees releases, so that its threshold is post-processing. A rule
with `private = False` sees norms before clipping as well: no finite epsilon is proven for a
mechanism that uses one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from dpsum.group_clipping import CoordinateGroups
from dpsum.lazy import np
from dpsum.parameters import LARGEST, check_range, parameter

SMALLEST_THRESHOLD = 1e-20
"""Some rules shrink C without end; below this the products z C would leave the range of
single precision.
"""

LARGEST_THRESHOLD = 1e20

LARGEST_PERCENTILE = 1e32
"""The largest threshold that a percentile of norms gives. It is above the contributions
of an audit's canaries (1e30), and z C stays within single precision.
"""

INDICATOR = 0.5
"""The size of a centred indicator, and so the sensitivity of their sum (zero-out)."""

State = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extra:
    """A release of one coordinate that a rule makes beside the sum's own, over the same
    cohort or lot.

    Attributes:
        name: in the ledger.
        stream: purpose of its noise's random stream.
        threshold: what each value is clipped to, and so the sensitivity of their sum
            (zero-out).
        counted: whether the method's paper counts it.
        within: whether it is paid out of the sum's own multiplier, which then rises
            (Andrew et al. 2019, Theorem 1).
    """

    name: str
    stream: str
    threshold: float
    noise_multiplier: float
    counted: bool
    within: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """Inputs of a rule after a round: releases, public numbers and, where it is not
    private, raw norms.

    Attributes:
        released: the sum's release, float64 [d].
        extra: the release that the rule made itself, a number (of `RuleByGroup` one for
            each group); None where it makes none.
        denominator: what the sum is divided by.
        raw_norms: norms before clipping; None for a rule that is private.
        norm: how the L2 norm of a vector is taken.
    """

    released: np.ndarray
    extra: Any
    denominator: float
    raw_norms: list[Any] | None
    norm: Callable[[np.ndarray], float] = lambda values: float(np.linalg.norm(values))

    @property
    def released_norm(self) -> float:
        """L2 norm of the sum's release."""
        return self.norm(self.released)


@dataclasses.dataclass(frozen=True)
class ClippingRule:
    """Base of the rules.

    `threshold` may also be a list with one threshold for each group of coordinates.

    Attributes:
        kind: its name in a configuration; "": it cannot be chosen there.
        private: whether it reads only what was released.
        reason: why it is not, for the ledger.
        notice: why it is not, for people.
        finds_threshold: whether `threshold` may be None, since the first threshold
            comes from elsewhere.
        uncounted: whether it makes a release that costs more than the multiplier of the
            sum says (`Extra.within`).
    """

    kind: ClassVar[str] = ""
    private: ClassVar[bool] = True
    reason: ClassVar[str] = ""
    notice: ClassVar[str] = ""
    finds_threshold: ClassVar[bool] = False
    uncounted: ClassVar[bool] = False

    threshold: float | None = parameter(
        0.5,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc="C of the first round",
        paper="0.2 (DP-FedMeta's released code)",
    )
    groups: Literal["all", "layers", "tensors"] = parameter(
        "all",
        doc=(
            "what is clipped to a threshold of its own: all coordinates together, each"
            " layer, or each tensor; `threshold` is then that of each group"
        ),
        paper="layers (DP-MAML, 5.2.1); tensors (DP-FedMeta's released code)",
        kw_only=True,
    )
    noise_by_group: Literal["joint", "per-group", "equal-shares"] = parameter(
        "joint",
        doc=(
            "how `noise.multiplier` z is read for m groups of thresholds C_g: deviation"
            " z sqrt(sum C_g^2), z C_g (which protects like z / sqrt(m)), or z sqrt(m)"
            " C_g"
        ),
        paper="per-group",
        kw_only=True,
    )

    @property
    def moves(self) -> bool:
        """Whether the threshold moves after the first round."""
        return type(self).observe is not ClippingRule.observe

    def claimed_ratio(self, sensitivity: float) -> float:
        """Return the noise multiplier as it is configured over the proven one, in a sum
        of this sensitivity.

        It is 1 where the deviation of the noise is the configured multiplier times the
        sensitivity.
        """
        return 1.0

    def begin(self, threshold: float) -> State:
        """Return the state before the first round.

        Raises:
            DpsumError: the threshold is not a number from 1e-150 to 1e150.
        """
        check_range("clipping.threshold", threshold)
        return {"threshold": float(threshold)}

    def extra(
        self, state: State, *, noise_multiplier: float, cohort: float
    ) -> Extra | None:
        """The release that this rule makes beside the sum's, of `values`; None for
        none.

        `state` is that before the round, `noise_multiplier` the sum's, `cohort` the
        expected number of units.
        """
        return None

    def values(self, state: State, norms: np.ndarray) -> np.ndarray:
        """Return the contribution of each unit to the extra release, float32 [n, 1],
        from its norm before clipping [n].
        """
        raise NotImplementedError("of rules that make a release of their own")

    def observe(self, state: State, seen: Seen) -> None:
        """Move the threshold."""


@dataclasses.dataclass(frozen=True)
class CohortRule(ClippingRule):
    """A rule for a sum over a cohort's clients."""


@dataclasses.dataclass(frozen=True)
class LotRule(ClippingRule):
    """A rule for a sum over a lot of records."""


@dataclasses.dataclass(frozen=True)
class RuleByGroup:
    """A clipping rule that is applied to each group of coordinates by itself.

    It has the interface of a `ClippingRule`. Its state has that of the rule for each
    group, and its norms and values have a column for each group.

    Attributes:
        rule: of each group.
        groups: of the coordinates.
    """

    rule: ClippingRule
    groups: CoordinateGroups

    @property
    def private(self) -> bool:
        """Whether the rule reads only what was released."""
        return self.rule.private

    @property
    def reason(self) -> str:
        """Why the rule is not private, for the ledger."""
        return self.rule.reason

    def begin(self, threshold: Any) -> State:
        """Return the states before the first round, from one threshold or one for each
        group.
        """
        return self._state(
            [self.rule.begin(c) for c in self.groups.thresholds(threshold)]
        )

    def extras(
        self, state: State, *, noise_multiplier: float, cohort: float
    ) -> list[Extra]:
        """Return the releases of one coordinate that the rule makes, one for each
        group; none where it makes none.
        """
        # One that has the multiplier of the sum has it with all groups together.
        share = noise_multiplier * math.sqrt(self.groups.count)
        extras_by_group = [
            self.rule.extra(group, noise_multiplier=share, cohort=cohort)
            for group in state["groups"]
        ]
        return [extra for extra in extras_by_group if extra is not None]

    def extra(
        self, state: State, *, noise_multiplier: float, cohort: float
    ) -> Extra | None:
        """Return the release of a coordinate for each group, as one release; None where
        the rule makes none.

        One unit moves all coordinates, so that with m groups the multiplier is that of
        one of them over sqrt(m).
        """
        extras_by_group = self.extras(
            state, noise_multiplier=noise_multiplier, cohort=cohort
        )
        if not extras_by_group:
            return None
        squares = math.fsum(extra.noise_multiplier**-2 for extra in extras_by_group)
        return dataclasses.replace(
            extras_by_group[0],
            threshold=math.hypot(*(extra.threshold for extra in extras_by_group)),
            noise_multiplier=extras_by_group[0].noise_multiplier
            if len(extras_by_group) == 1
            else squares**-0.5,
        )

    def values(self, state: State, norms: np.ndarray) -> np.ndarray:
        """Return what each contribution puts into the extra release, float32 [n,
        groups], from the norms of its groups before clipping [n, groups].
        """
        columns = [
            self.rule.values(group, norms[:, index])
            for index, group in enumerate(state["groups"])
        ]
        return np.concatenate(columns, axis=1)

    def observe(self, state: State, seen: Seen) -> None:
        """Move the threshold of each group by what was released of that group."""
        for index, group in enumerate(self.groups.slices):
            raw = seen.raw_norms
            group_seen = dataclasses.replace(
                seen,
                released=seen.released[group],
                extra=None if seen.extra is None else float(seen.extra[index]),
                raw_norms=None if raw is None else [norms[index] for norms in raw],
            )
            self.rule.observe(state["groups"][index], group_seen)
        state |= self._state(state["groups"])

    def _state(self, states: list[State]) -> State:
        return {
            "threshold": [state["threshold"] for state in states],
            "groups": states,
        }


def within_range(threshold: float) -> float:
    """A threshold that a sum can be clipped to, whatever noise made of it."""
    return min(max(threshold, SMALLEST_THRESHOLD), LARGEST_THRESHOLD)


@dataclasses.dataclass(frozen=True)
class Constant(CohortRule, LotRule):
    """C stays as it is."""

    kind: ClassVar[str] = "constant"


@dataclasses.dataclass(frozen=True)
class PrivateQuantile(CohortRule, LotRule):
    """C goes to the `percentile` of the norms by geometric steps: C <- C exp(-rate (b -
    gamma)).

    b is the noised share of the cohort (or lot) whose norm is at most C. The count is a
    release of its own over the same cohort, a private sum of centred indicators, and
    the ledger has it: C is post-processing of what was released. A unit moves the sum
    by C and the count by 1/2, so that both are one Gaussian of multiplier z with z^-2 =
    z_sum^-2 + (2 sigma_b)^-2; z_sum is raised until that is the configured z (Andrew et
    al. 2019, Algorithm 1 and Theorem 1).

    Of records each client has a C of its own, which goes to the quantile of its own
    records. Lots are small: let `count_noise` (sigma_b) be well above half of the noise
    multiplier.
    """

    kind: ClassVar[str] = "private-quantile"

    percentile: float = parameter(90.0, ge=0, le=100, doc="100 gamma: which quantile")
    never_rising: bool = parameter(
        True, doc="take a new C only if it is not above the old one"
    )
    quantile_rate: float = parameter(
        0.2,
        gt=0,
        le=10,
        doc="eta_C of the geometric steps",
        paper="0.2 (Andrew et al. 2019)",
    )
    count_noise: float | None = parameter(
        None,
        gt=0,
        le=1e9,
        doc=(
            "deviation of the noise on its count of norms below C; null: a twentieth of"
            " the cohort or lot"
        ),
    )

    def deviation(self, cohort: float) -> float:
        """sigma_b for a cohort of so many units."""
        if self.count_noise is None:
            return cohort / 20
        return self.count_noise

    def extra(
        self, state: State, *, noise_multiplier: float, cohort: float
    ) -> Extra | None:
        return Extra(
            name="below-threshold-count",
            stream="count-noise",
            threshold=INDICATOR,
            noise_multiplier=self.deviation(cohort) / INDICATOR,
            counted=True,
            within=True,
        )

    def values(self, state: State, norms: np.ndarray) -> np.ndarray:
        """1/2 if a norm is at most C, else -1/2.

        A contribution that is zero puts in zero, so that zero-out of the one is
        zero-out of the other; one that is not finite stays so, and the private sum
        counts it as zero.
        """
        signs = np.where(norms <= state["threshold"], INDICATOR, -INDICATOR)
        signs[norms == 0] = 0.0
        signs[~np.isfinite(norms)] = np.nan
        return signs.astype(np.float32)[:, None]

    def observe(self, state: State, seen: Seen) -> None:
        """With noise the share b may lie outside 0 to 1."""
        assert seen.extra is not None
        share = 0.5 + seen.extra / seen.denominator
        exponent = -self.quantile_rate * (share - self.percentile / 100)
        if exponent > 0 and self.never_rising:
            return
        state["threshold"] = within_range(
            state["threshold"] * math.exp(min(max(exponent, -100.0), 100.0))
        )


@dataclasses.dataclass(frozen=True)
class ByFactor(LotRule):
    """C is `factor` times a mean norm (Adap DP-FL, eq. 6 to 8)."""

    finds_threshold: ClassVar[bool] = True

    threshold: float | None = parameter(
        None,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc=(
            "C of the first round; null: the mean gradient norm of the initial model on"
            " random data"
        ),
    )
    factor: float = parameter(
        1.0,
        ge=1e-6,
        le=1e6,
        doc="alpha, times the mean norm",
        paper="1 (MNIST), 0.01 (Fashion-MNIST)",
    )


@dataclasses.dataclass(frozen=True)
class NormOfRelease(ByFactor):
    """C is `factor` times the norm of the last released mean: eq. 6, read as the norm
    of the vector that was released.

    With z C noise on each of d coordinates the norm is at least about z C sqrt(d) / L,
    so C grows or shrinks from round to round by at least factor z sqrt(d) / L, whatever
    the gradients are.
    """

    kind: ClassVar[str] = "norm-of-release"

    def observe(self, state: State, seen: Seen) -> None:
        state["threshold"] = within_range(
            self.factor * seen.released_norm / seen.denominator
        )


@dataclasses.dataclass(frozen=True)
class NoisedMeanNorm(ByFactor):
    """C is `factor` times the noised mean of the clipped norms: eq. 6, read as a scalar
    query.

    That mean is a release of its own over the same lot: each norm clipped to C, noise
    of standard deviation z C on their sum. The paper does not count it.
    """

    kind: ClassVar[str] = "noised-mean-norm"
    uncounted: ClassVar[bool] = True

    def extra(
        self, state: State, *, noise_multiplier: float, cohort: float
    ) -> Extra | None:
        return Extra(
            name="clipped-norm-sum",
            stream="norm-noise",
            threshold=state["threshold"],
            noise_multiplier=noise_multiplier,
            counted=False,
            within=False,
        )

    def values(self, state: State, norms: np.ndarray) -> np.ndarray:
        largest = np.finfo(np.float32).max  # far above C, which they are clipped to
        capped = np.minimum(norms, largest).astype(np.float32)
        return capped[:, None]

    def observe(self, state: State, seen: Seen) -> None:
        assert seen.extra is not None
        # Eq. 6 takes the absolute value (a norm of one coordinate).
        state["threshold"] = within_range(
            self.factor * abs(seen.extra) / seen.denominator
        )


@dataclasses.dataclass(frozen=True)
class MeanOfRawNorms(ByFactor):
    """C is `factor` times the mean of the last lot's own norms, neither clipped nor
    noised. Not private.

    With this reading of Adap DP-FL's eq. 6 its published factors give a threshold that
    lasts. An empty lot keeps C.
    """

    kind: ClassVar[str] = "mean-of-raw-norms"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = "MeanOfRawNorms sets the threshold from raw norms"
    notice: ClassVar[str] = "the clipping threshold reads raw norms: not private"

    def observe(self, state: State, seen: Seen) -> None:
        assert seen.raw_norms is not None
        # The cap keeps a sum of huge norms finite, and is far above any threshold.
        finite = [min(norm, LARGEST) for norm in seen.raw_norms if math.isfinite(norm)]
        if finite:
            state["threshold"] = within_range(
                self.factor * math.fsum(finite) / len(finite)
            )


@dataclasses.dataclass(frozen=True)
class Percentile(CohortRule):
    """C is a percentile of the values in a sliding window of rounds (DP-FedMeta, eq.
    2), constant until it is full.

    The window moves by one round (the paper's step Delta W = 1).
    """

    percentile: float = parameter(
        90.0, ge=0, le=100, doc="k: which percentile", paper="90"
    )
    window: int = parameter(
        3, ge=1, le=1_000_000, doc="W: rounds that are looked back upon"
    )
    never_rising: bool = parameter(
        True,
        doc=(
            "take a new C only if it is not above the old one (Section 3.1's smoothing)"
        ),
    )

    def begin(self, threshold: float) -> State:
        return super().begin(threshold) | {"rounds": []}

    def move(self, state: State, values: list[float]) -> None:
        """Take the values of one more round into the window, and move C."""
        latest = [*state["rounds"], values]
        state["rounds"] = latest[-self.window :]
        if len(state["rounds"]) < self.window:
            return
        recent = [
            value
            for round_values in state["rounds"]
            for value in round_values
            if math.isfinite(value)
        ]
        if not recent:
            return
        percentile = float(np.percentile(recent, self.percentile))
        new = min(max(percentile, SMALLEST_THRESHOLD), LARGEST_PERCENTILE)
        if new <= state["threshold"] or not self.never_rising:
            state["threshold"] = new


@dataclasses.dataclass(frozen=True)
class PercentileOfReleases(Percentile):
    """The percentile of the norms of what was released: DP-FedMeta's rule as printed.

    `form` "mean": of the released mean (Algorithm 2, line 8, divides by L). With z C
    noise on each of d coordinates that norm is at least about z C sqrt(d) / L, so C
    follows its own noise down, whatever the gradients are. "sum": of the released sum
    (eq. 7). That norm is far above any single contribution's, so with `never_rising` C
    never moves.
    """

    kind: ClassVar[str] = "percentile-of-releases"

    form: Literal["mean", "sum"] = parameter(
        "sum", doc="whether a release's norm is that of the mean or of the sum"
    )

    def observe(self, state: State, seen: Seen) -> None:
        norm = seen.released_norm
        if self.form == "mean":
            norm = norm / seen.denominator
        self.move(state, [norm])


@dataclasses.dataclass(frozen=True)
class PercentileOfRawNorms(Percentile):
    """The percentile of the clients' own norms, before clipping: the next release shows
    it, unprotected by noise.

    The rule of DP-FedMeta's released code and of DP-MAML (Section 5.2.1). Not private.
    """

    kind: ClassVar[str] = "percentile-of-raw-norms"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = "PercentileOfRawNorms sets the threshold from raw norms"
    notice: ClassVar[str] = "the clipping threshold reads raw norms: not private"

    def observe(self, state: State, seen: Seen) -> None:
        assert seen.raw_norms is not None
        self.move(state, seen.raw_norms)
