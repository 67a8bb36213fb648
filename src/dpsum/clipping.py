"""Clipping rules: how the threshold C changes from round to round.

A rule keeps its state in a plain dictionary, which a checkpoint saves unchanged;
`state["threshold"]` is C. A rule reads releases only, so that its threshold is
post-processing. A rule with `private = False` also reads norms before clipping: no
finite epsilon is proven for a mechanism that uses one.
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
"""Lower limit of C. Some rules shrink C without end; below this limit the products z C
would leave the range of single precision.
"""

LARGEST_THRESHOLD = 1e20

LARGEST_PERCENTILE = 1e32
"""The largest threshold that a percentile of norms may give. It is above the norm of an
audit's canaries (1e30), and z C stays within single precision.
"""

INDICATOR = 0.5
"""The size of a centred indicator, and so the sensitivity of their sum (zero-out)."""

State = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extra:
    """A rule's own release of one coordinate, over the same cohort or lot as the sum.

    Attributes:
        name: name of the release in the ledger.
        stream: purpose of the random stream of its noise.
        threshold: limit to which each value is clipped, and so the sensitivity of the
            sum of the values (zero-out). Under replace-one the sensitivity is twice as
            much, as that of the sum.
        noise_multiplier: z of this release: the deviation of its noise over its
            sensitivity.
        counted: whether the method's paper counts this release.
        within: whether the budget of the sum pays for it. The noise multiplier of the
            sum is then raised (Andrew et al. 2019, Theorem 1).
    """

    name: str
    stream: str
    threshold: float
    noise_multiplier: float
    counted: bool
    within: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """Inputs of a rule after a round: releases and public numbers.

    A rule that is not private also reads raw norms.

    Attributes:
        released: the released sum, float64 [d].
        extra: the rule's own release, a number (for a `RuleByGroup`, one for each
            group); None if the rule makes none.
        denominator: the public number that the sum is divided by.
        raw_norms: norms before clipping; None for a rule that is private.
        norm: function that returns the L2 norm of a vector [d].
    """

    released: np.ndarray
    extra: Any
    denominator: float
    raw_norms: list[Any] | None
    norm: Callable[[np.ndarray], float]

    @property
    def released_norm(self) -> float:
        """L2 norm of the released sum."""
        return self.norm(self.released)


@dataclasses.dataclass(frozen=True)
class ClippingRule:
    """Base of the clipping rules.

    `threshold` may also be a list with one threshold for each group of coordinates.

    Attributes:
        kind: name of the rule in a configuration; "": it cannot be chosen there.
        private: whether the rule reads releases only.
        reason: why the rule is not private, for the ledger.
        notice: why the rule is not private, for people.
        finds_threshold: whether `threshold` may be None, since the training finds the
            first threshold.
        uncounted: whether the rule makes a release whose cost comes on top of that of
            the sum's noise multiplier (`Extra.within` is false).
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
        doc=("groups of coordinates that are clipped separately, each to `threshold`"),
        paper="layers (DP-MAML, 5.2.1); tensors (DP-FedMeta's released code)",
        kw_only=True,
    )
    noise_by_group: Literal["joint", "per-group", "equal-shares"] = parameter(
        "joint",
        doc=(
            "deviation of the noise for m groups of thresholds C_g: z sqrt(sum"
            " C_g^2), z C_g (which protects like z / sqrt(m)), or z sqrt(m) C_g"
        ),
        paper="per-group",
        kw_only=True,
    )

    @property
    def moves(self) -> bool:
        """Whether the threshold moves after the first round."""
        return type(self).observe is not ClippingRule.observe

    def claimed_ratio(self, sensitivity: float) -> float:
        """Return the configured noise multiplier divided by the proven one.

        It is 1 where the deviation of the noise is the configured multiplier times the
        sensitivity.

        Args:
            sensitivity: L2 sensitivity of the sum.
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
        """Return the rule's own release of a round; None if it makes none.

        The release is a sum of `values`.

        Args:
            state: state of the rule before the round.
            noise_multiplier: z of the sum.
            cohort: expected number of units.
        """
        return None

    def values(self, state: State, norms: np.ndarray) -> np.ndarray:
        """Return the contribution of each unit to the rule's own release.

        Args:
            state: state of the rule before the round.
            norms: norms before clipping, [n].

        Returns:
            float32 [n, 1].
        """
        raise NotImplementedError("only rules with a release of their own define this")

    def observe(self, state: State, seen: Seen) -> None:
        """Update the threshold after a round."""


@dataclasses.dataclass(frozen=True)
class CohortRule(ClippingRule):
    """A rule for a sum over a cohort's clients."""


@dataclasses.dataclass(frozen=True)
class LotRule(ClippingRule):
    """A rule for a sum over a lot of records."""


