"""A round's release as the ledger has it: read off the mechanism that ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpfedbench.federation.composition import Composition
from dpfedbench.privacy.clipping import ClippingRule
from dpfedbench.privacy.ledger import Release
from dpfedbench.privacy.private_sum import PrivateSum


def as_release(
    total: PrivateSum | Sequence[PrivateSum],
    *,
    number: int,
    name: str,
    parts: Composition,
    rule: ClippingRule,
    sampler: dict[str, Any],
    denominator: float,
    noise_stream: str,
    counted_by_paper: bool = True,
) -> Release:
    """The ledger's line for a private sum, or for those that each client took over its own records.

    Args:
        total: the sum or sums that were released.
        number: the round's, or the local step's, from 0.
        name: what was released.
        parts: whom it protects, and from whom.
        rule: what set the threshold; of several sums, any one's.
        sampler: as the participation plan describes itself.
        denominator: what the sum is divided by afterwards.
        noise_stream: name of the random stream of the noise.
        counted_by_paper: whether the method's paper counts it.
    """
    sums = [total] if isinstance(total, PrivateSum) else list(total)
    values: dict[str, Any] = {
        field: [getattr(each, field) for each in sums] for field in ("threshold", "sensitivity", "noise_std")
    }
    if isinstance(total, PrivateSum):
        values = {field: value for field, (value,) in values.items()}
    return Release(
        round=number,
        name=name,
        mechanism=sums[0].mechanism,
        unit=parts.unit,
        adjacency="zero-out",
        observer=parts.observer,
        noise_multiplier=sums[0].noise_multiplier,
        **values,
        dimension=sums[0].dimension,
        sampler=sampler,
        denominator=denominator,
        noise_stream=noise_stream,
        data_dependent_threshold=not rule.private,
        counted_by_paper=counted_by_paper,
        reason="" if rule.private else rule.reason or f"{type(rule).__name__} sets the threshold from raw norms",
    )
