"""Budgets: limits on the privacy loss of a run, and the settings of the private sums
that clients take over their own data.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic

from dpfedbench.config.breach import Breach
from dpfedbench.config.part import Section, setting
from dpfedbench.config.rules import Rule
from dpsum.accounting.claims import Claims
from dpsum.budget import Budget
from dpsum.clipping import Constant
from dpsum.noise import Gaussian
from dpsum.parameters import parameter
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetSettings(Budget):
    """Limit on the privacy loss. `delta` is also the δ of reports without a limit."""

    profile: Literal["claimed", "proven"] = parameter(
        "claimed", doc="which ε is limited"
    )
    counted_clients: int | None = parameter(
        None,
        ge=1,
        le=10_000_000,
        doc=(
            "N of the claim where the authors' code counts other clients than took"
            " part; the proven ε does not depend on it. For reading: as-released"
        ),
        paper="60000 (DP-FedMeta's released code, Omniglot)",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda budget, run: (
                budget.epsilon is not None
                and budget.profile == "claimed"
                and not run.claims
            ),
            "budget.profile is claimed, but the paper of {run.method} claims no"
            " epsilon: set it to proven",
        ),
        # A claim for another number of clients has to be marked as void.
        Rule(
            lambda budget, run: (
                budget.counted_clients is not None and run.reading != "as-released"
            ),
            "budget.counted_clients is {part.counted_clients:,}, which only the"
            " claim of a paper's released code may use: set it to null, or set"
            " reading to as-released",
        ),
        # The sampling rate would be above one.
        Rule(
            lambda budget, run: (
                budget.counted_clients is not None
                and budget.counted_clients < run.participation.cohort
            ),
            "budget.counted_clients is {part.counted_clients:,}, fewer than the"
            " {run.participation.cohort:,} of participation.cohort: raise it",
        ),
    )


class OwnSum(Section):
    """Private sum that a few-shot client takes itself.

    `section` is the name of its settings in a configuration.
    """

    section: ClassVar[str]
    unit: ClassVar[str] = "record"
    adjacency: ClassVar[str] = "zero-out"

    threshold: float = setting(0.2, ge=1e-20, le=1e20, doc="C_0", paper="0.2")
    multiplier: float | None = setting(
        None, ge=1e-3, le=1e7, doc="z_0; null: the smallest that epsilon allows"
    )
    epsilon: float | None = setting(
        2.5,
        ge=1e-8,
        le=1e6,
        doc="limit on ε of the protected unit; null: no limit",
        paper="2.5 (DP-AGRLR)",
    )
    delta: float = setting(1e-5, ge=1e-30, lt=1, doc="delta_0", paper="not stated")
    profile: Literal["claimed", "proven"] = setting("proven", doc="which ε is limited")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda settings, run: (
                settings.multiplier is None and settings.epsilon is None
            ),
            "{part.section}.multiplier and {part.section}.epsilon are both null:"
            " give one",
        ),
        Rule(
            lambda settings, run: (
                settings.multiplier is None
                and settings.profile == "claimed"
                and not run.claims
            ),
            "{part.section}.profile is claimed, but the paper of {run.method} claims"
            " no epsilon: set it to proven",
        ),
    )

    @property
    def clipping_rule(self) -> Constant:
        """Clipping rule of these sums."""
        return Constant(threshold=self.threshold)

    def sum(self, name: str, *, observer: str, part: str = "") -> SumSpec:
        """Return one of these sums.

        Args:
            name: name of the released quantity.
            observer: who sees the release.
            part: the part of the client's examples that it reads; see `SumSpec`.
        """
        return SumSpec(
            name=name,
            unit=self.unit,
            adjacency=self.adjacency,
            taken_by="client",
            observer=observer,
            stream=name,
            clipping=self.clipping_rule,
            noise=Gaussian(multiplier=self.multiplier),
            within_task=self,
            part=part,
        )

    def noise_multiplier(
        self, samplers: Mapping[str, Mapping[str, Any]], claims: Claims
    ) -> float:
        """Return z_0: as configured, or the least that keeps all sums within epsilon.

        Args:
            samplers: sampler of each of the client's sums, by name.
            claims: accounting of the method's paper.

        Raises:
            BenchError: no noise meets the epsilon.
        """
        from dpsum.accounting.analyses import within_task

        return self.multiplier or within_task.calibrate(
            samplers,
            epsilon=self.epsilon or 0.0,
            delta=self.delta,
            profile=self.profile,
            claims=claims,
        )


class WithinTask(OwnSum):
    """Private sums of a few-shot client over its own examples: record-level privacy
    within its task.
    """

    section: ClassVar[str] = "within_task"

    groups: tuple[Annotated[int, pydantic.Field(ge=2, le=1_000_000)], ...] = setting(
        (),
        doc=(
            "group sizes: the account gives the proven ε of as many examples of"
            " one client"
        ),
    )
    clipping_groups: Literal["all", "layers", "tensors"] = setting(
        "all",
        doc=(
            "groups of coordinates of an example's gradient that are clipped"
            " separately, each to `threshold`"
        ),
        paper="tensors (DP-FedMeta's released code)",
    )
    noise_by_group: Literal["joint", "per-group", "equal-shares"] = setting(
        "joint",
        doc=("as `clipping.noise_by_group`; per-group needs a multiplier"),
        paper="per-group (DP-FedMeta's released code)",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda settings, run: (
                settings.clipping_groups == "all" and settings.noise_by_group != "joint"
            ),
            "{part.section}.noise_by_group is {part.noise_by_group}, but"
            " {part.section}.clipping_groups is all, so there is only one group:"
            " set clipping_groups to layers or tensors",
        ),
        Rule(
            lambda settings, run: (
                settings.noise_by_group == "per-group" and settings.multiplier is None
            ),
            "{part.section}.noise_by_group is per-group, which protects less"
            " than the multiplier states, but {part.section}.multiplier is null:"
            " set it",
        ),
    )

    @property
    def clipping_rule(self) -> Constant:
        return Constant(
            threshold=self.threshold,
            groups=self.clipping_groups,
            noise_by_group=self.noise_by_group,
        )


class SupportAndQuery(WithinTask):
    """Private sums of a client over its support and over its query examples."""

    query_gradient: Literal["private", "exact"] = setting(
        "private",
        doc=(
            "exact: the gradient of the query set is neither clipped nor noised,"
            " as in DP-FedMeta's released code; no ε is proven for a record"
        ),
        paper="private; released code: exact",
    )

    def breaches(self, run: "Run") -> tuple[Breach, ...]:
        if self.query_gradient == "private":
            return ()
        breach = Breach(
            unit="record",
            refusal=(
                "within_task.query_gradient is exact, but each record is promised a"
                " noised query gradient: set it to private, or reading to as-released"
            ),
            reason="clients send their query gradients without clipping and noise",
        )
        return (breach,)


class OwnUpdate(OwnSum):
    """Private sum of a client over its own update alone, which protects all data of the
    client (local privacy).

    Neighbours differ in all data of one client: the sensitivity is 2 C_0, and the
    standard deviation of the noise 2 z_0 C_0.
    """

    section: ClassVar[str] = "own_update"
    unit: ClassVar[str] = "client"
    adjacency: ClassVar[str] = "replace-one"