@dataclasses.dataclass(frozen=True)
class RuleByGroup:
    """A clipping rule that is applied to each group of coordinates separately.

    It is used in a round like a `ClippingRule`. Its state holds the rule's state for each
    group. Its norms and values have one column for each group.

    Attributes:
        rule: the rule that each group follows.
        groups: the groups of coordinates.
    """

    rule: ClippingRule
    groups: CoordinateGroups

    @property
    def private(self) -> bool:
        """Whether the rule reads releases only."""
        return self.rule.private

    def begin(self, threshold: Any) -> State:
        """Return the state before the first round.

        Args:
            threshold: one threshold for all groups, or a sequence with one for each.
        """
        return self._state(
            [self.rule.begin(c) for c in self.groups.thresholds(threshold)]
        )

    def extras(
        self, state: State, *, noise_multiplier: float, cohort: float
    ) -> list[Extra]:
        """Return the rule's own releases of one coordinate, one for each group.

        The list is empty if the rule makes none.
        """
        # A rule that uses the sum's multiplier has it for all groups together.
        share = noise_multiplier * math.sqrt(self.groups.count)
        extras_by_group = [
            self.rule.extra(group, noise_multiplier=share, cohort=cohort)
            for group in state["groups"]
        ]
        return [extra for extra in extras_by_group if extra is not None]

    def extra(
        self, state: State, *, noise_multiplier: float, cohort: float
    ) -> Extra | None:
        """Return the rule's own releases of all groups as one release of m coordinates.

        One unit moves all m coordinates, so that the multiplier of the joint release is
        the multiplier of one group divided by sqrt(m). None if the rule makes no
        release.
        """
        extras_by_group = self.extras(
            state, noise_multiplier=noise_multiplier, cohort=cohort
        )
        if not extras_by_group:
            return None
        first = extras_by_group[0]
        threshold = math.hypot(*(extra.threshold for extra in extras_by_group))
        noise_multiplier = first.noise_multiplier
        if len(extras_by_group) > 1:
            squares = math.fsum(extra.noise_multiplier**-2 for extra in extras_by_group)
            noise_multiplier = squares**-0.5
        return dataclasses.replace(
            first, threshold=threshold, noise_multiplier=noise_multiplier
        )

    def values(self, state: State, norms: np.ndarray) -> np.ndarray:
        """Return the values that each unit adds to the rule's own release.

        Args:
            state: state of the rule before the round.
            norms: norms of the groups before clipping, [n, groups].

        Returns:
            float32 [n, groups].
        """
        columns = [
            self.rule.values(group, norms[:, index])
            for index, group in enumerate(state["groups"])
        ]
        return np.concatenate(columns, axis=1)

    def observe(self, state: State, seen: Seen) -> None:
        """Update the threshold of each group from the release of that group."""
        for index, group in enumerate(self.groups.slices):
            raw = seen.raw_norms
            extra = None
            if seen.extra is not None:
                extra = float(seen.extra[index])
            raw_norms = None
            if raw is not None:
                raw_norms = [norms[index] for norms in raw]
            group_seen = dataclasses.replace(
                seen, released=seen.released[group], extra=extra, raw_norms=raw_norms
            )
            self.rule.observe(state["groups"][index], group_seen)
        state |= self._state(state["groups"])

    def _state(self, states: list[State]) -> State:
        return {
            "threshold": [state["threshold"] for state in states],
            "groups": states,
        }


def within_range(threshold: float) -> float:
    """Return a threshold, limited to the range from 1e-20 to 1e20."""
    return min(max(threshold, SMALLEST_THRESHOLD), LARGEST_THRESHOLD)


@dataclasses.dataclass(frozen=True)
class Constant(CohortRule, LotRule):
    """C stays constant."""

    kind: ClassVar[str] = "constant"


@dataclasses.dataclass(frozen=True)
class PrivateQuantile(CohortRule, LotRule):
    """C follows a percentile of the norms: C <- C exp(-quantile_rate (b - gamma)).

    b is the noised share of the cohort (or lot) whose norm is at most C. The count is a
    release of its own over the same cohort: a private sum of centred indicators, which
    the ledger records. C is therefore post-processing of releases. A unit moves the sum
    by C and the count by 1/2 (by twice as much under replace-one adjacency, where both
    deviations double). Both together are one Gaussian release of multiplier z
    with z^-2 = z_sum^-2 + (2 sigma_b)^-2. z_sum is raised until that z is the
    configured one (Andrew et al. 2019, Algorithm 1 and Theorem 1).

    Where the unit is the record, each client has its own C, which follows the quantile
    of its own records. Lots are small: set `count_noise` (sigma_b) well above half of
    the noise multiplier.
    """

    kind: ClassVar[str] = "private-quantile"

    percentile: float = parameter(
        90.0, ge=0, le=100, doc="100 gamma: the percentile that C follows"
    )
    never_rising: bool = parameter(True, doc="C never rises")
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
            "sigma_b: deviation of the noise on the count of norms below C"
            " (doubled under replace-one); null: a twentieth of the cohort or lot"
        ),
    )

    def deviation(self, cohort: float) -> float:
        """Return sigma_b for an expected cohort size."""
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
        """Return 1/2 for each norm that is at most C, else -1/2; float32 [n, 1].

        A zero contribution gives 0, so that zeroing out the contribution also zeroes
        out its indicator. A norm that is not finite gives NaN, which the private sum
        counts as zero.
        """
        signs = np.where(norms <= state["threshold"], INDICATOR, -INDICATOR)
        signs[norms == 0] = 0.0
        signs[~np.isfinite(norms)] = np.nan
        return signs.astype(np.float32)[:, None]

    def observe(self, state: State, seen: Seen) -> None:
        """Take one geometric step. With noise, the share b may lie outside [0, 1]."""
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
    """Base of rules that set C to `factor` times a mean norm (Adap DP-FL, eq. 6-8)."""

    finds_threshold: ClassVar[bool] = True

    threshold: float | None = parameter(
        None,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc=(
            "C of the first round; null: the initial model's mean gradient norm on"
            " random data"
        ),
    )
    factor: float = parameter(
        1.0,
        ge=1e-6,
        le=1e6,
        doc="alpha: C over the mean norm",
        paper="1 (MNIST), 0.01 (Fashion-MNIST)",
    )


