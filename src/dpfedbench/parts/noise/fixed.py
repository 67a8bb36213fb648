"""Noise that stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.parts.noise.noise import Noise
from dpfedbench.settings.part import setting

if TYPE_CHECKING:
    from dpfedbench.parts.budget import Budget
    from dpsum.accounting.budgets import BudgetPlan
    from dpsum.accounting.claims import Claims


class Fixed(Noise):
    """Independent Gaussian noise of deviation z C in each round."""

    kind: Literal["fixed"] = "fixed"
    multiplier: float | None = setting(
        1.0,
        ge=1e-3,
        le=1e7,
        doc="z: noise standard deviation over C; null: the least that the budget allows",
        paper="1",
    )

    def plan(
        self,
        budget: Budget,
        sampler: Mapping[str, Any],
        *,
        claims: Claims,
        counted: bool,
        uncounted: int,
        stepwise: bool,
        beside: Sequence[float | None] = (),
    ) -> BudgetPlan:  # fmt: skip
        from dpsum.accounting.budgets import DecayingBudget

        if uncounted:
            assert self.multiplier is not None
            return DecayingBudget(
                budget, sampler=sampler, multiplier=self.multiplier, decay=1.0, falls=3, claims=claims,
                mechanism=self.mechanism, counted=counted, extra=uncounted, beside=beside,
            )  # fmt: skip
        return super().plan(
            budget, sampler, claims=claims, counted=counted, uncounted=uncounted, stepwise=stepwise, beside=beside
        )