@dataclasses.dataclass(frozen=True)
class NormOfRelease(ByFactor):
    """C is `factor` times the norm of the last released mean.

    This reads Adap DP-FL's eq. 6 as the norm of the released vector. With noise of
    deviation z C on each of d coordinates, that norm is at least about z C sqrt(d) / L.
    So each round multiplies C by at least factor z sqrt(d) / L, whatever the gradients
    are.
    """

    kind: ClassVar[str] = "norm-of-release"

    def observe(self, state: State, seen: Seen) -> None:
        state["threshold"] = within_range(
            self.factor * seen.released_norm / seen.denominator
        )


@dataclasses.dataclass(frozen=True)
class NoisedMeanNorm(ByFactor):
    """C is `factor` times the noised mean of the clipped norms.

    This reads Adap DP-FL's eq. 6 as a scalar query. The mean is a release of its own
    over the same lot: each norm is clipped to C, and their sum has noise of standard
    deviation z C. The paper does not count this release.
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
        largest = np.finfo(np.float32).max  # far above C, the clipping threshold
        capped = np.minimum(norms, largest).astype(np.float32)
        return capped[:, None]

    def observe(self, state: State, seen: Seen) -> None:
        assert seen.extra is not None
        # Eq. 6 takes the absolute value: the norm of one coordinate.
        state["threshold"] = within_range(
            self.factor * abs(seen.extra) / seen.denominator
        )


@dataclasses.dataclass(frozen=True)
class MeanOfRawNorms(ByFactor):
    """C is `factor` times the mean of the last lot's raw norms. Not private.

    The norms are neither clipped nor noised. Under this reading of Adap DP-FL's eq. 6,
    the published factors keep C stable. An empty lot leaves C unchanged.
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
    """C is a percentile of the values in a sliding window of rounds.

    C stays constant until the window is full (DP-FedMeta, eq. 2). The window moves by
    one round (the paper's step Delta W = 1).
    """

    percentile: float = parameter(
        90.0, ge=0, le=100, doc="k: the percentile that C is set to", paper="90"
    )
    window: int = parameter(
        3, ge=1, le=1_000_000, doc="W: rounds in the sliding window"
    )
    never_rising: bool = parameter(
        True,
        doc=("C never rises (Section 3.1's smoothing)"),
    )

    def begin(self, threshold: float) -> State:
        return super().begin(threshold) | {"rounds": []}

    def move(self, state: State, values: list[float]) -> None:
        """Add the values of one round to the window, and update C."""
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
    """C is the percentile of the norms of releases: DP-FedMeta's rule as printed.

    `form` "mean": the norm of the released mean (Algorithm 2, line 8, divides by L).
    With noise of deviation z C on each of d coordinates, that norm is at least about
    z C sqrt(d) / L, so C follows its own noise down, whatever the gradients are.

    `form` "sum": the norm of the released sum (eq. 7). That norm is far above the norm
    of any single contribution, so with `never_rising` C never changes.
    """

    kind: ClassVar[str] = "percentile-of-releases"

    form: Literal["mean", "sum"] = parameter(
        "sum", doc="norm of the released mean or sum"
    )

    def observe(self, state: State, seen: Seen) -> None:
        norm = seen.released_norm
        if self.form == "mean":
            norm = norm / seen.denominator
        self.move(state, [norm])


@dataclasses.dataclass(frozen=True)
class PercentileOfRawNorms(Percentile):
    """C is the percentile of the clients' norms before clipping. Not private.

    The next release reveals C, and no noise protects it. DP-FedMeta's released code and
    DP-MAML (Section 5.2.1) use this rule.
    """

    kind: ClassVar[str] = "percentile-of-raw-norms"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = "PercentileOfRawNorms sets the threshold from raw norms"
    notice: ClassVar[str] = "the clipping threshold reads raw norms: not private"

    def observe(self, state: State, seen: Seen) -> None:
        assert seen.raw_norms is not None
        self.move(state, seen.raw_norms)
